// SPDX-License-Identifier: Apache-2.0
//
// The seal: every changed byte, cut and extension of a checkpoint is found, and no restart takes
// such a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "example.hpp"
#include "support/verify_checkpoint.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;

void write_text(const std::string& path, const std::string& text) {
  io::File file(path, io::File::Mode::create);
  file.write_at(0, text.data(), static_cast<std::int64_t>(text.size()));
}

/// A sealed checkpoint and its bytes.
struct SealFixture : testing::Test {
  ScratchFolder folder;
  std::string path = folder / "checkpoint.h5", whole;
  void SetUp() override {
    ExampleModel example;
    write(comm::Communicator(), path, example.slices(), example_info());
    whole = io::read_text_file(path);
    ASSERT_EQ(io::check_seal(path), "");
  }
  std::string check(const std::string& bytes) {
    write_text(path, bytes);
    return io::check_seal(path);
  }
};

// Expects an error message. A changed byte may produce a misleading message, but never none.
void expect_damage(const std::string& found, const std::string& what) {
  EXPECT_TRUE(!found.empty() && found != "no seal") << what << " was not seen: \"" << found << '"';
}

TEST_F(SealFixture, SeesEveryChangedByte) {
  const std::uint64_t key = random_key(1, "seal test");
  const auto change = [&](std::size_t at, std::uint64_t random) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ static_cast<char>(1 + random % 255));
    expect_damage(check(changed), "the change of byte " + std::to_string(at));
  };
  for (std::uint64_t i = 0; i < 200; ++i)
    change(philox(key, i, 0).word[0] % whole.size(), philox(key, i, 0).word[1]);
  for (std::size_t at = 0; at < 40; ++at)
    change(at, at);  // all fields of the seal and some zeros after them
}

TEST_F(SealFixture, VerifyFindsEachOfAThousandChangedBytesAndNoRestartTakesThem) {
  const std::string step_file = folder / step_file_name(1000);
  write_text(step_file, whole);
  ASSERT_EQ(find_newest(comm::Communicator(), folder.path()).path,
            step_file);  // the unchanged file is taken
  const std::uint64_t key = random_key(2, "seal test");
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::size_t at = philox(key, i, 0).word[0] % whole.size();
    const char before = whole[at];
    whole[at] = static_cast<char>(before ^ static_cast<char>(1 + philox(key, i, 0).word[1] % 255));
    write_text(step_file, whole);
    expect_damage(verify_checkpoint(step_file), "the change of byte " + std::to_string(at));
    const CheckpointChoice choice = find_newest(comm::Communicator(), folder.path());
    EXPECT_TRUE(choice.path.empty() && choice.rejected.size() == 1)
        << "taken with byte " << at << " changed";
    whole[at] = before;
  }
}

TEST_F(SealFixture, HeadCheckFindsADamagedSealAndAnotherFileSize) {
  const std::string path = folder / "head.h5";
  const auto head = [&](const std::string& bytes) {
    write_text(path, bytes);
    return io::check_seal(path, io::SealCheck::head);
  };
  EXPECT_EQ(head(whole), "");
  std::string changed = whole;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  EXPECT_EQ(head(changed), "");  // only the check of every byte finds this
  expect_damage(head(whole + "x"), "a byte more");
  expect_damage(head(whole.substr(0, whole.size() - 1)), "a byte less");
  for (std::size_t at = 0; at < 40; ++at) {
    changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    expect_damage(head(changed), "the change of byte " + std::to_string(at));
  }
}

TEST_F(SealFixture, NamesTheBlockAndItsBytes) {
  std::string changed = whole;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  const std::string found = check(changed);
  EXPECT_THAT(found, HasSubstr("block 1 of 1"));
  EXPECT_THAT(found, HasSubstr("to " + std::to_string(whole.size())));
}

TEST_F(SealFixture, SeesCutExtendedAndZeroedFiles) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{100}, std::size_t{512},
        std::size_t{1024}, whole.size() / 2, whole.size() - 1}) {
    expect_damage(check(whole.substr(0, size)), "a cut to " + std::to_string(size));
  }
  expect_damage(check(whole + std::string(1, '\0')), "one more byte");
  expect_damage(check(whole + std::string(4096, '\0')), "one more page");
  expect_damage(check(std::string(whole.size(), '\0')), "zeros");
  std::string zeroed = whole;
  std::fill(zeroed.begin(), zeroed.begin() + 512, '\0');
  expect_damage(check(zeroed), "a zeroed seal");
}

TEST_F(SealFixture, HasTheLayoutThatIsDocumented) {
  EXPECT_EQ(whole.substr(0, 8), "TRIREME1");
  std::uint64_t rest, block, own;
  std::memcpy(&rest, whole.data() + 8, 8);
  const std::size_t begin = whole.size() - rest;
  EXPECT_EQ(whole.substr(begin, 4), "\x89HDF");
  ASSERT_LT(rest, std::size_t{4} << 20);  // a single block
  std::memcpy(&block, whole.data() + 16, 8);
  EXPECT_EQ(block, io::xxh3(whole.data() + begin, rest));
  std::memcpy(&own, whole.data() + 24, 8);
  std::string user_block = whole.substr(0, begin);
  std::memset(user_block.data() + 24, 0, 8);
  EXPECT_EQ(own, io::xxh3(user_block.data(), user_block.size()));
}

TEST_F(SealFixture, VerifyAgreesWithIt) {
  EXPECT_EQ(verify_checkpoint(path), "");
  whole[whole.size() / 2] ^= 1;
  write_text(path, whole);
  EXPECT_NE(verify_checkpoint(path), "");
}

TEST(SealOfManyBlocks, FindsTheBlock) {
  const ScratchFolder folder;
  ExampleModel example;
  example.add("model", "large.weight", {9, 1 << 18},
              parallel::InnerOrder::plain);  // 9 MiB: three blocks
  write(comm::Communicator(), folder / "large.h5", example.slices(), example_info());
  EXPECT_EQ(io::check_seal(folder / "large.h5"), "");
  const io::File file(folder / "large.h5", io::File::Mode::update);
  char byte;
  const std::int64_t at = file.size() - (std::int64_t{5} << 20);
  file.read_at(at, &byte, 1);
  byte = static_cast<char>(byte ^ 16);
  file.write_at(at, &byte, 1);
  EXPECT_THAT(io::check_seal(folder / "large.h5"), HasSubstr("block 2 of 3"));
}

}  // namespace
}  // namespace trireme::checkpoint
