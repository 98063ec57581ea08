// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of device memory, with an emulated device: files and values must equal those of host
// memory, for synchronous and background writes, and while training changes the values.

#include <algorithm>
#include <cstdint>
#include <future>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint_slices.hpp"
#include "support/shared_folder.hpp"
#include "support/verify_checkpoint.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::checkpoint {
namespace {

using test::SharedFolder;

/// The values of tensor slices in the memory of an emulated device, which the host must not access
/// directly.
class DeviceSlices {
 public:
  explicit DeviceSlices(std::vector<TensorSlice> slices)
      : host_(slices),
        pieces_(std::move(slices)),
        stream_(device),
        memory_(device, "pieces", bytes()) {
    for (TensorSlice& piece : pieces_) {
      const Tensor rows = memory_.allocate(DType::float32, {elements(piece)});
      piece.data = elements(piece) > 0 ? rows.as<float>() : nullptr;
      piece.stream = stream_;
    }
    copy(host_, pieces_);
  }
  const std::vector<TensorSlice>& slices() const { return pieces_; }
  const Stream& stream() const { return stream_; }
  void fill(std::uint8_t byte) const {
    const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(memory_.used_bytes()), byte);
    for (const TensorSlice& piece : pieces_)
      copy_bytes(stream_, piece.data, bytes.data(),
                 static_cast<std::size_t>(elements(piece)) * sizeof(float));
  }
  /// Copies the device values to the host slices.
  void copy_back() const { copy(pieces_, host_); }

  static constexpr Device device{DeviceKind::emulated, 0};

 private:
  static std::int64_t elements(const TensorSlice& piece) {
    return (piece.row_end - piece.row_begin) * (piece.partition == nullptr
                                                    ? piece.spec->row_elements()
                                                    : piece.partition->row_elements());
  }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const TensorSlice& piece : pieces_)
      sum += elements(piece) * static_cast<std::int64_t>(sizeof(float)) + Arena::alignment;
    return sum;
  }
  void copy(const std::vector<TensorSlice>& from, const std::vector<TensorSlice>& to) const {
    for (std::size_t i = 0; i < from.size(); ++i)
      copy_bytes(stream_, to[i].data, from[i].data,
                 static_cast<std::size_t>(elements(from[i])) * sizeof(float));
  }
  std::vector<TensorSlice> host_, pieces_;
  OwnedStream stream_;
  Arena memory_;
};

TEST(DeviceCheckpoint, TheFileIsTheHostsHoweverItIsWritten) {
  const SharedFolder folder;
  const std::string host = folder.path + "/host.h5", device = folder.path + "/device.h5",
                    background = folder.path + "/background.h5";
  for (const int tensor : divisors(world().size())) {
    SplitModel model(world().rank(), world().size(), tensor);
    model.initialize();
    DeviceSlices there(model.slices(true));
    const WriteReport expected = write(world(), host, model.slices(true), example_info());
    EXPECT_EQ(write(world(), device, there.slices(), example_info()).digest, expected.digest);
    EXPECT_EQ(first_difference(device, host), -1) << "tensor " << tensor;

    Arena planned({DeviceKind::meta, 0}, "plan", 0);
    allocate_background_memory(planned, there.slices());
    Arena memory({DeviceKind::cpu, 0}, "copy", planned.peak_bytes(), Pages::pinned);
    StateCopy copy(memory, there.stream());
    BackgroundWrite writing(world(), background, there.slices(), example_info(), copy);
    copy.wait_before_update();
    there.fill(7);  // training continues
    EXPECT_EQ(writing.finish().digest, expected.digest);
    EXPECT_EQ(first_difference(background, host), -1) << "tensor " << tensor;
  }
}

/// The write thread pauses until the host has enqueued changes of the values and the device has
/// executed them.
TEST(DeviceCheckpoint, LaterChangesFollowTheCopies) {
  const SharedFolder folder;
  const std::string host = folder.path + "/host.h5", background = folder.path + "/background.h5";
  SplitModel model(world().rank(), world().size(), 1);
  model.initialize();
  const DeviceSlices there(model.slices(true));
  const std::uint64_t digest = write(world(), host, model.slices(true), example_info()).digest;
  Arena memory({DeviceKind::cpu, 0}, "copy", 16 << 20, Pages::pinned);
  StateCopy copy(memory, there.stream());
  std::promise<void> changed;
  const std::shared_future<void> values_changed = changed.get_future();
  const PhaseObserver listener([&](const char* phase) {
    if (std::string(phase) == "checkpoint-copy") values_changed.wait();
  });
  BackgroundWrite writing(world(), background, there.slices(), example_info(), copy);
  copy.wait_before_update();
  there.fill(7);
  synchronize(there.stream());
  changed.set_value();
  EXPECT_EQ(writing.finish().digest, digest);
  EXPECT_EQ(first_difference(background, host), -1);
}

