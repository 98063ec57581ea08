// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::data {

/// Replaces the classes of all entries by those of a file of labels: `class_name` for a name,
/// `label` for a whole number. `classes`: the names of --classes. Sets catalog.class_warning if
/// lines have columns that are not used. Throws InputError that names the file and the line.
void read_label_file(ImageCatalog& catalog, const std::vector<std::string>& classes,
                     const LabelFile& labels);

}  // namespace trireme::data
