// SPDX-License-Identifier: Apache-2.0
//
// Decodes JPEG with libjpeg-turbo and PNG with libpng.
//
// The bytes are untrusted. Both libraries report errors with longjmp, so the functions that call
// them hold no object with a destructor; results are allocated outside. The size that the header
// declares is checked before pixels are allocated. Memory that the libraries take for themselves is
// limited, as is the work for one image: the scans of a progressive JPEG, and no arithmetic coding.
// The chunks of a PNG that hold no pixels are not unpacked.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include <jpeglib.h>
#include <png.h>

// Behind jpeglib.h: the numbers of its messages depend on JPEG_LIB_VERSION.
#include <jerror.h>

#include "jpeg_errors.hpp"
#include "png_errors.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/images/image.hpp"
#include "trireme/io/file_form.hpp"

namespace trireme::data {
namespace {

using BoxOfExtents = std::function<PixelBox(ImageExtents)>;

constexpr std::int64_t rgb_channels = 3, cmyk_channels = 4;
constexpr int full_resolution = 8;  // in eighths
// A progressive JPEG needs all its coefficients in memory: 2 bytes for each of up to 4 channels.
constexpr std::int64_t max_progressive_pixels = max_decoded_pixels / 2;
constexpr long max_jpeg_memory_bytes = 8 * max_progressive_pixels + (16 << 20);
// Scans of a JPEG; usual are 10. Each is a pass over the image, up to 0.13 s for the largest one.
constexpr std::int64_t max_jpeg_scans = 100, max_scan_pixels = 20 * max_progressive_pixels;

/// Throws InputError if an image is larger than allowed.
void check_extents(std::int64_t height, std::int64_t width,
                   std::int64_t max_pixels = max_decoded_pixels) {
  validate(height > 0 && width > 0 && std::max(height, width) <= max_decoded_side &&
               height <= max_pixels / width,
           "declares {} x {} pixels; images of sides up to {} and up to {} pixels are read{}",
           height, width, max_decoded_side, max_pixels,
           max_pixels < max_decoded_pixels ? " if they are progressive" : "");
}

Image new_image(std::int64_t height, std::int64_t width, std::int64_t channels) {
  Image image{height, width, channels, {}};
  image.pixels.resize(static_cast<std::size_t>(height * image.row_bytes()));
  return image;
}

// ---- JPEG ----

/// Called for warnings: a file that is cut short is an error, other damage is tolerated as in other
/// readers.
void take_warning(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) fail(jpeg);
}

/// Returns the scans that an image may have.
std::int64_t scans_allowed(std::int64_t pixels) {
  return std::min(max_jpeg_scans, max_scan_pixels / std::max<std::int64_t>(pixels, 1));
}

/// Ends the decoding of an image with too many scans. libjpeg calls it at least once for each scan
/// that it reads.
void count_scans(j_common_ptr jpeg) {
  const auto* const decoder = reinterpret_cast<j_decompress_ptr>(jpeg);
  const std::int64_t allowed =
      scans_allowed(std::int64_t{decoder->image_height} * decoder->image_width);
  if (decoder->input_scan_number <= allowed) return;
  auto* const errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  errors->manager.msg_code = JMSG_NOMESSAGE;  // none of libjpeg's
  std::snprintf(
      errors->message, sizeof errors->message,
      "has %u x %u pixels in more than %d scans, which take too long to decode; `jpegtran OLD "
      "> NEW` writes a file of one scan",
      decoder->image_height, decoder->image_width, static_cast<int>(allowed));
  std::longjmp(errors->on_error, 1);
}

/// A JPEG decoder for one file in memory. The functions return false after an error.
class JpegDecoder {
 public:
  explicit JpegDecoder(std::span<const std::byte> file) : file_(file) {
    jpeg_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = fail;
    errors_.manager.emit_message = take_warning;
    progress_.progress_monitor = count_scans;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }
  JpegDecoder(const JpegDecoder&) = delete;

  const char* error() const { return errors_.message; }
  /// Returns what is wrong with the pixels after an error.
  std::string problem() const {
    const bool of_libjpeg = errors_.manager.msg_code != JMSG_NOMESSAGE;
    return (of_libjpeg ? "is a damaged JPEG file: " : "") + printable(errors_.message);
  }
  std::int64_t height() const { return jpeg_.image_height; }
  std::int64_t width() const { return jpeg_.image_width; }
  std::int64_t channels() const { return jpeg_.out_color_components; }
  bool is_progressive() { return jpeg_has_multiple_scans(&jpeg_) != 0; }
  std::int64_t max_pixels() {
    return is_progressive() ? max_progressive_pixels : max_decoded_pixels;
  }

