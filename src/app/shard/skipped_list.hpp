// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "shard_folder.hpp"

namespace trireme::app {

// skipped.csv: what --on-error skip has left out of a dataset, and why.

/// Returns a line of the list.
std::string skipped_line(std::string_view place, std::string_view reason);

/// Puts a list into the staging folder of a dataset, which publishes it. `column`: what a place is,
/// "image" or "line".
///
/// Throws InputError if a file of another kind is in the way.
void write_skipped_list(const ShardFolder& out, std::string_view column, const std::string& lines);

/// Removes the list that an older dataset in the folder had.
void remove_old_skipped_list(const std::string& folder);

}  // namespace trireme::app
