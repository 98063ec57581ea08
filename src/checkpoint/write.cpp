#include <algorithm>
#include <filesystem>
#include <optional>

#include "agreement.hpp"
#include "info_text.hpp"
#include "read_back.hpp"
#include "rows.hpp"
#include "seal.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::checkpoint {
namespace {

// Datasets of a page and more begin at a page: whole stripes and pages are written, as parallel file systems like it.
constexpr std::int64_t dataset_alignment = 4096;
// HDF5's own for one dataset: object header, link, attribute, padding; generous, since it only sizes the user block and the room asked for.
constexpr std::int64_t metadata_bytes_a_dataset = 2048 + dataset_alignment, metadata_bytes_a_file = 256 << 10;

/// What the file will hold, the same on all ranks.
struct Plan {
  Info info;
  std::vector<std::uint64_t> digests;
  std::int64_t most_bytes = 0, user_block = 0;
};

void check_pieces(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces) {
  ensure(same_everywhere(world, fingerprint_of(pieces)), "{}: the ranks do not name the same tensors in the same order", path);
  std::vector<std::uint64_t> elements(pieces.size()), cover(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Coverage held = coverage_of(part_of(pieces[i]), pieces[i].row_begin, pieces[i].row_end);
    elements[i] = held.elements;
    cover[i] = held.hash;
  }
  world.all_reduce(std::span(elements), comm::Reduction::sum);
  world.all_reduce(std::span(cover), comm::Reduction::sum);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ensure(times_held(*pieces[i].spec, {elements[i], cover[i]}) == 1, "{}: the ranks together do not hold each element of {} exactly once", path,
           pieces[i].path);
  }
}

Plan plan_of(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces, const Info& info) {
  check_pieces(world, path, pieces);
  Plan plan;
  plan.info = info_of_bytes(world.broadcast(to_bytes(info), 0));
  plan.digests.resize(pieces.size());
  plan.most_bytes = metadata_bytes_a_file + 2 * static_cast<std::int64_t>(to_bytes(plan.info).size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.row_begin < piece.row_end) plan.digests[i] = digest_rows(*piece.spec, part_of(piece), piece.row_begin, piece.row_end, piece.data);
    plan.most_bytes += piece.spec->shape.elements() * static_cast<std::int64_t>(sizeof(float)) + metadata_bytes_a_dataset +
                       static_cast<std::int64_t>(piece.path.size());
  }
  world.all_reduce(std::span(plan.digests), comm::Reduction::sum);
  plan.user_block = std::max(dataset_alignment, user_block_bytes(plan.most_bytes));  // HDF5 wants it to be no smaller than the alignment
  plan.most_bytes += plan.user_block;
  return plan;
}

/// Rank 0 makes the place for the file, if there is room; the other ranks hold none.
void prepare_folder(const comm::Communicator& world, const std::string& path, const Plan& plan, std::optional<io::StagedFile>& staged) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    ensure(std::filesystem::is_directory(folder), "{}: there is no folder {} to write it in", path, folder);
    const std::int64_t room = io::free_bytes(folder);
    ensure(plan.most_bytes <= room, "{}: needs {} bytes ({}) and there are {} ({}) free; make room, or lower checkpoint.keep", path, plan.most_bytes,
           format_bytes(static_cast<double>(plan.most_bytes)), room, format_bytes(static_cast<double>(room)));
    staged.emplace(path);
    io::File(staged->temporary(), io::File::Mode::create).close();  // says what is wrong with the path, where HDF5 only says that something is
  });
}

