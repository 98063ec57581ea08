#include "trireme/checkpoint/checkpoint.hpp"

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/mpi.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/file.hpp"
#include "unit/checkpoint/example.hpp"

namespace trireme::checkpoint {
namespace {

const comm::Communicator& world() { return test_environment().world(); }

/// One folder for all ranks.
struct SharedFolder {
  std::string path;
  SharedFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-mpi-checkpoint-XXXXXX").string();
    if (world().rank() == 0) name = ::mkdtemp(name.data());
    path = world().broadcast(name, 0);
  }
  ~SharedFolder() {
    world().barrier();
    if (world().rank() == 0) std::filesystem::remove_all(path);
  }
};

/// Which rows this rank holds: equal shares, or in turns all of a tensor.
enum class Split { rows, tensors };

std::vector<Piece> share_of(Example& example, Split split, int rank, int size) {
  std::vector<Piece> pieces = example.pieces();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Piece& piece = pieces[i];
    const std::int64_t rows = piece.spec->rows();
    if (split == Split::rows) {
      piece.row_begin = rows * rank / size;
      piece.row_end = rows * (rank + 1) / size;
    } else if (static_cast<int>(i) % size != rank) {
      piece.row_end = 0;
    }
    piece.data += piece.row_begin * piece.spec->row_elements();
  }
  return pieces;
}

void expect_same(const Example& read, const Example& written) {
  for (std::size_t i = 0; i < written.values.size(); ++i) EXPECT_EQ(read.values[i], written.values[i]) << written.paths[i];
}

Example blank() {
  Example example;
  for (std::vector<float>& values : example.values) std::fill(values.begin(), values.end(), -1.0f);
  return example;
}

struct Roundtrip : testing::TestWithParam<Split> {};
INSTANTIATE_TEST_SUITE_P(Splits, Roundtrip, testing::Values(Split::rows, Split::tensors));

TEST_P(Roundtrip, WhatAnySplitWritesAllReadWhole) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  Example example;
  example.add("model", "many_rows", {3001, 7}, parallel::InnerOrder::plain);
  example.add("model", "wide", {3, 1500000}, parallel::InnerOrder::plain);  // 18 MB: several blocks of the seal
  const WriteReport report = write(world(), path, share_of(example, GetParam(), world().rank(), world().size()), example_info());
  EXPECT_EQ(report.bytes, static_cast<std::int64_t>(std::filesystem::file_size(path)));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(verify_checkpoint(path), "");

  Example found = blank();
  found.add("model", "many_rows", {3001, 7}, parallel::InnerOrder::plain);
  found.add("model", "wide", {3, 1500000}, parallel::InnerOrder::plain);
  for (std::vector<float>& values : found.values) std::fill(values.begin(), values.end(), -1.0f);
  read(world(), path, found.pieces());
  expect_same(found, example);
}

TEST(Checkpoint, WhatIsWrittenWholeIsReadInParts) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  Example example, found = blank();
  std::vector<Piece> pieces = example.pieces();
  if (world().rank() != 0) {
    for (Piece& piece : pieces) piece.row_end = 0;
  }
  write(world(), path, pieces, example_info());
  read(world(), path, share_of(found, Split::rows, world().rank(), world().size()));
  const std::vector<Piece> mine = share_of(found, Split::rows, world().rank(), world().size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto first = mine[i].data - found.values[i].data(), count = (mine[i].row_end - mine[i].row_begin) * mine[i].spec->row_elements();
    for (std::int64_t k = 0; k < static_cast<std::int64_t>(found.values[i].size()); ++k) {
      const auto at = static_cast<std::size_t>(k);
      EXPECT_EQ(found.values[i][at], k >= first && k < first + count ? example.values[i][at] : -1.0f);
    }
  }
}

TEST(Checkpoint, TheDigestIsThatOfOneRank) {
  const SharedFolder folder;
  Example example;
  const WriteReport together =
      write(world(), folder.path + "/together.h5", share_of(example, Split::rows, world().rank(), world().size()), example_info());
  const WriteReport alone =
      write(comm::Communicator(), folder.path + "/alone" + std::to_string(world().rank()) + ".h5", example.pieces(), example_info());
  EXPECT_EQ(together.digest, alone.digest);
}

TEST(Checkpoint, SaysOfItselfWhatRankZeroSaid) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  Example example;
  Info info = example_info();
  info.state["elapsed_s"] = 1.0 + world().rank();  // a clock differs from rank to rank, and the file is one
  info.deck += std::string(static_cast<std::size_t>(100000 * (1 + world().rank())), '#');
  write(world(), path, share_of(example, Split::rows, world().rank(), world().size()), info);
  const Contents contents = read_contents(path);
  const Info expected = example_info();
  EXPECT_TRUE(contents.sealed);
  EXPECT_EQ(contents.info.step, expected.step);
  EXPECT_EQ(contents.info.epoch, expected.epoch);
  EXPECT_EQ(contents.info.epoch_samples, expected.epoch_samples);
  EXPECT_EQ(contents.info.samples, expected.samples);
  EXPECT_EQ(contents.info.updates, expected.updates);
  EXPECT_EQ(contents.info.deck, expected.deck + std::string(100000, '#'));
  EXPECT_EQ(contents.info.classes, expected.classes);
  for (const auto& [key, value] : expected.state) EXPECT_EQ(contents.info.state.at(key), value) << key;
  EXPECT_EQ(std::get<double>(contents.info.state.at("elapsed_s")), 1.0);
  EXPECT_EQ(contents.tensors.size(), example.paths.size());
}

TEST(Checkpoint, RowsHeldTwiceOrNotAtAllAreRefusedOnAllRanks) {
  const SharedFolder folder;
  Example example;
  std::vector<Piece> pieces = share_of(example, Split::rows, world().rank(), world().size());
  if (world().rank() == world().size() - 1) pieces[1].row_end -= 1;
  EXPECT_THROW(write(world(), folder.path + "/a.h5", pieces, example_info()), Failure);
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/a.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/a.h5.tmp"));
}

TEST(Checkpoint, AMissingFolderIsAnErrorOnAllRanks) {
  Example example;
  EXPECT_THROW(write(world(), "/nonexistent/folder/a.h5", share_of(example, Split::rows, world().rank(), world().size()), example_info()), Failure);
}

TEST(Checkpoint, AnErrorOfOneRankIsThrownOnAll) {
  const SharedFolder folder;
  Example example, found = blank();
  write(world(), folder.path + "/a.h5", share_of(example, Split::rows, world().rank(), world().size()), example_info());
  std::vector<Piece> pieces = found.pieces();
  if (world().rank() == world().size() - 1) pieces[0].path = "model/missing.weight";
  EXPECT_THROW(read(world(), folder.path + "/a.h5", pieces), InputError);
}

}  // namespace
}  // namespace trireme::checkpoint
