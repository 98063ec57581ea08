// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "data/shards/shard_header.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

// Shards with targets that are no classes of samples hold /images and /targets, which are read as
// the arrays of other programs are. `trireme shard hdf5` writes them, and keeps the table by which
// it read the samples.

/// Returns the form in which a shard with /targets is read: `form` with the table of such shards.
SampleForm form_of_shard(const SampleForm& form, const StoredTarget& stored);

/// Returns the kind of /targets and their extents; one class if the shard has none. Throws
/// InputError.
StoredTarget read_stored_target(const io::Hdf5Reader& reader, std::int64_t samples);

/// Returns DatasetInfo::preparation of table_lines().
std::string preparation_of(const std::vector<std::string>& lines);

/// Throws InputError if a shard was made with another number as target.ignore than the deck has.
void check_ignore(const io::Hdf5Index& file, const SampleForm& form);

/// Returns whether a file is read as a shard although the deck has a table [data.hdf5]: it was made
/// by such a table. Throws InputError if that was another one.
bool is_shard_of_table(const io::Hdf5Reader& reader, const SampleForm& form);

}  // namespace trireme::data
