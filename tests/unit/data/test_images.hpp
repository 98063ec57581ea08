// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <jpeglib.h>

#include "trireme/data/images/image_form.hpp"

namespace trireme::data {

/// Returns an image whose pixels depend on `seed`.
inline Image pattern(std::int64_t height, std::int64_t width, std::int64_t channels,
                     std::int64_t seed) {
  Image image{height, width, channels, {}};
  for (std::int64_t row = 0; row < height; ++row)
    for (std::int64_t column = 0; column < width; ++column)
      for (std::int64_t c = 0; c < channels; ++c)
        image.pixels.push_back(
            static_cast<std::byte>(row * 3 + column * 5 + c * 60 + seed * 17 + row * column / 7));
  return image;
}

/// Returns the pixels of a rectangle.
inline std::vector<std::byte> cut(const ImageView& image, const PixelBox& box) {
  std::vector<std::byte> pixels;
  for (std::int64_t row = box.top; row < box.top + box.height; ++row) {
    const std::byte* const begin =
        image.pixels + row * image.row_bytes() + box.left * image.channels;
    pixels.insert(pixels.end(), begin, begin + box.width * image.channels);
  }
  return pixels;
}

/// Returns the form of random resized crops to size x size.
inline ImageForm random_crops(std::int64_t size) {
  return {.kind = ImageForm::Kind::random_resized_crop,
          .size = size,
          .resize = 0,
          .scale = {0.08, 1},
          .ratio = {3.0 / 4, 4.0 / 3},
          .seed = 5};
}

/// Returns a JPEG file whose colors have a resolution below that of the brightness.
inline std::vector<std::byte> jpeg_of(const Image& image, int horizontal, int vertical,
                                      bool progressive) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* file = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &file, &bytes);
  jpeg.image_width = static_cast<JDIMENSION>(image.width);
  jpeg.image_height = static_cast<JDIMENSION>(image.height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg.comp_info[0].h_samp_factor = horizontal;
  jpeg.comp_info[0].v_samp_factor = vertical;
  if (progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<std::byte> pixels = image.pixels;
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row =
        reinterpret_cast<JSAMPROW>(pixels.data() + jpeg.next_scanline * image.row_bytes());
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  const auto* const begin = reinterpret_cast<const std::byte*>(file);
  std::vector<std::byte> copy(begin, begin + bytes);
  jpeg_destroy_compress(&jpeg);
  std::free(file);
  return copy;
}

}  // namespace trireme::data
