#include "file_plan.hpp"

#include <algorithm>
#include <filesystem>

#include "agreement.hpp"
#include "host_rows.hpp"
#include "info_text.hpp"
#include "rows.hpp"
#include "seal.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::checkpoint {
namespace {

// Datasets of a page and more begin at a page: whole stripes and pages are written, as parallel
// file systems like it.
constexpr std::int64_t dataset_alignment = 4096;
// HDF5's own for one dataset: object header, link, attribute, padding; generous, since it only
// sizes the user block and the room asked for.
constexpr std::int64_t metadata_bytes_a_dataset = 2048 + dataset_alignment,
                       metadata_bytes_a_file = 256 << 10;

void check_pieces(const comm::Communicator& world, const std::string& path,
                  std::span<const Piece> pieces) {
  ensure(same_everywhere(world, fingerprint_of(pieces)),
         "{}: the ranks do not name the same tensors in the same order", path);
  std::vector<std::uint64_t> elements(pieces.size()), cover(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Coverage held = coverage_of(part_of(pieces[i]), pieces[i].row_begin, pieces[i].row_end);
    elements[i] = held.elements;
    cover[i] = held.hash;
  }
  world.all_reduce(std::span(elements), comm::Reduction::sum);
  world.all_reduce(std::span(cover), comm::Reduction::sum);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ensure(times_held(*pieces[i].spec, {elements[i], cover[i]}) == 1,
           "{}: the ranks together do not hold each element of {} exactly once", path,
           pieces[i].path);
  }
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

}  // namespace

FilePlan plan_file(const comm::Communicator& world, const std::string& path,
                   std::span<const Piece> pieces, const Info& info) {
  check_pieces(world, path, pieces);
  FilePlan plan;
  plan.info = info_of_bytes(world.broadcast(to_bytes(info), 0));
  plan.digests.resize(pieces.size());
  plan.most_bytes =
      metadata_bytes_a_file + 2 * static_cast<std::int64_t>(to_bytes(plan.info).size());
  for (const Piece& piece : pieces) {
    plan.most_bytes += piece.spec->shape.elements() * static_cast<std::int64_t>(sizeof(float)) +
                       metadata_bytes_a_dataset + static_cast<std::int64_t>(piece.path.size());
  }
  plan.user_block = std::max(
      dataset_alignment,
      user_block_bytes(plan.most_bytes));  // HDF5 wants it to be no smaller than the alignment
  plan.most_bytes += plan.user_block;
  return plan;
}

std::vector<std::uint64_t> digests_of(std::span<const Piece> pieces) {
  std::vector<std::uint64_t> digests(pieces.size());
  HostRows rows(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) digests[i] = digest_of(rows, pieces[i]);
  return digests;
}

void prepare_folder(const comm::Communicator& world, const std::string& path, const FilePlan& plan,
                    std::optional<io::StagedFile>& staged) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    ensure(std::filesystem::is_directory(folder), "{}: there is no folder {} to write it in", path,
           folder);
    staged.emplace(path);  // what a killed start left under that name takes no room any more
    const std::int64_t room = io::free_bytes(folder);
    ensure(
        plan.most_bytes <= room,
        "{}: needs {} bytes ({}) and there are {} ({}) free; make room, or lower checkpoint.keep",
        path, plan.most_bytes, format_bytes(static_cast<double>(plan.most_bytes)), room,
        format_bytes(static_cast<double>(room)));
    io::File file(staged->temporary(),
                  io::File::Mode::create);  // says what is wrong with the path, where HDF5 only
                                            // says that something is
    file.check_free_space(plan.most_bytes);
    file.close();
  });
}

LaidOut lay_out(const comm::Communicator& group, const std::string& temporary,
                std::span<const Piece> pieces, const FilePlan& plan) {
  const io::Hdf5CreateOptions creation{
      .communicator = group.size() > 1 ? group.mpi_handle() : nullptr,
      .user_block_bytes = plan.user_block,
      .alignment = dataset_alignment};
  LaidOut laid_out;
  io::Hdf5File& file = laid_out.file.emplace(io::Hdf5File::create(temporary, creation));
  const bool slots = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.path.starts_with("optimizer/");
  });
  write_metadata(file, plan.info, slots);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Shape& shape = pieces[i].spec->shape;
    laid_out.datasets.push_back(file.create_dataset(pieces[i].path, io::Hdf5Number::float32,
                                                    std::span(shape.begin(), shape.end())));
    file.write_attribute(pieces[i].path, "digest", plan.digests[i]);
  }
  return laid_out;
}

Placement close(LaidOut& laid_out, const std::string& temporary) {
  Placement placement;
  for (const io::Hdf5Dataset& dataset : laid_out.datasets) {
    ensure(dataset.description().offset > 0, "{}: HDF5 does not say where it lies",
           dataset.location());
    placement.tensors.push_back({dataset.description().offset, dataset.description().elements()});
  }
  laid_out.datasets.clear();
  laid_out.file->close();
  placement.file_bytes = io::File(temporary, io::File::Mode::read).size();
  return placement;
}

void share(const comm::Communicator& world, Placement& placement, std::size_t tensors) {
  placement.tensors.resize(tensors);
  world.broadcast(std::as_writable_bytes(std::span(placement.tensors)), 0);
  world.broadcast(std::as_writable_bytes(std::span(&placement.file_bytes, 1)), 0);
}

void check_read_back(const ReadBack& found, std::span<const Piece> pieces, const FilePlan& plan,
                     const std::string& temporary) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ensure(found.digests[i] == plan.digests[i],
           "{}: {} was read back other than it was written: the disk or the file system lost data",
           temporary, pieces[i].path);
  }
}

void write_seal(const std::string& temporary, const FilePlan& plan, std::int64_t file_bytes,
                std::span<const std::uint64_t> block_hashes) {
  const std::string block =
      make_user_block(plan.user_block, file_bytes - plan.user_block, block_hashes);
  io::File file(temporary, io::File::Mode::update);
  file.write_at(0, block.data(), plan.user_block);
  file.sync();
  std::string again(block.size(), '\0');
  file.read_at(0, again.data(), plan.user_block);
  ensure(again == block && file.size() == file_bytes,
         "{}: the seal was read back other than it was written", temporary);
  file.close();
}

std::uint64_t combined_digest(std::span<const Piece> pieces, const FilePlan& plan) {
  std::vector<Contents::Entry> entries;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    entries.push_back({pieces[i].path, pieces[i].spec->shape, plan.digests[i], true});
  return combined_digest(entries);
}

}  // namespace trireme::checkpoint
