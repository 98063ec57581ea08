// SPDX-License-Identifier: Apache-2.0
//
// The steps that both ways of writing a checkpoint share (write.cpp, background.cpp):
//
// 1. plan_file() checks the slices and bounds the file size.
// 2. create_staged_file() reserves the room on rank 0.
// 3. create_layout() creates all datasets with HDF5 on rank 0 and returns their offsets.
// 4. The callers write the values and read the file back.
// 5. check_read_back() compares the digests.
// 6. io::write_seal() completes the file.
#include "file_plan.hpp"

#include <algorithm>
#include <filesystem>

#include "host_rows.hpp"
#include "rank_consistency.hpp"
#include "rows.hpp"
#include "serialize.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/profile_range.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

// Datasets of at least 4 KiB start at a multiple of 4 KiB, so that writes cover whole stripes of a
// parallel file system.
constexpr std::int64_t dataset_alignment = 4096;
// Upper bounds for HDF5's metadata: object header, link, attribute and padding of a dataset. They
// are generous: they only size the user block and the room that is reserved.
constexpr std::int64_t metadata_bytes_per_dataset = 2048 + dataset_alignment,
                       metadata_bytes_per_file = 256 << 10;

/// Checks that all ranks name the same tensors and together hold every element exactly once.
/// Collective. Throws Failure.
void check_slices(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices) {
  ensure(equal_on_all_ranks(world, hash_names_and_shapes(slices)),
         "{}: the ranks do not name the same tensors in the same order", path);
  std::vector<std::uint64_t> elements(slices.size()), coverage(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Coverage held =
        coverage_of(partition_of(slices[i]), slices[i].row_begin, slices[i].row_end);
    elements[i] = held.elements;
    coverage[i] = held.hash;
  }
  world.all_reduce(std::span(elements), comm::Reduction::sum);
  world.all_reduce(std::span(coverage), comm::Reduction::sum);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    ensure(count_covers(*slices[i].spec, {elements[i], coverage[i]}) == 1,
           "{}: the ranks together do not hold each element of {} exactly once", path,
           slices[i].path);
  }
}

/// Writes all attributes and small datasets. `has_optimizer_state`: the file has optimizer state,
/// so the group /optimizer exists.
void write_metadata(io::Hdf5File& file, const Info& info, bool has_optimizer_state) {
  file.write_attribute("/", "format", std::string("trireme-checkpoint"));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "complete", std::int64_t{1});
  file.write_attribute("/", "step", info.step);
  file.write_attribute("/", "epoch", info.epoch);
  file.write_attribute("/", "epoch_samples", info.epoch_samples);
  file.write_attribute("/", "samples", info.samples);
  file.write_attribute("/", "deck", info.deck);
  if (!info.written_by.empty()) file.write_attribute("/", "written_by", info.written_by);
  file.create_group("state");
  for (const auto& [key, value] : info.state) file.write_attribute("state", key, value);
  if (has_optimizer_state || info.updates > 0) {
    file.create_group("optimizer");
    file.write_attribute("optimizer", "updates", info.updates);
  }
  if (!info.classes.empty()) file.write_strings("classes", info.classes);
}

}  // namespace

FilePlan plan_file(const comm::Communicator& world, const std::string& path,
                   std::span<const TensorSlice> slices, const Info& info) {
  check_slices(world, path, slices);
  FilePlan plan;
  plan.info = info_from_bytes(world.broadcast(to_bytes(info), 0));
  plan.digests.resize(slices.size());
  plan.max_bytes =
      metadata_bytes_per_file + 2 * static_cast<std::int64_t>(to_bytes(plan.info).size());
  for (const TensorSlice& slice : slices) {
    plan.max_bytes += slice.spec->shape.elements() * static_cast<std::int64_t>(sizeof(float)) +
                      metadata_bytes_per_dataset + static_cast<std::int64_t>(slice.path.size());
  }
  // HDF5 requires a user block of at least the alignment.
  plan.user_block_bytes = std::max(dataset_alignment, io::user_block_bytes(plan.max_bytes));
  plan.max_bytes += plan.user_block_bytes;
  return plan;
}

