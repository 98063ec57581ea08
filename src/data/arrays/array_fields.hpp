// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/data/arrays/array_form.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::data {

/// Visits the keys of the table [data.hdf5].
void visit_arrays(keys::Visitor& v, const keys::AppliesTo& images, const keys::AppliesTo& maps,
                  ArrayForm& arrays);

}  // namespace trireme::data
