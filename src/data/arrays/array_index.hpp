// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/shards/shard_kind.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

/// Returns a file of another program as a shard of images: its extents, the place of its samples,
/// and their classes or the place of their targets. Throws InputError with file and dataset.
///
/// The images have the type of the inputs if all are uint8, uint16 or float16 as they are stored,
/// else float32.
IndexedShard index_array_file(const io::Hdf5Reader& reader, const SampleForm& form);

/// Returns a dataset of numbers with its attributes of packed and missing values. Throws InputError
/// if they cannot be followed.
ArrayVariable packed_variable(const io::Hdf5Index& file, const std::string& path,
                              io::StoredDataset dataset);

/// Returns a number as a dataset of this type holds it: rounded to float16 or float32.
double as_stored(const io::StoredDataset& rows, double value);

/// Returns the type of the images of an indexed file.
DType array_type(const ShardIndex& file, const ArrayForm& form);

/// Returns the extents of targets that are read with their samples, whose count is that of numbers
/// in the file; zeros if the targets are classes of samples, which are read at once.
AnswerExtents target_extents(const ShardIndex& file, const SampleForm& form);
/// Returns "64 x 64 x 2" or "3 numbers".
std::string to_text(const AnswerExtents& extents);

/// Returns the extents of one sample of an input in the order h, w, c. Those that the layout lacks
/// are 1.
std::array<std::int64_t, 3> array_extents(const ArrayVariable& input, const std::string& layout);

}  // namespace trireme::data
