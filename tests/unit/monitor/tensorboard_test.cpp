// SPDX-License-Identifier: Apache-2.0
//
// TensorBoard event files, decoded here independently of the writer.

#include "trireme/monitor/tensorboard.hpp"

#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "monitor/crc32c.hpp"
#include "scratch_folder.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::monitor {
namespace {

using testing::HasSubstr;

template <class T>
T take(std::string& bytes) {
  T value{};
  EXPECT_GE(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
  bytes.erase(0, sizeof value);
  return value;
}

std::uint64_t take_varint(std::string& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(take<char>(bytes));
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

/// Fields of a protocol buffer message by number. Fixed and varint values are stored as bits.
struct Message {
  std::map<unsigned, std::string> text;
  std::map<unsigned, std::uint64_t> bits;
};

Message decode(std::string bytes) {
  Message message;
  while (!bytes.empty()) {
    const std::uint64_t key = take_varint(bytes);
    const auto field = static_cast<unsigned>(key >> 3);
    switch (key & 7) {
      case 0: message.bits[field] = take_varint(bytes); break;
      case 1: message.bits[field] = take<std::uint64_t>(bytes); break;
      case 5: message.bits[field] = take<std::uint32_t>(bytes); break;
      case 2: {
        const std::uint64_t length = take_varint(bytes);
        message.text[field] = bytes.substr(0, length);
        bytes.erase(0, length);
        break;
      }
      default: ADD_FAILURE() << "wire type " << (key & 7); return message;
    }
  }
  return message;
}

std::uint32_t unmask(std::uint32_t masked) { return std::rotl(masked - 0xA282EAD8u, 15); }

/// Returns the payloads of a TFRecord file and checks every checksum.
std::vector<std::string> records(std::string bytes) {
  std::vector<std::string> payloads;
  while (!bytes.empty()) {
    const std::string head = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    EXPECT_EQ(unmask(take<std::uint32_t>(bytes)), crc32c(head));
    EXPECT_LE(length, bytes.size());
    payloads.push_back(bytes.substr(0, length));
    bytes.erase(0, length);
    EXPECT_EQ(unmask(take<std::uint32_t>(bytes)), crc32c(payloads.back()));
  }
  return payloads;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path().string());
  return files;
}

TEST(TensorBoard, Crc32cOfPublishedVectors) {
  EXPECT_EQ(crc32c("123456789"),
            // The check value in the catalogue of CRC algorithms.
            0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);  // RFC 3720, B.4
}

TEST(TensorBoard, WrittenRecordsAreReadBack) {
  const ScratchFolder folder;
  const double before = wall_seconds();
  const std::string long_tag(300, 'x');  // its length needs two bytes as a varint
  {
    TensorBoard board(folder / "tensorboard");  // creates the folder
    board.write_scalar("train/loss", 1, 2.5);
    TensorBoard moved = std::move(board);
    moved.write_scalar(long_tag, 123456789, -0.125);
    TensorBoard none;
    none.write_scalar("train/loss", 1, 1);
  }
  const std::vector<std::string> files = files_in(folder / "tensorboard");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(files[0], HasSubstr("/events.out.tfevents."));
  const std::vector<std::string> payloads = records(contents(files[0]));
  ASSERT_EQ(payloads.size(), 3u);
  const Message version = decode(payloads[0]);
  EXPECT_EQ(version.text.at(3), "brain.Event:2");
  const double time = std::bit_cast<double>(version.bits.at(1));
  EXPECT_GE(time, before);
  EXPECT_LE(time, wall_seconds());

  const auto value = [&](std::size_t record) {
    return decode(decode(decode(payloads[record]).text.at(5)).text.at(1));
  };
  EXPECT_EQ(decode(payloads[1]).bits.at(2), 1u);
  EXPECT_EQ(value(1).text.at(1), "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(value(1).bits.at(2))), 2.5f);
  EXPECT_EQ(decode(payloads[2]).bits.at(2), 123456789u);
  EXPECT_EQ(value(2).text.at(1), long_tag);
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(value(2).bits.at(2))), -0.125f);
}

TEST(TensorBoard, EveryStartHasAFileOfItsOwn) {
  const ScratchFolder folder;
  for (int start = 0; start < 3; ++start) TensorBoard board(folder.path());
  EXPECT_EQ(files_in(folder.path()).size(), 3u) << "even within one second";
}

TEST(TensorBoard, BeginsTheNextFileWhenItsFileIsRemoved) {
  const ScratchFolder folder;
  const std::string events = folder / "tensorboard";
  TensorBoard board(events);
  EXPECT_FALSE(board.reopen_if_removed());
  std::filesystem::remove_all(events);
  EXPECT_TRUE(board.reopen_if_removed());
  EXPECT_EQ(files_in(events).size(), 1u);
  std::filesystem::remove(files_in(events)[0]);
  EXPECT_TRUE(board.reopen_if_removed());
  board.write_scalar("train/loss", 1, 2.5);
  EXPECT_EQ(files_in(events).size(), 1u);
  EXPECT_FALSE(TensorBoard().reopen_if_removed());
  std::filesystem::remove_all(folder.path());
  EXPECT_THROW(board.reopen_if_removed(), Failure);
  EXPECT_FALSE(std::filesystem::exists(folder.path())) << "the run folder does not come back";
}

}  // namespace
}  // namespace trireme::monitor
