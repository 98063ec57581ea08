#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

/// An image in memory: uint8 [height, width, channels].
struct Image {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::byte> pixels;
  std::int64_t row_bytes() const { return width * channels; }
};

/// Pixels of the largest image that decode_image() accepts: 8192 x 8192. A progressive JPEG may
/// have half as many.
inline constexpr std::int64_t max_decoded_pixels = std::int64_t{1} << 26;
/// Its longest side, which is also the longest of a JPEG.
inline constexpr std::int64_t max_decoded_side = 65535;

/// Decodes a JPEG or PNG file to RGB, recognized by its first bytes.
///
/// As Pillow's Image.open(file).convert("RGB"): gray and palette images become RGB, transparency is
/// dropped, CMYK is converted without a color profile, of 16 bits the upper 8 remain, and the
/// orientation in EXIF is ignored. JPEG is decoded with libjpeg-turbo's exact transform. Throws
/// InputError without a file name if the bytes are neither, are damaged or cut short, or describe
/// an image above max_decoded_pixels.
Image decode_image(std::span<const std::byte> file);

/// Returns the image scaled so that it covers height x width, and cut to its center.
///
/// The scaled image has the smallest size that covers; its longer side is rounded down. It is
/// interpolated as in Pillow's resize(BILINEAR): a triangle filter whose width grows when the image
/// shrinks, horizontally and then vertically, rounded to 8 bits after each. The cut begins at
/// round((scaled - wanted) / 2).
Image resize_to_cover(const Image& image, std::int64_t height, std::int64_t width);

}  // namespace trireme::data
