// SPDX-License-Identifier: Apache-2.0
//
// Decoding, scaling and cataloging of images: right pixels, and thousands of damaged files.
//
// system.shard_image_sources compares with Pillow. Here damaged bytes are tried, which sanitizers
// watch: each must give an image or InputError.
#include "trireme/data/images/image.hpp"

#include <array>
#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "image_archive.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// JPEG files of 24 x 16 pixels (10 x, 15 y, 6 (x + y)), made with Pillow at quality 50.
constexpr const char* baseline_jpeg =
    "ffd8ffe000104a46494600010100000100010000ffdb004300100b0c0e0c0a100e0d0e1211101318281a1816"
    "16183123251d283a333d3c3933383740485c4e404457453738506d51575f626768673e4d71797064785c6567"
    "63ffdb0043011112121815182f1a1a2f63423842636363636363636363636363636363636363636363636363"
    "6363636363636363636363636363636363636363636363636363ffc000110800100018030122000211010311"
    "01ffc40017000003010000000000000000000000000000040506ffc400171000030100000000000000000000"
    "00000000030461ffc400160101010100000000000000000000000000040205ffc4001c110001030500000000"
    "0000000000000000000103040221223161ffda000c03010002110311003f00cb261c1f4c38574c383e98709a"
    "1c0f1a7748e98700d3261c0108e58dd6e763b3ffd9";
constexpr const char* progressive_jpeg =
    "ffd8ffe000104a46494600010100000100010000ffdb004300100b0c0e0c0a100e0d0e1211101318281a1816"
    "16183123251d283a333d3c3933383740485c4e404457453738506d51575f626768673e4d71797064785c6567"
    "63ffdb0043011112121815182f1a1a2f63423842636363636363636363636363636363636363636363636363"
    "6363636363636363636363636363636363636363636363636363ffc200110800100018030122000211010311"
    "01ffc400160001010100000000000000000000000000040005ffc40016010101010000000000000000000000"
    "0000030104ffda000c03010002100310000001ca42d10c769c9bbfffc4001610000300000000000000000000"
    "00000000000102ffda00080101000105025028140a050283ffc4001711000301000000000000000000000000"
    "0000020321ffda0008010301013f019dc5be1fffc40017110100030000000000000000000000000000010212"
    "ffda0008010201013f018b34ffc40014100100000000000000000000000000000020ffda0008010100063f02"
    "5fffc40014100100000000000000000000000000000020ffda0008010100013f215fff00ffda000c03010002"
    "000300000010a01fffc400161101010100000000000000000000000000005161ffda0008010301013f10d943"
    "ffc400161101010100000000000000000000000000000121ffda0008010201013f10530fffc4001510010100"
    "000000000000000000000000000061ffda0008010100013f10820820820fffd9";

std::string from_hex(const char* hex) {
  std::string bytes;
  for (; *hex != 0; hex += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex, 2), nullptr, 16));
  return bytes;
}

Image decode(const std::string& file) { return decode_image(std::as_bytes(std::span(file))); }

/// Changes some bytes of a file, or cuts it, as the number `round` says.
std::string damaged(std::string file, std::uint64_t round) {
  const auto draw = [&](std::uint64_t i) { return mix64(round * 31 + i); };
  const std::uint64_t changes = 1 + draw(0) % 4;
  for (std::uint64_t i = 1; i <= changes; ++i)
    file[draw(2 * i) % file.size()] = static_cast<char>(draw(2 * i + 1));
  if (draw(100) % 4 == 0) file.resize(draw(101) % file.size());
  return file;
}

TEST(Image, APngHasTheStoredPixels) {
  const std::string pixels = pixels_of(5 * 4 * 3);
  const Image image = decode(png_file(5, 4, pixels));
  EXPECT_EQ(image.height, 4);
  EXPECT_EQ(image.width, 5);
  EXPECT_EQ(image.channels, 3);
  EXPECT_EQ(std::memcmp(image.pixels.data(), pixels.data(), pixels.size()), 0);
}