std::vector<std::uint64_t> digests_of(std::span<const TensorSlice> slices) {
  const ProfileRange range("trireme/checkpoint/digests", "checkpoint");
  std::vector<std::uint64_t> digests(slices.size());
  HostRows rows(slices);
  for (std::size_t i = 0; i < slices.size(); ++i) digests[i] = digest_of(rows, slices[i]);
  return digests;
}

void create_staged_file(const comm::Communicator& world, const std::string& path,
                        const FilePlan& plan, std::optional<io::StagedFile>& staged) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    ensure(std::filesystem::is_directory(folder), "{}: the folder {} does not exist", path, folder);
    // Removes the temporary file of a killed start, which would take room.
    staged.emplace(path);
    const std::int64_t room = io::free_bytes(folder);
    ensure(plan.max_bytes <= room,
           "{}: needs {} bytes ({}), but only {} ({}) are free; make room (a run also by a lower "
           "checkpoint.keep)",
           path, plan.max_bytes, format_bytes(plan.max_bytes), room, format_bytes(room));
    // This error message names the cause; HDF5's message would not.
    io::File file(staged->temporary(), io::File::Mode::create);
    file.check_free_space(plan.max_bytes);
    file.close();
  });
}

FileOffsets create_layout(const std::string& temporary, std::span<const TensorSlice> slices,
                          const FilePlan& plan) {
  const ProfileRange range("trireme/checkpoint/layout", "checkpoint");
  io::Hdf5File file = io::Hdf5File::create(
      temporary, {.user_block_bytes = plan.user_block_bytes, .alignment = dataset_alignment});
  const bool has_optimizer_state =
      std::any_of(slices.begin(), slices.end(),
                  [](const TensorSlice& slice) { return slice.path.starts_with("optimizer/"); });
  write_metadata(file, plan.info, has_optimizer_state);
  FileOffsets offsets;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Shape& shape = slices[i].spec->shape;
    const io::Hdf5Dataset dataset = file.create_dataset(slices[i].path, io::Hdf5Number::float32,
                                                        std::span(shape.begin(), shape.end()));
    file.write_attribute(slices[i].path, "digest", plan.digests[i]);
    if (slices[i].counts_updates) {
      const auto found = plan.info.updates_before.find(slices[i].spec->name);
      if (found != plan.info.updates_before.end())
        file.write_attribute(slices[i].path, "updates_before", found->second);
    }
    ensure(dataset.offset() > 0, "{}: HDF5 does not report the offset of {}", temporary,
           slices[i].path);
    offsets.tensors.push_back({dataset.offset(), dataset.elements()});
  }
  file.close();
  offsets.file_bytes = io::File(temporary, io::File::Mode::read).size();
  return offsets;
}

void broadcast_offsets(const comm::Communicator& world, FileOffsets& offsets, std::size_t tensors) {
  offsets.tensors.resize(tensors);
  world.broadcast(std::as_writable_bytes(std::span(offsets.tensors)), 0);
  world.broadcast(std::as_writable_bytes(std::span(&offsets.file_bytes, 1)), 0);
}

void check_read_back(const ReadBack& found, std::span<const TensorSlice> slices,
                     const FilePlan& plan, const std::string& temporary) {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    ensure(
        found.digests[i] == plan.digests[i],
        "{}: {} has other values on disk than were written: the disk or the file system lost data",
        temporary, slices[i].path);
  }
}

std::uint64_t combined_digest(std::span<const TensorSlice> slices, const FilePlan& plan) {
  std::vector<Contents::Entry> entries;
  for (std::size_t i = 0; i < slices.size(); ++i)
    entries.push_back({slices[i].path, slices[i].spec->shape, plan.digests[i], true});
  return combined_digest(entries);
}

}  // namespace trireme::checkpoint
