// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard_command.hpp"
#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::app {

/// Samples [begin, end) of a source.
struct SampleRange {
  std::int64_t begin = 0, end = 0;
};

/// Returns the range of --range. Throws InputError if it does not fit the `available` samples.
SampleRange parse_range(const std::string& text, std::int64_t available);

/// The contents of the files that options name.
struct OptionFiles {
  std::vector<std::string> classes;
  data::LabelFile labels;
};

/// Checks the options and reads the files that they name. Throws InputError.
OptionFiles read_options(const ShardCommand& command);

/// Throws InputError if the names of classes cannot be stored in shards. `where`: who names them.
void check_classes(const std::vector<std::string>& classes, const std::string& where);

/// Throws InputError if the new dataset would be in its own source.
void check_out_is_outside(const ShardCommand& command);

}  // namespace trireme::app
