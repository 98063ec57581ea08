// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/data/options.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::data {

/// Visits the tables [data] and [data.augment]. `images`: the condition of keys about images.
void visit_keys(keys::Visitor& visitor, const keys::AppliesTo& images, DataOptions& options);

}  // namespace trireme::data
