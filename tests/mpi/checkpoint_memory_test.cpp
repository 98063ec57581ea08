// SPDX-License-Identifier: Apache-2.0
//
// The memory that checkpoints need on each rank: all 16 ranks write, five read. The suite uses a
// small state. For 2 GB, with the memory of every part printed:
//   TRIREME_TEST_STATE_BYTES=2000000000 mpirun -n 16 test_mpi_checkpoint_memory

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/shared_folder.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {
namespace {

constexpr int readers = 5;
// Memory besides the values: HDF5 objects, tensor names, digests and checksums, the stack of the
// thread, malloc fragmentation. Reading opens the file on every rank. None of it grows with the
// tensors.
constexpr std::int64_t overhead_bytes = std::int64_t{3} << 20;
// Staging buffers: 64 MiB at most for rows whose elements are reordered, and a block of the seal to
// read back.
constexpr std::int64_t reordered_rows_bytes = std::int64_t{64} << 20, block = std::int64_t{4} << 20;

const comm::Communicator& world() { return test_environment().world(); }

std::int64_t state_bytes() {
  const char* text = std::getenv("TRIREME_TEST_STATE_BYTES");
  return text == nullptr ? std::int64_t{64} << 20 : std::atoll(text);
}

/// An equal share of the rows of a few large tensors (one with reordered rows) and of many small
/// ones.
struct StateShare {
  std::deque<parallel::ParameterSpec> specs;
  std::vector<TensorSlice> slices;
  std::vector<float> values;

  StateShare(std::int64_t bytes, int rank, int size) {
    const std::int64_t elements = bytes / 4;
    specs.push_back({.name = "embedding", .shape = {elements / 2 / 512, 512}});
    specs.push_back({.name = "filters",
                     .shape = {elements / 8 / (64 * 9), 64, 3, 3},
                     .inner = parallel::InnerOrder::channels_last});
    for (int i = 0; i < 24; ++i) {
      specs.push_back(
          {.name = "matrix" + std::to_string(i), .shape = {elements * 3 / 8 / 24 / 256, 256}});
      specs.push_back({.name = "bias" + std::to_string(i), .shape = {256}});
    }
    std::int64_t own = 0;
    for (const parallel::ParameterSpec& spec : specs) {
      const std::int64_t begin = spec.rows() * rank / size, end = spec.rows() * (rank + 1) / size;
      slices.push_back({"model/" + spec.name, &spec, begin, end});
      own += (end - begin) * spec.row_elements();
    }
    values.resize(static_cast<std::size_t>(own));
    float* next = values.data();
    for (TensorSlice& piece : slices) {
      piece.data = next;
      next += (piece.row_end - piece.row_begin) * piece.spec->row_elements();
    }
  }

  /// Calls body(value, number) with a whole number that is unique within the tensor, up to the
  /// precision of float32.
  template <class Body>
  void for_each(Body&& body) {
    for (const TensorSlice& piece : slices) {
      const std::int64_t first = piece.row_begin * piece.spec->row_elements(),
                         count = (piece.row_end - piece.row_begin) * piece.spec->row_elements();
      for (std::int64_t i = 0; i < count; ++i)
        body(piece.data[i], static_cast<float>((first + i) % 16777213));
    }
  }
  std::int64_t max_reordered_bytes() const {
    return (slices[1].row_end - slices[1].row_begin) * specs[1].row_elements() * 4;
  }
};

/// Returns a figure of this process in bytes, from /proc/self/status.
std::int64_t status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

/// Returns the maximum growth of resident memory during `body`, in bytes; nothing if the kernel
/// cannot report it.
template <class Body>
std::optional<std::int64_t> growth(Body&& body) {
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;
  const bool can_tell = reset.good();
  const std::int64_t before = status("VmRSS");
  body();
  return can_tell ? std::optional(status("VmHWM") - before) : std::nullopt;
}

void expect_growth(const char* what, std::optional<std::int64_t> bytes, std::int64_t limit) {
  if (!bytes) GTEST_SKIP() << "this kernel keeps no peak of resident memory that can be reset";
  EXPECT_LE(*bytes, limit) << what;
  const std::int64_t largest = world().all_reduce(*bytes, comm::Reduction::max);
  if (world().rank() == 0 && std::getenv("TRIREME_TEST_STATE_BYTES") != nullptr)
    std::cout << what << ": at most " << largest << " bytes a rank\n";
}

TEST(CheckpointMemory, WritingTakesThePlanAndReadingAtMostItsStaging) {
  const test::SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  StateShare mine(state_bytes(), world().rank(), world().size());
  mine.for_each([](float& value, float number) { value = number; });
  const comm::Communicator group = world().split(world().rank() < readers ? 0 : -1, world().rank());
  {
    // The libraries allocate their own memory here, once.
    StateShare small(1 << 20, world().rank(), world().size());
    write(world(), folder.path + "/first.h5", small.slices, {});
    if (world().rank() < readers) {
      StateShare share(1 << 20, group.rank(), group.size());
      read(group, folder.path + "/first.h5", share.slices);
    }
  }
  const std::int64_t reordered = std::min(reordered_rows_bytes, mine.max_reordered_bytes());

  const std::optional<std::int64_t> at_once =
      growth([&] { write(world(), path, mine.slices, {}); });
  expect_growth("written at once, beside the values", at_once, reordered + block + overhead_bytes);

  Arena planned({DeviceKind::meta, 0}, "plan", 0);
  allocate_background_memory(planned, mine.slices);
  std::optional<Arena> memory;
  const std::optional<std::int64_t> background = growth([&] {
    memory.emplace(Device{DeviceKind::cpu, 0}, "copy", planned.peak_bytes());
    StateCopy copy(*memory, {});
    BackgroundWrite(world(), path, mine.slices, {}, copy).finish();
  });
  EXPECT_EQ(memory->peak_bytes(), planned.peak_bytes());
  EXPECT_LE(planned.peak_bytes(), static_cast<std::int64_t>(mine.values.size() * sizeof(float)) +
                                      std::max(reordered, block) + 4096);
  expect_growth("written by a thread, beside the values", background,
                planned.peak_bytes() + overhead_bytes);
  memory.reset();

  std::optional<std::int64_t> reading = 0;
  std::int64_t wrong = 0, limit = 0;
  if (world().rank() < readers) {
    StateShare share(state_bytes(), group.rank(), group.size());
    std::fill(share.values.begin(), share.values.end(), -1.0f);
    reading = growth([&] { read(group, path, share.slices); });
    limit = std::min(reordered_rows_bytes, share.max_reordered_bytes()) + overhead_bytes;
    share.for_each([&](float value, float number) { wrong += value != number; });
  }
  EXPECT_EQ(wrong, 0);
  expect_growth("read by five ranks, beside the values", reading, limit);
}

}  // namespace
}  // namespace trireme::checkpoint
