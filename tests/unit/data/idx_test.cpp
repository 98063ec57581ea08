// SPDX-License-Identifier: Apache-2.0
//
// Reading of idx files, plain and compressed, intact and damaged.
#include "data/sources/idx.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

std::string idx_file(std::vector<std::uint32_t> extents, std::size_t bytes) {
  std::string text{0, 0, 8, static_cast<char>(extents.size())};
  for (const std::uint32_t extent : extents) {
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(extent >> shift);
  }
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i * 37 + i / 256);
  return text;
}

void compress_to(const std::string& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  gzclose(file);
}

// Returns all items but one: reads two parts and skips one item between them.
std::string read_through(const std::string& path) {
  IdxReader reader(path, IdxReader::Items::images);
  const auto item = static_cast<std::size_t>(reader.item_bytes()),
             items = static_cast<std::size_t>(reader.shape()[0]);
  std::string first(item, ' '), rest(item * (items - 2), ' ');
  reader.read(std::as_writable_bytes(std::span(first)));
  reader.skip(1);
  reader.read(std::as_writable_bytes(std::span(rest)));
  reader.finish();
  return first + rest;
}

TEST(Idx, PlainAndCompressedFilesGiveTheSameItems) {
  const test::ScratchFolder folder;
  const std::string text = idx_file({40, 5, 3}, 600);
  io::replace_file(folder / "plain", text);
  compress_to(folder / "packed.gz", text);
  const std::string expected = text.substr(16, 15) + text.substr(16 + 30);
  EXPECT_EQ(read_through(folder / "plain"), expected);
  EXPECT_EQ(read_through(folder / "packed.gz"), expected);
}

TEST(Idx, ImagesMayHaveChannels) {
  const test::ScratchFolder folder;
  const std::string text = idx_file({10, 5, 4, 3}, 600);
  io::replace_file(folder / "color", text);
  EXPECT_EQ(IdxReader(folder / "color", IdxReader::Items::images).shape(),
            (std::vector<std::int64_t>{10, 5, 4, 3}));
  EXPECT_EQ(read_through(folder / "color"), text.substr(20, 60) + text.substr(20 + 120));
}

TEST(Idx, ImagesWithChannelsFirstAreRefused) {
  const test::ScratchFolder folder;
  const auto refusal = [&](std::vector<std::uint32_t> extents) {
    std::size_t bytes = 1;
    for (const std::uint32_t extent : extents) bytes *= extent;
    io::replace_file(folder / "images", idx_file(extents, bytes));
    return message_of<InputError>([&] { IdxReader(folder / "images", IdxReader::Items::images); });
  };
  for (const std::uint32_t channels : {1u, 2u, 3u, 13u}) {
    const std::string message = refusal({4, channels, 2 * channels + 4, 2 * channels + 5});
    EXPECT_THAT(message, HasSubstr("images: its header says extents [4, "));
    EXPECT_THAT(message, HasSubstr("images.transpose(0, 2, 3, 1)"));
  }
  EXPECT_EQ(refusal({4, 3, 8, 4}), "");     // at most 4 channels
  EXPECT_EQ(refusal({4, 17, 34, 34}), "");  // more than 16 rows
  EXPECT_EQ(refusal({4, 1, 5}), "");
}

TEST(Idx, ASmallCompressedFileOfMillionsOfImagesIsRefused) {
  const test::ScratchFolder folder;
  constexpr std::uint32_t count = 2 << 20;
  compress_to(folder / "images.gz", idx_file({count, 1, 1}, 0) + std::string(count, '\0'));
  compress_to(folder / "labels.gz", idx_file({count}, 0) + std::string(count, '\0'));
  EXPECT_THAT([&] { catalog_idx({folder / "images.gz", folder / "labels.gz"}); },
              ThrowsMessage<InputError>(HasSubstr(
                  "images.gz: its header says 2097152 images, but the compressed file has "
                  "only")));
}

TEST(Idx, WrongFilesAreRefusedWithNameAndFault) {
  const test::ScratchFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& text) {
    io::replace_file(folder / name, text);
    const std::string message = message_of<InputError>([&] { read_through(folder / name); });
    EXPECT_THAT(message, HasSubstr(folder / name));
    return message;
  };
  const std::string whole = idx_file({40, 5, 3}, 600);
  EXPECT_THAT(refusal("short", whole.substr(0, 500)), HasSubstr("cut short"));
  EXPECT_THAT(refusal("long", whole + "x"), HasSubstr("longer than its header"));
  EXPECT_THAT(refusal("header", whole.substr(0, 9)), HasSubstr("cut short"));
  EXPECT_THAT(refusal("empty", ""), HasSubstr("cut short"));
  EXPECT_THAT(refusal("labels", idx_file({600}, 600)), HasSubstr("00 00 08 01"));
  EXPECT_THAT(refusal("floats", std::string("\0\0\x0d\x03", 4) + whole.substr(4)),
              HasSubstr("00 00 0d 03"));
  EXPECT_THAT(refusal("huge", idx_file({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, 600)),
              HasSubstr("are invalid"));
  EXPECT_THAT(refusal("flat", idx_file({40, 15}, 600)), HasSubstr("00 00 08 04"));
  EXPECT_THAT(refusal("channels", idx_file({1, 1, 1, 1025}, 1025)),
              HasSubstr("1 to 1024 channels"));
  EXPECT_THAT(refusal("zero", idx_file({40, 0, 3}, 0)), HasSubstr("are invalid"));
  EXPECT_THAT([&] { IdxReader(folder / "none", IdxReader::Items::images); },
              ThrowsMessage<InputError>(HasSubstr("none")));
}

TEST(Idx, WrongCompressedFilesAreRefusedWithNameAndFault) {
  const test::ScratchFolder folder;
  const std::string path = folder / "packed.gz";
  const auto refusal = [&](const std::string& text, auto&& damage) {
    compress_to(path, text);
    std::string packed = io::read_text_file(path);
    damage(packed);
    io::replace_file(path, packed);
    const std::string message = message_of<InputError>([&] { read_through(path); });
    EXPECT_THAT(message, HasSubstr(path));
    return message;
  };
  const auto nothing = [](std::string&) {};
  EXPECT_THAT(refusal(idx_file({40, 5, 3}, 500), nothing), HasSubstr("cut short"));
  EXPECT_THAT(refusal(idx_file({40, 5, 3}, 700), nothing),
              HasSubstr("more bytes than its header says"));
  EXPECT_THAT(refusal(idx_file({1u << 24, 5, 3}, 600), nothing), HasSubstr("cannot hold"));
  EXPECT_THAT(refusal(idx_file({40, 5, 3}, 600),
                      [](std::string& packed) { packed.resize(packed.size() / 2); }),
              HasSubstr("cut short"));
  EXPECT_THAT(refusal(idx_file({40, 5, 3}, 600),
                      [](std::string& packed) { packed.resize(packed.size() - 3); }),
              HasSubstr("damaged"));
  EXPECT_THAT(refusal(idx_file({40, 5, 3}, 600),
                      [](std::string& packed) { packed[packed.size() - 6] ^= 1; }),
              HasSubstr("damaged"));
}

}  // namespace
}  // namespace trireme::data
