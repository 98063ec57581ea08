// SPDX-License-Identifier: Apache-2.0
//
// Untrusted checkpoints, without a seal, as h5py writes them: readable if valid, rejected with a
// message if not.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "example.hpp"
#include "support/verify_checkpoint.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Writes a checkpoint as h5py would: no seal, no digests, float64 values.
void write_untrusted(const std::string& path, ExampleModel& example, std::int64_t complete = 1) {
  io::Hdf5File file = io::Hdf5File::create(path, {});
  file.write_attribute("/", "format", std::string("trireme-checkpoint"));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "complete", complete);
  file.write_attribute("/", "step", std::int64_t{7});
  const Shape& shape = example.specs[1].shape;
  const std::vector<double> wide(example.values[1].begin(), example.values[1].end());
  file.create_dataset("model/fc.weight", io::Hdf5Number::float64,
                      std::span(shape.begin(), shape.end()))
      .write_all(io::Hdf5Number::float64, wide.data());
  file.close();
}

TEST(UntrustedFile, IsReadWithoutSealAndDigests) {
  const ScratchFolder folder;
  ExampleModel example;
  write_untrusted(folder / "foreign.h5", example);
  EXPECT_EQ(io::check_seal(folder / "foreign.h5"), "no seal");
  EXPECT_EQ(verify_checkpoint(folder / "foreign.h5"), "no checksums");
  const Contents contents = read_contents(folder / "foreign.h5");
  EXPECT_FALSE(contents.sealed);
  EXPECT_EQ(contents.info.step, 7);
  ASSERT_EQ(contents.tensors.size(), 1u);
  EXPECT_FALSE(contents.tensors[0].has_digest);

  std::vector<float> values(example.values[1].size());
  const std::vector<TensorSlice> slices{
      {"model/fc.weight", &example.specs[1], 0, example.specs[1].rows(), values.data()}};
  read(comm::Communicator(), folder / "foreign.h5", slices);
  EXPECT_EQ(values, example.values[1]);  // float32 -> float64 -> float32 is exact
}

TEST(UntrustedFile, HalfWrittenOrOfAnotherKindIsRefused) {
  const ScratchFolder folder;
  ExampleModel example;
  write_untrusted(folder / "half.h5", example, 0);
  EXPECT_THROW(read_contents(folder / "half.h5"), InputError);
  io::Hdf5File::create(folder / "other.h5", {})
      .write_attribute("/", "format", std::string("trireme-shard"));
  EXPECT_THROW(read_contents(folder / "other.h5"), InputError);
  EXPECT_THROW(read_contents(folder / "missing.h5"), InputError);
}

TEST(UntrustedFile, CountsBelowZeroAreRefused) {
  const ScratchFolder folder;
  for (const std::string name : {"step", "epoch", "epoch_samples", "samples", "updates"}) {
    io::Hdf5File file = io::Hdf5File::create(folder / "below.h5", {});
    file.write_attribute("/", "format", std::string("trireme-checkpoint"));
    file.write_attribute("/", "version", std::int64_t{1});
    file.write_attribute("/", "complete", std::int64_t{1});
    file.create_group("optimizer");
    file.write_attribute(name == "updates" ? "optimizer" : "/", name, std::int64_t{-1});
    file.close();
    EXPECT_THAT([&] { read_contents(folder / "below.h5"); },
                ThrowsMessage<InputError>(HasSubstr("attribute " + name)));
  }
}

TEST(UntrustedFile, MissingAndMisshapenTensorsAreNamed) {
  const ScratchFolder folder;
  ExampleModel example;
  write_untrusted(folder / "foreign.h5", example);
  const auto message_of = [&](const TensorSlice& slice) -> std::string {
    try {
      read(comm::Communicator(), folder / "foreign.h5", std::span(&slice, 1));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message_of(example.slices()[0]), HasSubstr("model/conv1.weight"));
  parallel::ParameterSpec other = example.specs[1];
  other.shape = {13, 11};
  std::vector<float> values(143);
  const std::string message = message_of({"model/fc.weight", &other, 0, 13, values.data()});
  EXPECT_THAT(message, HasSubstr("[11, 13]"));
  EXPECT_THAT(message, HasSubstr("[13, 11]"));
}

/// Writes one tensor with its digest plus `wrong`, without a seal. Returns the file offset of its
/// first value.
std::int64_t write_with_digest(const std::string& path, ExampleModel& example,
                               std::uint64_t wrong) {
  io::Hdf5File file = io::Hdf5File::create(path, {});
  file.write_attribute("/", "format", std::string("trireme-checkpoint"));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "complete", std::int64_t{1});
  const Shape& shape = example.specs[1].shape;
  std::int64_t place = -1;
  {
    const io::Hdf5Dataset dataset = file.create_dataset("model/fc.weight", io::Hdf5Number::float32,
                                                        std::span(shape.begin(), shape.end()));
    dataset.write_all(io::Hdf5Number::float32, example.values[1].data());
    place = dataset.offset();
  }
  file.write_attribute("model/fc.weight", "digest",
                       digest_rows(example.specs[1], parallel::TensorPartition(example.specs[1]), 0,
                                   11, example.values[1].data()) +
                           wrong);
  file.close();
  return place;
}

TEST(UntrustedFile, AChangedByteUnderADigestIsSeenOnReadAndVerify) {
  const ScratchFolder folder;
  ExampleModel example;
  const std::string path = folder / "digest.h5";
  const std::int64_t place = write_with_digest(path, example, 0);
  ASSERT_EQ(verify_checkpoint(path), "no seal");
  export_safetensors(path, folder / "exported.safetensors");
  EXPECT_TRUE(std::filesystem::exists(folder / "exported.safetensors"));
  std::vector<float> values(example.values[1].size());
  const std::vector<TensorSlice> slices{
      {"model/fc.weight", &example.specs[1], 0, 11, values.data()}};
  read(comm::Communicator(), path, slices);
  const io::File file(path, io::File::Mode::update);
  const auto bytes = static_cast<std::int64_t>(4 * values.size());
  for (std::int64_t at = 0; at < bytes; ++at) {
    char before = 0;
    file.read_at(place + at, &before, 1);
    const char changed = static_cast<char>(before ^ static_cast<char>(1 + at % 255));
    file.write_at(place + at, &changed, 1);
    EXPECT_THAT(verify_checkpoint(path), HasSubstr("model/fc.weight")) << at;
    EXPECT_THROW(read(comm::Communicator(), path, slices), InputError) << at;
    file.write_at(place + at, &before, 1);
  }
  EXPECT_EQ(verify_checkpoint(path), "no seal");
}

TEST(UntrustedFile, AWrongDigestIsSeenOnReadingAndVerifying) {
  const ScratchFolder folder;
  ExampleModel example;
  write_with_digest(folder / "wrong.h5", example, 1);
  EXPECT_THAT(verify_checkpoint(folder / "wrong.h5"), HasSubstr("model/fc.weight"));
  std::vector<float> values(example.values[1].size());
  const std::vector<TensorSlice> slices{
      {"model/fc.weight", &example.specs[1], 0, 11, values.data()}};
  EXPECT_THROW(read(comm::Communicator(), folder / "wrong.h5", slices), InputError);
}

}  // namespace
}  // namespace trireme::checkpoint
