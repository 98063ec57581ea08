#include <algorithm>
#include <optional>

#include "file_plan.hpp"
#include "host_rows.hpp"
#include "rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "values.hpp"

namespace trireme::checkpoint {
namespace {

/// Tensors of which a rank holds columns: their bytes lie scattered, and MPI's collective buffers
/// gather them before they go to the disk.
struct ColumnTensors {
  std::vector<char> tensors;         ///< whether it is one, the same on all ranks
  std::vector<std::int64_t> rounds;  ///< of bounded size, as many as the rank with the most rows
                                     ///< needs: all ranks take part in each
};

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

/// Lays the file out and writes every tensor, flushed by every rank: each sees to what its own node
/// has written. Returns where everything lies.
FileOffsets write_payload(const comm::Communicator& world, const std::string& temporary,
                          std::span<const TensorSlice> slices, const FilePlan& plan) {
  const ColumnTensors column_tensors = find_column_tensors(world, slices);
  const bool needs_collective =
      std::find(column_tensors.tensors.begin(), column_tensors.tensors.end(), 1) !=
      column_tensors.tensors.end();
  FileSkeleton skeleton;
  comm::together(world, [&] {
    if (needs_collective || world.rank() == 0)
      skeleton =
          create_skeleton(needs_collective ? world : comm::Communicator(), temporary, slices, plan);
  });
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (column_tensors.tensors[i] != 0)
      write_columns(world, slices[i], column_tensors.rounds[i], skeleton.datasets[i]);
  }
  FileOffsets offsets;
  comm::together(world, [&] {
    if (skeleton.file) offsets = close_skeleton(skeleton, temporary);
  });
  broadcast_offsets(world, offsets, slices.size());
  comm::together(world, [&] {
    std::vector<float> staging(static_cast<std::size_t>(staging_elements(slices)));
    write_values(temporary, slices, offsets.tensors, column_tensors.tensors, staging.data());
  });
  enter_phase("checkpoint-close");
  return offsets;
}

/// Read back, compared with memory, sealed.
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
    if (world.rank() == 0) write_seal(temporary, plan, offsets.file_bytes, found.block_hashes);
  });
}

}  // namespace

WriteReport write(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, const Info& info) {
  const double began = monotonic_seconds();
  enter_phase("checkpoint-begin");
  const std::string temporary = path + io::StagedFile::default_suffix;
  FilePlan plan = plan_file(world, path, slices, info);
  std::optional<io::StagedFile> staged;
  create_staged_file(world, path, plan, staged);
  plan.digests = digests_of(slices);
  world.all_reduce(std::span(plan.digests), comm::Reduction::sum);
  WriteReport report;
  const double writing = monotonic_seconds();
  const FileOffsets offsets = write_payload(world, temporary, slices, plan);
  report.writing_seconds = monotonic_seconds() - writing;
  report.bytes = offsets.file_bytes;
  seal_file(world, temporary, slices, plan, offsets);
  enter_phase("checkpoint-rename");
  comm::together(world, [&] {
    if (staged) staged->commit();
  });
  enter_phase("checkpoint-renamed");
  report.digest = combined_digest(slices, plan);
  report.seconds = monotonic_seconds() - began;
  return report;
}

}  // namespace trireme::checkpoint
