#include <algorithm>
#include <optional>

#include "file_plan.hpp"
#include "rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"

namespace trireme::checkpoint {
namespace {

/// Rounds of bounded size, as many as the rank with the most rows needs: all ranks take part in each.
void write_rows(const comm::Communicator& world, const Piece& piece, std::int64_t rounds, const io::Hdf5Dataset& dataset,
                std::vector<float>& staging) {
  const parallel::ParameterSpec& spec = *piece.spec;
  const parallel::Part part = part_of(piece);
  const std::int64_t step = rows_a_round(part.row_elements());
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t begin = std::min(piece.row_end, piece.row_begin + round * step), end = std::min(piece.row_end, begin + step);
    const float* rows = piece.data == nullptr ? staging.data() : piece.data + (begin - piece.row_begin) * part.row_elements();
    if (spec.inner != parallel::InnerOrder::plain && begin < end) {
      to_file_order(spec, end - begin, rows, staging.data());
      rows = staging.data();
    }
    const std::vector<io::Hdf5Box> boxes = boxes_of_rows(spec, part, begin, end);
    comm::together(world, [&] { dataset.write(boxes, io::Hdf5Number::float32, rows); });
  }
}

std::vector<std::int64_t> rounds_of(const comm::Communicator& world, std::span<const Piece> pieces) {
  std::vector<std::int64_t> rounds;
  for (const Piece& piece : pieces) {
    const std::int64_t step = rows_a_round(part_of(piece).row_elements());
    rounds.push_back((piece.row_end - piece.row_begin + step - 1) / step);
  }
  world.all_reduce(std::span(rounds), comm::Reduction::max);
  return rounds;
}

/// Lays the file out and writes every tensor; closed at the end. Returns where the tensors lie.
std::vector<Extent> write_payload(const comm::Communicator& world, const std::string& temporary, std::span<const Piece> pieces, const FilePlan& plan) {
  std::vector<float> staging(1);
  const std::vector<std::int64_t> rounds = rounds_of(world, pieces);
  comm::together(world, [&] { staging.resize(static_cast<std::size_t>(staging_elements(pieces))); });
  LaidOut laid_out = lay_out(world, temporary, pieces, plan);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i == pieces.size() / 2) come_by("checkpoint-write");
    write_rows(world, pieces[i], rounds[i], laid_out.datasets[i], staging);
  }
  close(world, laid_out);
  come_by("checkpoint-close");
  return laid_out.extents;
}

/// Flushed, read back, compared with memory, sealed. Returns the file's bytes.
std::int64_t seal_file(const comm::Communicator& world, const std::string& temporary, std::span<const Piece> pieces, const FilePlan& plan,
                       std::span<const Extent> extents) {
  std::int64_t bytes = 0;
  comm::together(world, [&] {
    io::sync_file(temporary);  // on every rank: each flushes what its own node has written
    if (world.rank() == 0) bytes = io::File(temporary, io::File::Mode::read).size();
  });
  bytes = world.all_reduce(bytes, comm::Reduction::max);
  const ReadBack found = read_back(world, temporary, plan.user_block, bytes, extents);
  comm::together(world, [&] {
    check_read_back(found, pieces, plan, temporary);
    if (world.rank() == 0) write_seal(temporary, plan, bytes, found.block_hashes);
  });
  return bytes;
}

}  // namespace

WriteReport write(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces, const Info& info) {
  const double began = monotonic_seconds();
  come_by("checkpoint-begin");
  const std::string temporary = path + io::StagedFile::default_suffix;
  FilePlan plan = plan_file(world, path, pieces, info);
  std::optional<io::StagedFile> staged;
  prepare_folder(world, path, plan, staged);
  plan.digests = digests_of(pieces);
  world.all_reduce(std::span(plan.digests), comm::Reduction::sum);
  WriteReport report;
  const std::vector<Extent> extents = write_payload(world, temporary, pieces, plan);
  report.bytes = seal_file(world, temporary, pieces, plan, extents);
  come_by("checkpoint-rename");
  comm::together(world, [&] {
    if (staged) staged->commit();
  });
  come_by("checkpoint-renamed");
  report.digest = combined_digest(pieces, plan);
  report.seconds = monotonic_seconds() - began;
  return report;
}

}  // namespace trireme::checkpoint
