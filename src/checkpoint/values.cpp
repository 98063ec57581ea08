// SPDX-License-Identifier: Apache-2.0
//
// Writes rows of slices at their offsets in the file, with pwrite. Used by both ways of writing a
// checkpoint.
#include "values.hpp"

#include <algorithm>

#include "host_rows.hpp"
#include "rows.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/device/profile_range.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t element_bytes = sizeof(float);

/// Writes local rows [begin, end) of a partition, which `rows` holds in file order. Adjacent whole
/// rows are one write, other rows one write for each segment.
void write_rows(const io::File& file, const FileExtent& tensor, const parallel::ParameterSpec& spec,
                const parallel::TensorPartition& partition, std::int64_t begin, std::int64_t end,
                const float* rows) {
  const auto put = [&](std::int64_t element, const float* values, std::int64_t count) {
    file.write_at(tensor.offset + element * element_bytes, values, count * element_bytes);
  };
  for (const parallel::TensorPartition::Segment& range : partition.row_segments(begin, end)) {
    const float* values = rows + (range.local - begin) * partition.row_elements();
    const std::int64_t first = range.file * spec.row_elements();
    if (partition.row_elements() == spec.row_elements()) {
      put(first, values, range.count * spec.row_elements());
      continue;
    }
    for (std::int64_t row = 0; row < range.count; ++row) {
      for (const parallel::TensorPartition::Segment& segment : partition.segments())
        put(first + row * spec.row_elements() + segment.file,
            values + row * partition.row_elements() + segment.local, segment.count);
    }
  }
}

/// Writes all rows of a slice, in rounds. Rows in channels-last order are reordered in `staging`.
void write_slice(const io::File& file, const FileExtent& tensor, const TensorSlice& slice,
                 HostRows& host, float* staging) {
  const parallel::ParameterSpec& spec = *slice.spec;
  const parallel::TensorPartition partition = partition_of(slice);
  const bool plain = spec.inner == parallel::InnerOrder::plain;
  for_each_round(
      slice, plain ? HostRows::max_rows_per_call(slice) : rows_per_round(partition.row_elements()),
      [&](std::int64_t begin, std::int64_t end) {
        const float* rows = host.read(slice, begin, end);
        if (!plain) to_file_order(spec, end - begin, rows, staging);
        write_rows(file, tensor, spec, partition, begin, end, plain ? rows : staging);
      });
}

}  // namespace

std::int64_t elements_of(const TensorSlice& slice) {
  return (slice.row_end - slice.row_begin) * partition_of(slice).row_elements();
}

bool holds_whole_rows(const TensorSlice& slice) {
  return partition_of(slice).row_elements() == slice.spec->row_elements();
}

std::int64_t staging_elements(std::span<const TensorSlice> slices) {
  std::int64_t max_elements = 1;
  for (const TensorSlice& slice : slices) {
    if (slice.spec->inner == parallel::InnerOrder::plain) continue;
    // A channels-last tensor is never split.
    const std::int64_t row_elements = slice.spec->row_elements();
    max_elements = std::max(
        max_elements,
        std::min(rows_per_round(row_elements), slice.row_end - slice.row_begin) * row_elements);
  }
  return max_elements;
}

void write_values(const std::string& path, std::span<const TensorSlice> slices,
                  std::span<const FileExtent> tensors, std::span<const char> skipped,
                  float* staging) {
  const ProfileRange range("trireme/checkpoint/write", "checkpoint");
  io::File file(path, io::File::Mode::update);
  HostRows host(slices);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (i == slices.size() / 2) enter_phase("checkpoint-write");
    const bool written = !skipped.empty() && skipped[i] != 0;
    if (!written && slices[i].row_begin < slices[i].row_end)
      write_slice(file, tensors[i], slices[i], host, staging);
  }
  file.sync();
  file.close();
}

}  // namespace trireme::checkpoint
