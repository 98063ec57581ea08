// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/data/options.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::data {

/// Visits the tables [data], [data.hdf5] and [data.augment]. `images`: the condition of keys about
/// images.
void visit_keys(keys::Visitor& visitor, const keys::AppliesTo& images, DataOptions& options);
/// Visits the table [target].
void visit_keys(keys::Visitor& visitor, const keys::AppliesTo& images, TargetOptions& target);
/// Rejects random_crop together with random_resized_crop, and fast decoding without the latter.
void check_keys(const DataOptions& options, keys::Reader& reader);

}  // namespace trireme::data
