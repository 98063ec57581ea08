// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "data/shards/shard_kind.hpp"
#include "trireme/data/dataset.hpp"

namespace trireme::data {

/// The numbers that /checksums are of, in SampleSource::verify().
enum class ArrayChecksums : std::uint8_t {
  none,
  stored  ///< the stored bytes of inputs and targets
};

/// Returns the samples of a file that index_array_file() has indexed, as images [h, w, c] with a
/// class, a vector or a map. `type`: that of the images.
std::unique_ptr<SampleSource> open_arrays(ShardIndex file, const SampleForm& form, DType type,
                                          const ShardResources& resources,
                                          ArrayChecksums checksums = ArrayChecksums::none);

}  // namespace trireme::data
