// SPDX-License-Identifier: Apache-2.0
//
// Small image files that would cost minutes or gigabytes are refused, or read cheaply.

#include <ctime>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "support/scratch.hpp"
#include "test_images.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

// The processor time that one image may take.
constexpr double max_seconds = 4;

double processor_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

Image decode(const std::string& file) { return decode_image(std::as_bytes(std::span(file))); }

std::string big_endian(std::size_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    text += static_cast<char>(value >> shift);
  return text;
}

std::string segment(char marker, const std::string& content) {
  return std::string{'\xff', marker} + big_endian(content.size() + 2, 2) + content;
}

/// Returns a gray JPEG file of scans without data: the decoder fills all coefficients with 0. The
/// first scan has the means of the blocks, the others all other coefficients again.
/// `frame`: progressive (0xc2), or progressive with arithmetic coding (0xca).
std::string jpeg_of_scans(std::size_t height, std::size_t width, int scans, char frame = '\xc2') {
  const std::string code_of_one_symbol = '\1' + std::string(16, '\0');
  std::string file =
      "\xff\xd8" + segment('\xdb', '\0' + std::string(64, '\1')) +
      segment(frame,
              '\x8' + big_endian(height, 2) + big_endian(width, 2) + std::string("\1\1\x11\0", 4)) +
      segment('\xc4', '\0' + code_of_one_symbol) + segment('\xc4', '\x10' + code_of_one_symbol);
  for (int i = 0; i < scans; ++i)
    file += segment('\xda', std::string(i == 0 ? "\1\1\0\0\0\0" : "\1\1\0\1\x3f\0", 6));
  return file + "\xff\xd9";
}

TEST(CostlyImage, ASmallJpegWithThousandsOfScansIsRefusedWithinSeconds) {
  const std::string file = jpeg_of_scans(500, 65500, 5000);
  EXPECT_LT(file.size(), 64u << 10);
  const double start = processor_seconds();
  EXPECT_THAT([&] { decode(file); },
              ThrowsMessage<InputError>(
                  HasSubstr("has 500 x 65500 pixels in more than 20 scans, which take too long to "
                            "decode; `jpegtran OLD > NEW`")));
  EXPECT_LT(processor_seconds() - start, max_seconds);
}

TEST(CostlyImage, TheScansOfAJpegAreLimitedByItsPixels) {
  struct Case {
    std::size_t height, width;
    int scans;
  };
  for (const auto& [height, width, scans] :
       {Case{64, 64, 100}, {2600, 2560, 100}, {4096, 4096, 40}, {5792, 5792, 20}}) {
    EXPECT_EQ(decode(jpeg_of_scans(height, width, scans)).height, height);
    EXPECT_THAT([&] { decode(jpeg_of_scans(height, width, scans + 1)); },
                ThrowsMessage<InputError>(HasSubstr(fmt::format(
                    "has {} x {} pixels in more than {} scans", height, width, scans))));
  }
}

TEST(CostlyImage, AJpegWithArithmeticCodingIsRefused) {
  const std::string file = jpeg_of_scans(8000, 4000, 1, '\xca');
  for (const std::string& message :
       {message_of<InputError>([&] { decode(file); }),
        message_of<InputError>([&] { read_image_extents(std::as_bytes(std::span(file))); })})
    EXPECT_THAT(message, HasSubstr("arithmetic coding is not supported; `jpegtran OLD > NEW`"));
}

std::string png_chunk(const std::string& kind, const std::string& content) {
  const std::string data = kind + content;
  const auto checksum =
      crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
  return big_endian(content.size(), 4) + data + big_endian(checksum, 4);
}

TEST(CostlyImage, ThePackedTextsOfAPngAreNotUnpacked) {
  // 800 texts of 7 MB in 6 MB of the file. libpng would keep all of them.
  const std::string text(7'000'000, 'x');
  uLongf bytes = compressBound(text.size());
  std::string packed(bytes, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &bytes,
            reinterpret_cast<const Bytef*>(text.data()), text.size(), 9);
  packed.resize(bytes);
  const std::string unpacked = png_chunk("zTXt", std::string("a\0\0", 3) + packed),
                    international = png_chunk("iTXt", std::string("a\0\1\0\0\0", 6) + packed);
  const Image image = pattern(5, 4, 3, 1);
  const std::vector<std::byte> plain = encode_png(image);
  std::string file(reinterpret_cast<const char*>(plain.data()), plain.size());
  constexpr std::size_t behind_header = 33;
  std::string texts;
  for (int i = 0; i < 400; ++i) texts += unpacked + international;
  file.insert(behind_header, texts);
  const double start = processor_seconds();
  EXPECT_EQ(decode(file).pixels, image.pixels);
  EXPECT_LT(processor_seconds() - start, max_seconds);
}

}  // namespace
}  // namespace trireme::data