TEST(Image, JpegsHaveThePixelsOfPillow) {
  for (const char* hex : {baseline_jpeg, progressive_jpeg}) {
    const Image image = decode(from_hex(hex));
    ASSERT_EQ(image.height, 16);
    ASSERT_EQ(image.width, 24);
    const auto pixel = [&](std::size_t at) {
      std::vector<int> values;
      for (std::size_t c = 0; c < 3; ++c)
        values.push_back(std::to_integer<int>(image.pixels[3 * at + c]));
      return values;
    };
    EXPECT_EQ(pixel(0), (std::vector{11, 0, 1}));
    EXPECT_EQ(pixel(16 * 24 - 1), (std::vector{222, 222, 230}));
  }
}

TEST(Image, OfItsOwnSizeStaysAndAConstantOneStaysConstant) {
  Image image = decode(png_file(6, 5, pixels_of(6 * 5 * 3)));
  EXPECT_EQ(resize_to_cover(image, 5, 6).pixels, image.pixels);
  std::fill(image.pixels.begin(), image.pixels.end(), std::byte{77});
  for (const auto& [height, width] : {std::pair(1, 1), std::pair(40, 3), std::pair(3, 40)}) {
    const Image scaled = resize_to_cover(image, height, width);
    EXPECT_EQ(scaled.pixels,
              std::vector<std::byte>(static_cast<std::size_t>(height * width * 3), std::byte{77}));
  }
}

TEST(Image, DamagedFilesGiveAnImageOrAnError) {
  std::int64_t images = 0, errors = 0;
  for (const std::string& file : {png_file(9, 7, pixels_of(9 * 7 * 3)), from_hex(baseline_jpeg),
                                  from_hex(progressive_jpeg)}) {
    for (std::uint64_t round = 0; round < 3000; ++round) {
      try {
        const Image image = decode(damaged(file, round));
        EXPECT_EQ(std::ssize(image.pixels), image.height * image.row_bytes());
        ++images;
      } catch (const InputError& error) {
        EXPECT_STRNE(error.what(), "");
        ++errors;
      }
    }
  }
  EXPECT_GT(images, 100);
  EXPECT_GT(errors, 1000);
}

