// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/data/options.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::data {

/// Visits the table [target]. `images`: the condition of keys about images.
void visit_keys(keys::Visitor& visitor, const keys::AppliesTo& images, TargetOptions& target);
/// Visits the tables [data], [data.hdf5] and [data.augment]. `maps`: the condition of keys about
/// targets that are maps.
void visit_keys(keys::Visitor& visitor, const keys::AppliesTo& images, const keys::AppliesTo& maps,
                DataOptions& options);
/// Rejects random_crop together with random_resized_crop, and fast decoding without the latter.
void check_keys(const DataOptions& options, keys::Reader& reader);

}  // namespace trireme::data