TEST(DeviceCheckpoint, ReadsTheValuesOfTheHost) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  SplitModel alone(0, 1, 1);
  alone.initialize();
  if (world().rank() == 0) write(comm::Communicator(), path, alone.slices(true), example_info());
  world().barrier();
  for (const int tensor : divisors(world().size())) {
    SplitModel expected(world().rank(), world().size(), tensor),
        found(world().rank(), world().size(), tensor);
    expected.initialize();
    DeviceSlices there(found.slices(false));
    read(world(), path, there.slices());
    there.copy_back();
    EXPECT_EQ(found.values, expected.values) << "tensor " << tensor;
  }
  damage(path, alone.values[0], 13 * 7 - 1);
  SplitModel model(world().rank(), world().size(), 1);
  const DeviceSlices there(model.slices(false));
  EXPECT_THROW(read(world(), path, there.slices()), InputError);
}

TEST(DeviceCheckpoint, MoreThanTheStagingBufferGoesInRounds) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  // 68 MB: one round of 64 MiB and a second one.
  example.add("model", "wide", {17000, 1000}, parallel::InnerOrder::plain);
  example.add("model", "filters", {501, 33, 3, 3}, parallel::InnerOrder::channels_last);
  ExampleModel found = example;
  for (std::size_t i = 0; i < found.values.size(); ++i)
    found.values[i].assign(found.values[i].size(), -1.0f);
  const auto all_on_rank_0 = [](ExampleModel& of) {
    std::vector<TensorSlice> slices = of.slices();
    for (TensorSlice& piece : slices) piece.row_end = world().rank() == 0 ? piece.row_end : 0;
    return slices;
  };
  {
    const DeviceSlices there(all_on_rank_0(example));
    write(world(), path, there.slices(), example_info());
  }
  EXPECT_EQ(verify_checkpoint(path), "");
  const DeviceSlices there(all_on_rank_0(found));
  read(world(), path, there.slices());
  there.copy_back();
  if (world().rank() == 0) expect_same(found, example);
}

TEST(DeviceCheckpoint, AValueThatIsNotFiniteIsRefused) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example, found = blank();
  example.values[1].back() = std::numeric_limits<float>::quiet_NaN();
  write(world(), path, share_of(example, Split::rows, world().rank(), world().size()),
        example_info());
  const DeviceSlices there(share_of(found, Split::rows, world().rank(), world().size()));
  EXPECT_THROW(read(world(), path, there.slices()), InputError);
}

TEST(DeviceCheckpoint, AllRowsCanBeSetToZero) {
  ExampleModel example, zeros = blank();
  for (std::vector<float>& values : zeros.values) values.assign(values.size(), 0.0f);
  const DeviceSlices there(example.slices());
  set_to_zero(there.slices());
  there.copy_back();
  expect_same(example, zeros);
}

/// State in pinned host memory that a device updates: copies to it may still be in flight, and are
/// complete once the write has waited for them.
TEST(DeviceCheckpoint, PinnedMemoryIsReadWhenItsCopiesAreMade) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5", expected_path = folder.path + "/expected.h5";
  ExampleModel example;
  write(world(), expected_path, share_of(example, Split::rows, world().rank(), world().size()),
        example_info());
  const DeviceSlices there(share_of(example, Split::rows, world().rank(), world().size()));
  for (const bool in_background : {false, true}) {
    std::vector<TensorSlice> slices = there.slices();
    Arena pinned({}, "offloaded", 1 << 20, Pages::pinned),
        memory({}, "copy", 16 << 20, Pages::pinned);
    for (TensorSlice& piece : slices) {
      const Tensor home = pinned.allocate(
          DType::float32, {(piece.row_end - piece.row_begin) * piece.spec->row_elements()});
      // Not waited for.
      copy_bytes(piece.stream, home.data, piece.data, static_cast<std::size_t>(home.bytes()));
      piece.data = home.as<float>();
    }
    StateCopy copy(memory, there.stream());
    if (in_background)
      BackgroundWrite(world(), path, slices, example_info(), copy).finish();
    else
      write(world(), path, slices, example_info());
    EXPECT_EQ(first_difference(path, expected_path), -1);
  }
}

}  // namespace
}  // namespace trireme::checkpoint
