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
  TRIREME_EXPECT(0 <= row_begin && row_begin <= row_end && row_end <= partition.rows());
  const auto row_elements = static_cast<std::uint64_t>(spec.row_elements());
  const auto first = static_cast<std::uint64_t>(partition.row_begin() + row_begin),
             count = static_cast<std::uint64_t>(row_end - row_begin);
  std::uint64_t sum = 0;
  // Rows in file order: each segment of a row is contiguous in the file.
  if (spec.inner == parallel::InnerOrder::plain) {
    for (std::uint64_t row = 0; row < count; ++row, rows += partition.row_elements()) {
      for (const parallel::TensorPartition::Segment& segment : partition.segments()) {
        const std::uint64_t place =
            (first + row) * row_elements + static_cast<std::uint64_t>(segment.file_column);
        sum +=
            digest_values(rows + segment.column, place, static_cast<std::uint64_t>(segment.count));
      }
    }
    return sum;
  }
  // Channels-last rows: memory has [kh, kw, in], the file counts elements in [in, kh, kw].
  const auto channels = static_cast<std::uint64_t>(spec.shape[1]), pixels = row_elements / channels;
  for (std::uint64_t row = 0; row < count; ++row) {
    for (std::uint64_t pixel = 0; pixel < pixels; ++pixel) {
      for (std::uint64_t channel = 0; channel < channels; ++channel) {
        std::uint32_t bits;
        std::memcpy(&bits, rows + row * row_elements + pixel * channels + channel, 4);
        sum += digest_term(bits, (first + row) * row_elements + channel * pixels + pixel);
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
