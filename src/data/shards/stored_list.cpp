// SPDX-License-Identifier: Apache-2.0
//
// Reads the lists of a shard and limits the memory that a compressed one may claim.
#include "stored_list.hpp"

#include <algorithm>
#include <vector>

#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// Lists of up to so many values, 8 MiB in memory, are always read.
constexpr std::int64_t always_allowed_values = 1 << 20;

}  // namespace

void check_list(const io::StoredDataset& list, const io::StoredDataset& samples) {
  if (list.filters.empty()) return;
  const std::int64_t values = list.elements(), stored = samples.stored_bytes();
  validate(values <= std::max(always_allowed_values, stored),
           "{}: claims {} values in {} compressed bytes, more than the {} bytes in which the "
           "samples are stored: it is damaged or malicious; if it is not, store it without "
           "compression (h5repack -f NONE OLD.h5 NEW.h5)",
           list.location, values, list.stored_bytes(), stored);
}

void read_list(
    const io::Hdf5Reader& reader, const io::StoredDataset& list,
    const std::function<void(std::int64_t first, std::span<const std::int64_t> values)>& use) {
  constexpr std::int64_t piece = 1 << 20;
  const std::int64_t count = list.elements();
  // A piece ends with a chunk, so that no chunk is decompressed twice.
  const std::int64_t chunk = list.chunk.empty()
                                 ? 1
                                 : std::clamp<std::int64_t>(list.chunk[0], 1,
                                                            std::max<std::int64_t>(count, 1)),
                     step = chunk * std::max<std::int64_t>(1, piece / chunk);
  std::vector<std::int64_t> values(static_cast<std::size_t>(std::min(count, step)));
  for (std::int64_t first = 0; first < count; first += step) {
    const std::int64_t rows = std::min(step, count - first);
    reader.read(list, std::span(&first, 1), std::span(&rows, 1), io::Hdf5Number::int64,
                values.data());
    use(first, std::span(values).first(static_cast<std::size_t>(rows)));
  }
}

void throw_out_of_memory(const std::string& path) {
  throw Failure(fmt::format(
      "{}: its labels and offsets do not fit in the memory of this machine; use smaller shards, or "
      "a machine with more memory",
      path));
}

}  // namespace trireme::data