TEST(Image, PartsOfDamagedFilesFitOrAreAnError) {
  std::int64_t parts = 0, errors = 0;
  for (const std::string& file : {png_file(9, 7, pixels_of(9 * 7 * 3)), from_hex(baseline_jpeg),
                                  from_hex(progressive_jpeg)}) {
    for (std::uint64_t round = 0; round < 3000; ++round) {
      const std::string bytes = damaged(file, round);
      PixelBox box;
      try {
        const ImagePart part = decode_part(
            {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
            [&](ImageExtents image) {
              const std::int64_t top = static_cast<std::int64_t>(round) % image.height,
                                 left = static_cast<std::int64_t>(round / 7) % image.width;
              return box = {top, left, 1 + (image.height - top - 1) / 2,
                            1 + (image.width - left - 1) / 3};
            },
            round % 2 == 0 ? std::nullopt : std::optional(ImageExtents{1, 1}));
        const Image& pixels = part.image;
        ASSERT_EQ(std::ssize(pixels.pixels), pixels.height * pixels.row_bytes());
        const FractionalBox at = part.locate(box);
        ASSERT_TRUE(at.top >= 0 && at.top + at.height <= static_cast<double>(pixels.height));
        ASSERT_TRUE(at.left >= 0 && at.left + at.width <= static_cast<double>(pixels.width));
        ++parts;
      } catch (const InputError&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(parts, 100);
  EXPECT_GT(errors, 1000);
}

TEST(Catalog, OfADamagedArchiveHasOnlyBytesOfTheFile) {
  const test::ScratchFolder folder;
  const std::string png = png_file(3, 3, pixels_of(27));
  const std::string whole = tar_file({{"a/1.png", png},
                                      {"b/2.png", png},
                                      {"b/2.txt", "dog\n"},
                                      {"c/in.tar", tar_file({{"x/3.png", png}})}});
  const std::string path = folder / "a.tar";
  std::int64_t catalogs = 0, errors = 0;
  for (std::uint64_t round = 0; round < 1500; ++round) {
    const std::string file = round == 0 ? whole : damaged(whole, round);
    put_file(path, file);
    try {
      const ImageCatalog catalog = catalog_tar({path});
      ++catalogs;
      for (const CatalogEntry& entry : catalog.entries)
        if (catalog.compressed.empty() && entry.problem.empty()) {
          EXPECT_LE(entry.offset + entry.bytes, std::ssize(file));
        }
      if (round == 0) {
        EXPECT_EQ(catalog.entries.size(), 3u);
      }
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.tar"));
      ++errors;
    }
  }
  EXPECT_GT(catalogs, 100);
  EXPECT_GT(errors, 100);
}

TEST(Catalog, ASmallArchiveOfLongClassesIsRefused) {
  const test::ScratchFolder folder;
  // 1500 texts of 60 KB are packed to 100 KB.
  std::vector<std::pair<std::string, std::string>> files = {
      {"0.png", png_file(3, 3, pixels_of(27))}};
  for (int i = 0; i < 1500; ++i)
    files.emplace_back(fmt::format("{}.cls", i), std::string(60'000, 'x'));
  const std::string path = folder / "a.tar.gz", archive = tar_file(files);
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, archive.data(), static_cast<unsigned>(archive.size())),
            static_cast<int>(archive.size()));
  gzclose(file);
  EXPECT_THAT(
      [&] { catalog_tar({path}); },
      ThrowsMessage<InputError>(HasSubstr("of memory, but the compressed archive has only")));
  put_file(folder / "a.tar", archive);
  EXPECT_EQ(catalog_tar({folder / "a.tar"}).entries.size(), 1u);
  // A hard link costs a header, but may have a long text.
  files = {{"0.cls", std::string(60'000, 'x')}};
  for (int i = 1; i < 2000; ++i) files.emplace_back(fmt::format("{}.cls", i), "");
  std::string links = tar_file(files);
  for (std::size_t at = 512 + 60'416; at + 1024 < links.size(); at += 512) {
    links[at + 156] = '1';
    links.replace(at + 157, 5, "0.cls");
    std::memset(&links[at + 148], ' ', 8);
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(links[at + i]);
    std::snprintf(&links[at + 148], 8, "%06o", sum);
  }
  put_file(folder / "links.tar", links);
  EXPECT_THAT([&] { catalog_tar({folder / "links.tar"}); },
              ThrowsMessage<InputError>(HasSubstr("of memory, but the archive has only")));
}

TEST(Catalog, OfDamagedMegatronFilesIsRefusedOrFits) {
  const test::ScratchFolder folder;
  std::string index("MMIDIDX\0\0", 9);
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) index += static_cast<char>(value >> (8 * i));
  };
  put(1, 8);
  put(8, 1);  // uint16
  put(3, 8);
  put(3, 8);
  for (const std::uint64_t length : {4, 2, 6}) put(length, 4);
  for (const std::uint64_t position : {0, 8, 12}) put(position, 8);
  for (const std::uint64_t begin : {0, 2, 3}) put(begin, 8);
  put_file(folder / "a.bin", std::string(24, 1));
  std::int64_t errors = 0;
  for (std::uint64_t round = 0; round < 3000; ++round) {
    put_file(folder / "a.idx", round == 0 ? index : damaged(index, round));
    try {
      const std::optional<TokenFile> file = megatron_token_file(folder / "a.bin");
      if (!file) continue;  // without the magic it is no index
      EXPECT_EQ(file->count * file->token_bytes, 24);
      for (const std::int64_t end : file->document_ends) EXPECT_LE(end, file->count);
    } catch (const InputError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace trireme::data
