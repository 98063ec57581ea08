// SPDX-License-Identifier: Apache-2.0
//
// Digests of rows in memory and of whole files. The definition is in docs/reference/files.md;
// digest.hpp has the inner loop for rows in file order.
#include "digest.hpp"

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

std::uint64_t digest_rows(const parallel::ParameterSpec& spec,
                          const parallel::TensorPartition& partition, std::int64_t row_begin,
                          std::int64_t row_end, const float* rows) {
  const auto row_elements = static_cast<std::uint64_t>(spec.row_elements());
  std::uint64_t sum = 0;
  for (const parallel::TensorPartition::Segment& range :
       partition.row_segments(row_begin, row_end)) {
    for (std::int64_t row = 0; row < range.count; ++row, rows += partition.row_elements()) {
      const std::uint64_t first = static_cast<std::uint64_t>(range.file + row) * row_elements;
      if (spec.inner == parallel::InnerOrder::plain) {
        // Rows in file order: each segment of a row is contiguous in the file.
        for (const parallel::TensorPartition::Segment& segment : partition.segments())
          sum +=
              digest_values(rows + segment.local, first + static_cast<std::uint64_t>(segment.file),
                            static_cast<std::uint64_t>(segment.count));
        continue;
      }
      // Channels-last rows: memory has [kh, kw, in], the file counts elements in [in, kh, kw].
      const auto channels = static_cast<std::uint64_t>(spec.shape[1]),
                 pixels = row_elements / channels;
      for (std::uint64_t pixel = 0; pixel < pixels; ++pixel) {
        for (std::uint64_t channel = 0; channel < channels; ++channel) {
          std::uint32_t bits;
          std::memcpy(&bits, rows + pixel * channels + channel, 4);
          sum += digest_term(bits, first + channel * pixels + pixel);
        }
      }
    }
  }
  return sum;
}

std::uint64_t combined_digest(const std::vector<Contents::Entry>& tensors) {
  std::uint64_t sum = 0;
  for (const Contents::Entry& entry : tensors)
    sum += mix64(entry.digest ^ random_key(0, entry.path));
  return sum;
}

}  // namespace trireme::checkpoint
