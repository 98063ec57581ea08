// SPDX-License-Identifier: Apache-2.0
//
// Encodes images as JPEG with libjpeg-turbo and as PNG with libpng, for `trireme shard --encode`.
//
// Both libraries report errors with longjmp, so the functions that call them hold no object with a
// destructor; see image_decode.cpp. Equal pixels give equal bytes with one version of a library.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <jpeglib.h>
#include <png.h>

#include "jpeg_errors.hpp"
#include "png_errors.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/images/image.hpp"

namespace trireme::data {
namespace {

// zlib's default: the next levels are much slower for 1 to 2 % fewer bytes.
constexpr int png_compression = 6;

/// A JPEG encoder for one image.
class JpegEncoder {
 public:
  JpegEncoder() {
    jpeg_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = fail;
  }
  ~JpegEncoder() {
    jpeg_destroy_compress(&jpeg_);
    // Before the end libjpeg may have freed it to make it larger.
    if (is_complete_) std::free(file_);
  }
  JpegEncoder(const JpegEncoder&) = delete;

  const char* error() const { return errors_.message; }
  const std::byte* file() const { return reinterpret_cast<const std::byte*>(file_); }
  std::size_t bytes() const { return bytes_; }

  /// Returns false after an error.
  bool encode(const ImageView& image, int quality) {
    if (setjmp(errors_.on_error) != 0) return false;
    jpeg_create_compress(&jpeg_);
    jpeg_mem_dest(&jpeg_, &file_, &bytes_);
    jpeg_.image_width = static_cast<JDIMENSION>(image.width);
    jpeg_.image_height = static_cast<JDIMENSION>(image.height);
    jpeg_.input_components = static_cast<int>(image.channels);
    jpeg_.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&jpeg_);
    jpeg_set_quality(&jpeg_, quality, TRUE);
    jpeg_start_compress(&jpeg_, TRUE);
    while (jpeg_.next_scanline < jpeg_.image_height) {
      // libjpeg does not write to the row.
      JSAMPROW row = reinterpret_cast<JSAMPROW>(const_cast<std::byte*>(
          image.pixels + static_cast<std::int64_t>(jpeg_.next_scanline) * image.row_bytes()));
      jpeg_write_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_compress(&jpeg_);
    is_complete_ = true;
    return true;
  }

 private:
  jpeg_compress_struct jpeg_{};
  JpegErrors errors_{};
  unsigned char* file_ = nullptr;  // from malloc() of libjpeg
  unsigned long bytes_ = 0;
  bool is_complete_ = false;
};

/// A PNG encoder for one image.
class PngEncoder {
 public:
  explicit PngEncoder(std::vector<std::byte>& file) : file_(file) {
    png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, &errors_, take_png_error,
                                   ignore_png_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    ensure(info_ != nullptr, "libpng {} cannot be used: out of memory, or another version",
           PNG_LIBPNG_VER_STRING);
  }
  ~PngEncoder() { png_destroy_write_struct(&png_, &info_); }
  PngEncoder(const PngEncoder&) = delete;

  const char* error() const { return errors_.message; }

  /// Returns false after an error.
  bool encode(const ImageView& image) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_write_fn(png_, this, append, nullptr);
    png_set_compression_level(png_, png_compression);
    png_set_IHDR(png_, info_, static_cast<png_uint_32>(image.width),
                 static_cast<png_uint_32>(image.height), 8,
                 image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png_, info_);
    for (std::int64_t row = 0; row < image.height; ++row)
      png_write_row(png_,
                    reinterpret_cast<png_const_bytep>(image.pixels + row * image.row_bytes()));
    png_write_end(png_, info_);
    return true;
  }

 private:
  /// No exception may pass through libpng.
  static bool try_append(std::vector<std::byte>& file, std::span<const std::byte> bytes) noexcept {
    try {
      file.insert(file.end(), bytes.begin(), bytes.end());
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  static void append(png_structp png, png_bytep data, png_size_t bytes) {
    auto* const encoder = static_cast<PngEncoder*>(png_get_io_ptr(png));
    if (!try_append(encoder->file_, {reinterpret_cast<const std::byte*>(data), bytes}))
      png_error(png, "out of memory");
  }

  std::vector<std::byte>& file_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  PngErrors errors_;
};

}  // namespace

std::vector<std::byte> encode_jpeg(const ImageView& image, int quality) {
  TRIREME_EXPECT(image.channels == 1 || image.channels == 3);
  JpegEncoder encoder;
  const bool encoded = encoder.encode(image, quality);
  ensure(encoded, "an image of {} x {} pixels cannot be encoded as JPEG: {}", image.height,
         image.width, encoder.error());
  return {encoder.file(), encoder.file() + encoder.bytes()};
}

std::vector<std::byte> encode_png(const ImageView& image) {
  TRIREME_EXPECT(image.channels == 1 || image.channels == 3);
  std::vector<std::byte> file;
  PngEncoder encoder(file);
  const bool encoded = encoder.encode(image);
  ensure(encoded, "an image of {} x {} pixels cannot be encoded as PNG: {}", image.height,
         image.width, encoder.error());
  return file;
}

}  // namespace trireme::data