  bool read_header() {
    if (setjmp(errors_.on_error) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.mem->max_memory_to_use = max_jpeg_memory_bytes;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
    jpeg_read_header(&jpeg_, TRUE);
    if (jpeg_.arith_code) {
      // It takes 7 times as long as Huffman coding, and hardly any program writes it.
      std::snprintf(errors_.message, sizeof errors_.message,
                    "arithmetic coding is not supported; `jpegtran OLD > NEW` converts it without "
                    "loss");
      return false;
    }
    const bool inks = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_.out_color_components = inks ? cmyk_channels : rgb_channels;
    return true;
  }
  /// Begins to decode at a resolution; the columns of `box`, at this resolution, grow to whole
  /// blocks.
  bool start(int eighths, PixelBox& box) {
    if (setjmp(errors_.on_error) != 0) return false;
    jpeg_.scale_num = static_cast<unsigned>(eighths);
    jpeg_.scale_denom = full_resolution;
    jpeg_start_decompress(&jpeg_);
    if (box.width < std::int64_t{jpeg_.output_width}) {
      auto left = static_cast<JDIMENSION>(box.left), columns = static_cast<JDIMENSION>(box.width);
      jpeg_crop_scanline(&jpeg_, &left, &columns);
      box.left = left;
      box.width = columns;
    }
    return true;
  }
  /// Reads the rows of the box.
  bool read_pixels(const PixelBox& box, std::byte* pixels) {
    if (setjmp(errors_.on_error) != 0) return false;
    if (box.top > 0) jpeg_skip_scanlines(&jpeg_, static_cast<JDIMENSION>(box.top));
    const auto end = static_cast<JDIMENSION>(box.top + box.height);
    while (jpeg_.output_scanline < end) {
      JSAMPROW row = reinterpret_cast<JSAMPROW>(pixels + (jpeg_.output_scanline - box.top) *
                                                             box.width * channels());
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    if (end < jpeg_.output_height)
      jpeg_abort_decompress(&jpeg_);
    else
      jpeg_finish_decompress(&jpeg_);  // finds what is wrong behind the last row
    return true;
  }

 private:
  std::span<const std::byte> file_;
  jpeg_decompress_struct jpeg_{};
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
};

/// Returns value * factor / 255, rounded.
int scale_by(int value, int factor) {
  const int product = value * factor + 128;
  return ((product >> 8) + product) >> 8;
}

/// Converts CMYK to RGB without a color profile. JPEG files store CMYK inverted, as Adobe does.
Image from_cmyk(const Image& inks) {
  Image image = new_image(inks.height, inks.width, rgb_channels);
  const std::byte* in = inks.pixels.data();
  for (std::size_t at = 0; at < image.pixels.size(); at += rgb_channels, in += cmyk_channels) {
    const int white = std::to_integer<int>(in[3]);
    for (std::size_t c = 0; c < rgb_channels; ++c)
      image.pixels[at + c] =
          static_cast<std::byte>(white - scale_by(255 - std::to_integer<int>(in[c]), white));
  }
  return image;
}

/// Reads the header of a JPEG or PNG file. Throws InputError.
template <class Decoder>
void read_image_header(Decoder& decoder, const char* format) {
  const bool has_header = decoder.read_header();
  validate(has_header, "is no {} file that can be read: {}", format, printable(decoder.error()));
  check_extents(decoder.height(), decoder.width(), decoder.max_pixels());
}

/// Returns a box with the pixels around it that colors of half the resolution are interpolated
/// from.
PixelBox with_neighbors(const PixelBox& box, ImageExtents image) {
  constexpr std::int64_t margin = 4;
  const std::int64_t top = std::max<std::int64_t>(box.top - margin, 0),
                     left = std::max<std::int64_t>(box.left - margin, 0);
  return {top, left, std::min(box.top + box.height + margin, image.height) - top,
          std::min(box.left + box.width + margin, image.width) - left};
}

/// Returns the pixels of an image of a lower resolution of which a rectangle has a part.
PixelBox at_resolution(const PixelBox& box, std::int64_t eighths) {
  const auto first = [&](std::int64_t begin) { return begin * eighths / full_resolution; };
  const auto end = [&](std::int64_t the_end) {
    return (the_end * eighths + full_resolution - 1) / full_resolution;
  };
  const std::int64_t top = first(box.top), left = first(box.left);
  return {top, left, end(box.top + box.height) - top, end(box.left + box.width) - left};
}

ImagePart decode_jpeg(std::span<const std::byte> file, const BoxOfExtents& box_of,
                      std::optional<ImageExtents> smallest) {
  JpegDecoder decoder(file);
  read_image_header(decoder, "JPEG");
  const ImageExtents extents{decoder.height(), decoder.width()};
  const PixelBox wanted = box_of(extents);
  const int eighths = smallest ? resolution_eighths(wanted, *smallest) : full_resolution;
  const PixelBox whole = at_resolution({0, 0, extents.height, extents.width}, eighths);
  PixelBox box = with_neighbors(at_resolution(wanted, eighths), {whole.height, whole.width});
  // libjpeg smooths the blocks of a progressive file that lacks scans, beyond all margins.
  if (decoder.is_progressive()) box = whole;
  const bool has_started = decoder.start(eighths, box);
  validate(has_started, "{}", decoder.problem());
  Image image = new_image(box.height, box.width, decoder.channels());
  const bool has_pixels = decoder.read_pixels(box, image.pixels.data());
  validate(has_pixels, "{}", decoder.problem());
  return {image.channels == cmyk_channels ? from_cmyk(image) : std::move(image), eighths, box.top,
          box.left};
}

// ---- PNG ----

/// A PNG decoder for one file in memory. The functions return false after an error.
class PngDecoder {
 public:
  explicit PngDecoder(std::span<const std::byte> file) : file_(file) {
    png_ =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, &errors_, take_png_error, ignore_png_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    ensure(info_ != nullptr, "libpng {} cannot be used: out of memory, or another version",
           PNG_LIBPNG_VER_STRING);
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;

  const char* error() const { return errors_.message; }
  std::int64_t height() const { return png_get_image_height(png_, info_); }
  std::int64_t width() const { return png_get_image_width(png_, info_); }
  std::int64_t max_pixels() const { return max_decoded_pixels; }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // check_extents() limits the pixels
    // Texts and color profiles are neither unpacked nor kept: a small file could fill gigabytes.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_read_fn(png_, this, copy_next);
    png_read_info(png_, info_);
    return true;
  }
  bool read_pixels(std::byte* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // Whatever is stored becomes RGB of 8 bits.
    png_set_strip_16(png_);
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);  // allocates rows
    if (png_get_channels(png_, info_) != rgb_channels || png_get_bit_depth(png_, info_) != 8)
      png_error(png_, "its form is not known");
    const std::size_t row_bytes = png_get_rowbytes(png_, info_);
    for (int pass = 0; pass < passes; ++pass) {
      for (std::int64_t row = 0; row < height(); ++row)
        png_read_row(
            png_, reinterpret_cast<png_bytep>(pixels) + static_cast<std::size_t>(row) * row_bytes,
            nullptr);
    }
    return true;
  }

 private:
  static void copy_next(png_structp png, png_bytep out, png_size_t bytes) {
    auto* const decoder = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (bytes > decoder->file_.size() - decoder->position_) png_error(png, "the file is cut short");
    std::memcpy(out, decoder->file_.data() + decoder->position_, bytes);
    decoder->position_ += bytes;
  }

  std::span<const std::byte> file_;
  std::size_t position_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  PngErrors errors_;
};

Image decode_png(std::span<const std::byte> file) {
  PngDecoder decoder(file);
  read_image_header(decoder, "PNG");
  Image image = new_image(decoder.height(), decoder.width(), rgb_channels);
  const bool has_pixels = decoder.read_pixels(image.pixels.data());
  validate(has_pixels, "is a damaged PNG file: {}", printable(decoder.error()));
  return image;
}

enum class ImageFormat { jpeg, png };

/// Returns the format of a file by its first bytes. Throws InputError.
ImageFormat format_of(std::span<const std::byte> file) {
  const auto begins_with = [&](std::string_view magic) {
    return file.size() >= magic.size() && std::memcmp(file.data(), magic.data(), magic.size()) == 0;
  };
  if (begins_with("\xff\xd8\xff")) return ImageFormat::jpeg;
  if (begins_with("\x89PNG\r\n\x1a\n")) return ImageFormat::png;
  validate(!file.empty(), "is empty");
  const std::string_view begin(reinterpret_cast<const char*>(file.data()),
                               std::min<std::size_t>(file.size(), io::form_bytes));
  throw InputError("is neither a JPEG nor a PNG file" +
                   io::form_hint(io::recognize_content(begin)));
}

template <class Decoder>
ImageExtents extents_of(std::span<const std::byte> file, const char* format) {
  Decoder decoder(file);
  read_image_header(decoder, format);
  return {decoder.height(), decoder.width()};
}

}  // namespace

FractionalBox ImagePart::locate(const PixelBox& box) const {
  const double scale = static_cast<double>(eighths) / full_resolution;  // exact
  return {static_cast<double>(box.top) * scale - static_cast<double>(top),
          static_cast<double>(box.left) * scale - static_cast<double>(left),
          static_cast<double>(box.height) * scale, static_cast<double>(box.width) * scale};
}

int resolution_eighths(const PixelBox& box, ImageExtents smallest) {
  // The inverse transforms to 3, 5, 6 and 7 pixels have no vector instructions in libjpeg-turbo,
  // and take longer than those to 4 and 8.
  for (const int eighths : {1, 2, 4})
    if (box.height * eighths >= smallest.height * full_resolution &&
        box.width * eighths >= smallest.width * full_resolution)
      return eighths;
  return full_resolution;
}

ImagePart decode_part(std::span<const std::byte> file, const BoxOfExtents& box_of,
                      std::optional<ImageExtents> smallest) {
  if (format_of(file) == ImageFormat::jpeg) return decode_jpeg(file, box_of, smallest);
  Image image = decode_png(file);
  box_of({image.height, image.width});
  return {std::move(image), full_resolution, 0, 0};
}

Image decode_image(std::span<const std::byte> file) {
  return decode_part(
             file,
             [](ImageExtents extents) { return PixelBox{0, 0, extents.height, extents.width}; })
      .image;
}

ImageExtents read_image_extents(std::span<const std::byte> file) {
  return format_of(file) == ImageFormat::jpeg ? extents_of<JpegDecoder>(file, "JPEG")
                                              : extents_of<PngDecoder>(file, "PNG");
}

}  // namespace trireme::data