void write_metadata(io::Hdf5File& file, const Info& info, bool slots) {
  file.write_attribute("/", "format", std::string("trireme-checkpoint"));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "complete", std::int64_t{1});
  file.write_attribute("/", "step", info.step);
  file.write_attribute("/", "epoch", info.epoch);
  file.write_attribute("/", "epoch_samples", info.epoch_samples);
  file.write_attribute("/", "samples", info.samples);
  file.write_attribute("/", "deck", info.deck);
  file.create_group("state");
  for (const auto& [key, value] : info.state) file.write_attribute("state", key, value);
  if (slots || info.updates > 0) {
    file.create_group("optimizer");
    file.write_attribute("optimizer", "updates", info.updates);
  }
  if (!info.classes.empty()) file.write_strings("classes", info.classes);
}

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
std::vector<Extent> write_payload(const comm::Communicator& world, const std::string& temporary, std::span<const Piece> pieces, const Plan& plan) {
  std::vector<float> staging(1);
  std::vector<io::Hdf5Dataset> datasets;
  std::vector<Extent> extents;
  io::Hdf5Creation creation;
  creation.communicator = world.size() > 1 ? world.mpi_handle() : nullptr;
  creation.user_block_bytes = plan.user_block;
  creation.alignment = dataset_alignment;
  const std::vector<std::int64_t> rounds = rounds_of(world, pieces);
  std::optional<io::Hdf5File> file;
  comm::together(world, [&] {
    std::int64_t most = 1;
    for (const Piece& piece : pieces) {
      if (piece.spec->inner == parallel::InnerOrder::plain) continue;
      const std::int64_t row_elements = piece.spec->row_elements();  // such a tensor is never split
      most = std::max(most, std::min(rows_a_round(row_elements), piece.row_end - piece.row_begin) * row_elements);
    }
    staging.resize(static_cast<std::size_t>(most));
  });
  comm::together(world, [&] {
    file.emplace(io::Hdf5File::create(temporary, creation));
    const bool slots = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.path.starts_with("optimizer/"); });
    write_metadata(*file, plan.info, slots);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Shape& shape = pieces[i].spec->shape;
      datasets.push_back(file->create_dataset(pieces[i].path, io::Hdf5Number::float32, std::span(shape.begin(), shape.end())));
      file->write_attribute(pieces[i].path, "digest", plan.digests[i]);
      ensure(datasets.back().description().offset > 0, "{}: HDF5 does not say where {} lies", temporary, pieces[i].path);
      extents.push_back({datasets.back().description().offset, shape.elements()});
    }
  });
  for (std::size_t i = 0; i < pieces.size(); ++i) write_rows(world, pieces[i], rounds[i], datasets[i], staging);
  datasets.clear();
  comm::together(world, [&] {
    file->flush();
    file->close();
  });
  return extents;
}

/// Flushed, read back, compared with memory, sealed. Returns the file's bytes.
std::int64_t seal_file(const comm::Communicator& world, const std::string& temporary, std::span<const Piece> pieces, const Plan& plan,
                       std::span<const Extent> extents) {
  std::int64_t bytes = 0;
  comm::together(world, [&] {
    io::sync_file(temporary);  // on every rank: each flushes what its own node has written
    if (world.rank() == 0) bytes = io::File(temporary, io::File::Mode::read).size();
  });
  bytes = world.all_reduce(bytes, comm::Reduction::max);
  const ReadBack found = read_back(world, temporary, plan.user_block, bytes, extents);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ensure(found.digests[i] == plan.digests[i], "{}: {} was read back other than it was written: the disk or the file system lost data", temporary,
           pieces[i].path);
  }
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::string block = make_user_block(plan.user_block, bytes - plan.user_block, found.block_hashes);
    io::File file(temporary, io::File::Mode::update);
    file.write_at(0, block.data(), plan.user_block);
    file.sync();
    std::string again(block.size(), '\0');
    file.read_at(0, again.data(), plan.user_block);
    ensure(again == block && file.size() == bytes, "{}: the seal was read back other than it was written", temporary);
    file.close();
  });
  return bytes;
}

}  // namespace

WriteReport write(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces, const Info& info) {
  const double began = monotonic_seconds();
  const std::string temporary = path + io::StagedFile::default_suffix;
  const Plan plan = plan_of(world, path, pieces, info);
  std::optional<io::StagedFile> staged;
  prepare_folder(world, path, plan, staged);
  WriteReport report;
  const std::vector<Extent> extents = write_payload(world, temporary, pieces, plan);
  report.bytes = seal_file(world, temporary, pieces, plan, extents);
  comm::together(world, [&] {
    if (staged) staged->commit();
  });
  std::vector<Contents::Entry> entries;
  for (std::size_t i = 0; i < pieces.size(); ++i) entries.push_back({pieces[i].path, pieces[i].spec->shape, plan.digests[i], true});
  report.digest = combined_digest(entries);
  report.seconds = monotonic_seconds() - began;
  return report;
}

}  // namespace trireme::checkpoint
