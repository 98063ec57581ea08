// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

/// Checks header and samples of an indexed shard. Returns "" if they agree with /checksums, else
/// the first difference; none if there are no checksums, but everything can be read. Throws
/// InputError if the file is not a readable shard.
std::optional<std::string> verify_samples(const io::Hdf5Reader& reader);

}  // namespace trireme::data
