// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shard_command.hpp"

namespace trireme::app {

/// Throws InputError for a source of another form than the format of the command reads, such as a
/// ZIP archive or an address, with what to do instead. So it does for files that options name.
void check_source_forms(const ShardCommand& command);

/// Returns what to do for a word that is given as a format and is none, as "webdataset"; empty: it
/// is not known.
std::string advice_for_format(const std::string& word);

}  // namespace trireme::app
