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
struct Scattered {
  std::vector<char> tensors;         ///< whether it is one, the same on all ranks
  std::vector<std::int64_t> rounds;  ///< of bounded size, as many as the rank with the most rows
                                     ///< needs: all ranks take part in each
};

Scattered scattered_of(const comm::Communicator& world, std::span<const Piece> pieces) {
  const std::size_t count = pieces.size();
  std::vector<std::int64_t> most(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t step = rows_a_round(part_of(pieces[i]).row_elements());
    most[i] = holds_whole_rows(pieces[i]) ? 0 : 1;
    most[count + i] = (pieces[i].row_end - pieces[i].row_begin + step - 1) / step;
  }
  world.all_reduce(std::span(most), comm::Reduction::max);
  const auto middle = most.begin() + static_cast<std::ptrdiff_t>(count);
  return {{most.begin(), middle}, {middle, most.end()}};
}

void write_columns(const comm::Communicator& world, const Piece& piece, std::int64_t rounds,
                   const io::Hdf5Dataset& dataset) {
  const parallel::ParameterSpec& spec = *piece.spec;
  const parallel::TensorPartition part = part_of(piece);
  const std::int64_t step = rows_a_round(part.row_elements());
  HostRows host({&piece, 1});
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t begin = std::min(piece.row_end, piece.row_begin + round * step),
                       end = std::min(piece.row_end, begin + step);
    const std::vector<io::Hdf5Box> boxes = boxes_of_rows(spec, part, begin, end);
    const float none = 0;
    const float* rows = piece.data == nullptr ? &none : host.read(piece, begin, end);
    comm::together(world, [&] { dataset.write(boxes, io::Hdf5Number::float32, rows); });
  }
}

/// Lays the file out and writes every tensor, flushed by every rank: each sees to what its own node
/// has written. Returns where everything lies.
Placement write_payload(const comm::Communicator& world, const std::string& temporary,
                        std::span<const Piece> pieces, const FilePlan& plan) {
  const Scattered scattered = scattered_of(world, pieces);
  const bool gathers =
      std::find(scattered.tensors.begin(), scattered.tensors.end(), 1) != scattered.tensors.end();
  LaidOut laid_out;
  comm::together(world, [&] {
    if (gathers || world.rank() == 0)
      laid_out = lay_out(gathers ? world : comm::Communicator(), temporary, pieces, plan);
  });
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (scattered.tensors[i] != 0)
      write_columns(world, pieces[i], scattered.rounds[i], laid_out.datasets[i]);
  }
  Placement placement;
  comm::together(world, [&] {
    if (laid_out.file) placement = close(laid_out, temporary);
  });
  share(world, placement, pieces.size());
  comm::together(world, [&] {
    std::vector<float> staging(static_cast<std::size_t>(staging_elements(pieces)));
    write_values(temporary, pieces, placement.tensors, scattered.tensors, staging.data());
  });
  enter_phase("checkpoint-close");
  return placement;
}

/// Read back, compared with memory, sealed.
void seal_file(const comm::Communicator& world, const std::string& temporary,
               std::span<const Piece> pieces, const FilePlan& plan, const Placement& placement) {
  ReadBack found;
  comm::together(world, [&] {
    std::vector<char> buffer(static_cast<std::size_t>(read_back_bytes));
    found = read_share(world.rank(), world.size(), temporary, plan.user_block, placement.file_bytes,
                       placement.tensors, buffer);
  });
  add_up(world, found);
  comm::together(world, [&] {
    check_read_back(found, pieces, plan, temporary);
    if (world.rank() == 0) write_seal(temporary, plan, placement.file_bytes, found.block_hashes);
  });
}

}  // namespace

WriteReport write(const comm::Communicator& world, const std::string& path,
                  std::span<const Piece> pieces, const Info& info) {
  const double began = monotonic_seconds();
  enter_phase("checkpoint-begin");
  const std::string temporary = path + io::StagedFile::default_suffix;
  FilePlan plan = plan_file(world, path, pieces, info);
  std::optional<io::StagedFile> staged;
  prepare_folder(world, path, plan, staged);
  plan.digests = digests_of(pieces);
  world.all_reduce(std::span(plan.digests), comm::Reduction::sum);
  WriteReport report;
  const double writing = monotonic_seconds();
  const Placement placement = write_payload(world, temporary, pieces, plan);
  report.writing_seconds = monotonic_seconds() - writing;
  report.bytes = placement.file_bytes;
  seal_file(world, temporary, pieces, plan, placement);
  enter_phase("checkpoint-rename");
  comm::together(world, [&] {
    if (staged) staged->commit();
  });
  enter_phase("checkpoint-renamed");
  report.digest = combined_digest(pieces, plan);
  report.seconds = monotonic_seconds() - began;
  return report;
}

}  // namespace trireme::checkpoint
