// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace trireme::data {

/// An image in memory: uint8 [height, width, channels].
struct Image {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::byte> pixels;
  std::int64_t row_bytes() const { return width * channels; }
};

/// An image in the memory of another object.
struct ImageView {
  std::int64_t height = 0, width = 0, channels = 0;
  const std::byte* pixels = nullptr;

  ImageView() = default;
  ImageView(std::int64_t the_height, std::int64_t the_width, std::int64_t the_channels,
            const std::byte* the_pixels)
      : height(the_height), width(the_width), channels(the_channels), pixels(the_pixels) {}
  ImageView(const Image& image)
      : ImageView(image.height, image.width, image.channels, image.pixels.data()) {}
  std::int64_t row_bytes() const { return width * channels; }
};

/// A rectangle of pixels.
struct PixelBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  bool operator==(const PixelBox&) const = default;
};

/// A rectangle in units of pixels. It may begin and end inside of a pixel.
struct FractionalBox {
  double top = 0, left = 0, height = 0, width = 0;

  FractionalBox() = default;
  FractionalBox(double the_top, double the_left, double the_height, double the_width)
      : top(the_top), left(the_left), height(the_height), width(the_width) {}
  FractionalBox(const PixelBox& box)
      : FractionalBox(static_cast<double>(box.top), static_cast<double>(box.left),
                      static_cast<double>(box.height), static_cast<double>(box.width)) {}
};

/// Height and width of an image.
struct ImageExtents {
  std::int64_t height = 0, width = 0;
  bool operator==(const ImageExtents&) const = default;
};

/// Pixels of the largest image that decode_image() accepts: 8192 x 8192. A progressive JPEG may
/// have half as many.
inline constexpr std::int64_t max_decoded_pixels = std::int64_t{1} << 26;
/// Its longest side.
inline constexpr std::int64_t max_decoded_side = 65535;
/// The longest side of an image that encode_jpeg() takes.
inline constexpr std::int64_t max_encoded_side = 65500;
/// Bytes of the largest JPEG or PNG file that is read. The whole file is held in memory.
inline constexpr std::int64_t max_encoded_bytes = std::int64_t{128} << 20;

/// Decodes a JPEG or PNG file to RGB, recognized by its first bytes.
///
/// As Pillow's Image.open(file).convert("RGB"): gray and palette images become RGB, transparency is
/// dropped, CMYK is converted without a color profile, of 16 bits the upper 8 remain, and the
/// orientation in EXIF is ignored. JPEG is decoded with libjpeg-turbo's exact transform. Throws
/// InputError without a file name if the bytes are neither, are damaged or cut short, or describe
/// an image above max_decoded_pixels.
Image decode_image(std::span<const std::byte> file);

/// A decoded rectangle of an image.
struct ImagePart {
  Image image;
  int eighths = 8;  ///< resolution: a side has eighths / 8 pixels for each pixel of the file
  std::int64_t top = 0, left = 0;  ///< position of its first pixel, at this resolution

  /// Returns the place of the rectangle `box` of the file in `image`.
  FractionalBox locate(const PixelBox& box) const;
};

/// Decodes at least the rectangle `box_of(extents)` of a JPEG or PNG file; `box_of` is called once.
/// The pixels are those of decode_image(). Of a JPEG only the blocks of the rectangle are
/// transformed and converted, so damage behind it is not found. Throws as decode_image().
///
/// With `smallest` a JPEG is decoded at resolution_eighths() of the rectangle: each block of 8 x 8
/// pixels becomes one of eighths x eighths by a smaller inverse transform.
ImagePart decode_part(std::span<const std::byte> file,
                      const std::function<PixelBox(ImageExtents)>& box_of,
                      std::optional<ImageExtents> smallest = std::nullopt);

/// Returns the lowest resolution at which the rectangle `box` of a JPEG has at least the extents
/// `smallest`, in eighths: 1, 2, 4 or 8. It is 8 for a smaller rectangle.
int resolution_eighths(const PixelBox& box, ImageExtents smallest);

/// Returns the extents of a JPEG or PNG file from its header. Throws InputError as decode_image()
/// does, but finds no damage behind the header.
ImageExtents read_image_extents(std::span<const std::byte> file);

/// Returns the luma of an RGB image (ITU-R 601), as Pillow's convert("L"): uint8 [height, width,
/// 1].
Image convert_to_gray(const Image& image);

/// Returns an image as a JPEG file: `quality` 1 to 100, color at half the resolution (4:2:0), as
/// Pillow's save(quality=quality). The image has 1 (gray) or 3 channels (RGB) and sides of at most
/// max_encoded_side pixels.
std::vector<std::byte> encode_jpeg(const ImageView& image, int quality);
/// Returns an image as a PNG file of 8 bits. The image has 1 (gray) or 3 channels (RGB).
std::vector<std::byte> encode_png(const ImageView& image);

/// Scales the rectangle `from` of an image to `scaled` and writes the rectangle `cut` of the result
/// to `out`: uint8 [cut.height, cut.width, channels].
///
/// Interpolates as Pillow's crop(from) and resize(scaled, BILINEAR): a triangle filter whose width
/// grows when the image shrinks, horizontally and then vertically, rounded to 8 bits after each. A
/// pixel that is only partly in the rectangle takes part as a whole one; the filter is centered
/// with respect to the exact rectangle.
void scale_image(const ImageView& image, const FractionalBox& from, ImageExtents scaled,
                 const PixelBox& cut, std::byte* out);

/// Returns the rectangle of height x width in the center of an image: it begins at
/// round((side - wanted) / 2), where halves are rounded to even numbers, as in torchvision.
PixelBox center_box(ImageExtents image, std::int64_t height, std::int64_t width);

/// Returns the extents of an image whose shorter side is scaled to `shorter`. The longer side is
/// rounded down.
ImageExtents scaled_to_shorter(ImageExtents image, std::int64_t shorter);

/// Returns an image scaled to other extents; see scale_image().
Image resize_image(const ImageView& image, ImageExtents scaled);

/// Returns the image scaled so that it covers height x width, and cut to its center.
///
/// The scaled image has the smallest size that covers; its longer side is rounded down. See
/// scale_image() and center_box().
Image resize_to_cover(const ImageView& image, std::int64_t height, std::int64_t width);

}  // namespace trireme::data
