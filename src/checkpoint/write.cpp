// SPDX-License-Identifier: Apache-2.0
//
// write(): a checkpoint that all ranks write before they continue. The steps are listed in
// checkpoint.hpp.
//
// Used if checkpoint.async is false, and by `trireme import` and `bench io`. background.cpp writes
// the same bytes on a thread; both use file_plan.cpp and values.cpp. Only here are tensors that are
// split by columns written with collective MPI-IO.
#include <algorithm>
#include <optional>

#include "file_plan.hpp"
#include "host_rows.hpp"
#include "rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/io/seal.hpp"
#include "values.hpp"

namespace trireme::checkpoint {
namespace {

/// The tensors of which a rank holds only columns. Their bytes are scattered in the file; MPI's
/// collective buffering gathers them into large writes.
struct ColumnTensors {
  /// For each tensor: 1 if it is split by columns, else 0. Equal on all ranks.
  std::vector<char> tensors;
  /// For each tensor: number of rounds of 64 MiB, the maximum over the ranks. All ranks take part
  /// in every round.
  std::vector<std::int64_t> rounds;
};

/// Finds the tensors that are split by columns. Collective.
ColumnTensors find_column_tensors(const comm::Communicator& world,
                                  std::span<const TensorSlice> slices) {
  const std::size_t count = slices.size();
  std::vector<std::int64_t> maxima(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t step = rows_per_round(partition_of(slices[i]).row_elements());
    maxima[i] = holds_whole_rows(slices[i]) ? 0 : 1;
    maxima[count + i] = (slices[i].row_end - slices[i].row_begin + step - 1) / step;
  }
  world.all_reduce(std::span(maxima), comm::Reduction::max);
  const auto middle = maxima.begin() + static_cast<std::ptrdiff_t>(count);
  return {{maxima.begin(), middle}, {middle, maxima.end()}};
}

/// Writes one tensor that is split by columns. Collective; a rank without rows left takes part with
/// an empty selection.
void write_columns(const comm::Communicator& world, const TensorSlice& slice, std::int64_t rounds,
                   const io::Hdf5Dataset& dataset) {
  const parallel::ParameterSpec& spec = *slice.spec;
  const parallel::TensorPartition partition = partition_of(slice);
  const std::int64_t step = rows_per_round(partition.row_elements());
  HostRows host({&slice, 1});
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t begin = std::min(slice.row_end, slice.row_begin + round * step),
                       end = std::min(slice.row_end, begin + step);
    const std::vector<io::Hdf5Box> boxes = boxes_of_rows(spec, partition, begin, end);
    const float placeholder = 0;
    const float* rows = slice.data == nullptr ? &placeholder : host.read(slice, begin, end);
    comm::together(world, [&] { dataset.write(boxes, io::Hdf5Number::float32, rows); });
  }
}

/// Lays out the file, writes every tensor and returns their offsets. Collective. Every rank flushes
/// the file, because each node caches its own writes.
FileOffsets write_payload(const comm::Communicator& world, const std::string& temporary,
                          std::span<const TensorSlice> slices, const FilePlan& plan) {
  const ColumnTensors column_tensors = find_column_tensors(world, slices);
  const auto& split = column_tensors.tensors;
  // 1. Lay out the file on rank 0 and broadcast the offsets.
  FileOffsets offsets;
  comm::together(world, [&] {
    if (world.rank() == 0) offsets = create_layout(temporary, slices, plan);
  });
  broadcast_offsets(world, offsets, slices.size());
  // 2. Write the tensors that are split by columns.
  if (std::find(split.begin(), split.end(), 1) != split.end()) {
    std::optional<io::Hdf5File> file;
    comm::together(
        world, [&] { file.emplace(io::Hdf5File::open_to_write(temporary, world.mpi_handle())); });
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (split[i] == 0) continue;
      std::optional<io::Hdf5Dataset> dataset;
      comm::together(world, [&] { dataset.emplace(file->dataset(slices[i].path)); });
      write_columns(world, slices[i], column_tensors.rounds[i], *dataset);
    }
    comm::together(world, [&] { file->close(); });
  }
  comm::together(world, [&] {
    // 3. Write all other rows in place, and flush.
    std::vector<float> staging(static_cast<std::size_t>(staging_elements(slices)));
    write_values(temporary, slices, offsets.tensors, column_tensors.tensors, staging.data());
  });
  enter_phase("checkpoint-close");
  return offsets;
}

/// Reads the file back, compares the digests with memory and writes the seal. Collective.
void seal_file(const comm::Communicator& world, const std::string& temporary,
               std::span<const TensorSlice> slices, const FilePlan& plan,
               const FileOffsets& offsets) {
  ReadBack found;
  comm::together(world, [&] {
    std::vector<char> buffer(static_cast<std::size_t>(read_back_bytes));
    found = read_share(world.rank(), world.size(), temporary, plan.user_block_bytes,
                       offsets.file_bytes, offsets.tensors, buffer);
  });
  sum_over_ranks(world, found);
  comm::together(world, [&] {
    check_read_back(found, slices, plan, temporary);
    if (world.rank() == 0)
      io::write_seal(temporary, plan.user_block_bytes, offsets.file_bytes, found.block_hashes);
  });
}

}  // namespace

void commit(io::StagedFile& file) { file.commit(); }

WriteReport write(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, const Info& info, const Publisher& publish) {
  const double began = monotonic_seconds();
  enter_phase("checkpoint-begin");
  // 1. Check slices and free space, create the temporary file.
  const std::string temporary = path + io::StagedFile::default_suffix;
  FilePlan plan = plan_file(world, path, slices, info);
  std::optional<io::StagedFile> staged;
  create_staged_file(world, path, plan, staged);
  // 2. Compute the digests from memory.
  plan.digests = digests_of(slices);
  world.all_reduce(std::span(plan.digests), comm::Reduction::sum);
  // 3. Lay out the file and write all values.
  WriteReport report;
  const double writing = monotonic_seconds();
  const FileOffsets offsets = write_payload(world, temporary, slices, plan);
  report.writing_seconds = monotonic_seconds() - writing;
  report.bytes = offsets.file_bytes;
  // 4. Read back, compare, seal and rename.
  seal_file(world, temporary, slices, plan, offsets);
  enter_phase("checkpoint-rename");
  comm::together(world, [&] {
    if (staged) publish(*staged);
  });
  enter_phase("checkpoint-renamed");
  report.digest = combined_digest(slices, plan);
  report.seconds = monotonic_seconds() - began;
  return report;
}

}  // namespace trireme::checkpoint
