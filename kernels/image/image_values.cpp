// SPDX-License-Identifier: Apache-2.0
//
// Crops, mirrors, standardizes, erases and mixes a batch of stored images of any pixel type and any
// number of channels. Called by prepare_images() (image.cpp), whose own kernels take bytes of 1 to
// 4 channels.
// A row of an output image is a piece. A pixel of the row is found in the stored image, then a
// vector loop goes over its channels. Memory traffic: each used number is read once, and again for
// a partner; y is written once.

#include "image_values.hpp"

#include <type_traits>

#include "image_mixing.hpp"
#include "kernels/space/launch.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {
namespace {

const std::string values_label = "trireme/kernels/prepare_image_values";

// Stored numbers become 0 to 1 (integers), or are used as they are.
KOKKOS_FORCEINLINE_FUNCTION float level_of(std::uint8_t value) {
  return static_cast<float>(value) / 255.0f;
}
KOKKOS_FORCEINLINE_FUNCTION float level_of(std::uint16_t value) {
  return static_cast<float>(value) / 65535.0f;
}
KOKKOS_FORCEINLINE_FUNCTION float level_of(Float16 value) { return to_float(value); }
KOKKOS_FORCEINLINE_FUNCTION float level_of(float value) { return value; }

template <class Stored, class T>
struct PrepareValues {
  PrepareImages<T> args;

  /// A pixel of an output image; x is null outside of the stored image.
  struct Pixel {
    const Stored* x;
    bool erased;
  };

  // Null: 0 and 1.
  KOKKOS_FUNCTION const float* means() const {
    return args.channels <= max_inline_channels ? args.mean : args.statistics;
  }
  KOKKOS_FUNCTION const float* scales() const {
    return args.channels <= max_inline_channels ? args.inverse_std
           : args.statistics == nullptr         ? nullptr
                                                : args.statistics + args.channels;
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return args.width; }

  KOKKOS_FUNCTION void operator()(std::int64_t task, std::int64_t begin, std::int64_t end) const {
    const std::int64_t sample = task / args.height, row = task % args.height,
                       written = args.written_channels;
    const ImageTransform& transform = args.transforms[sample];
    const bool changes = args.erases_or_mixes, mixed = changes && needs_partner(transform, row);
    const ImageTransform& other = args.transforms[mixed ? sample ^ 1 : sample];
    for (std::int64_t column = begin; column < end; ++column) {
      T* const out = args.y + (task * args.width + column) * written;
      const Pixel own = pixel_of(transform, sample, row, column);
      if (mixed && transform.mix == Mix::mixup) {
        mix(own, pixel_of(other, sample ^ 1, row, column), transform.weight, out);
      } else if (mixed && contains(transform.pasted, row, column)) {
        normalize(pixel_of(other, sample ^ 1, row, column), out);
      } else {
        normalize(own, out);
      }
      for (std::int64_t c = args.channels; c < written; ++c) out[c] = from_float<T>(0);
    }
  }

  KOKKOS_FUNCTION Pixel pixel_of(const ImageTransform& transform, std::int64_t sample,
                                 std::int64_t row, std::int64_t column) const {
    const std::int64_t stored_row = transform.row + row,
                       stored_column = transform.column +
                                       (transform.flip != 0 ? args.width - 1 - column : column);
    const bool inside = stored_row >= 0 && stored_row < args.stored_height && stored_column >= 0 &&
                        stored_column < args.stored_width;
    const auto* const images = static_cast<const Stored*>(args.x);
    return {inside ? images + ((sample * args.stored_height + stored_row) * args.stored_width +
                               stored_column) *
                                  args.channels
                   : nullptr,
            args.erases_or_mixes && contains(transform.erased, row, column)};
  }

  /// Returns the standardized value of a channel, rounded to T. Outside of the stored image
  /// integers are black. Of other numbers 0 may be far from all that occur, so there they are the
  /// mean.
  KOKKOS_FORCEINLINE_FUNCTION T value_of(const Stored* x, std::int64_t c, const float* mean,
                                         const float* scale) const {
    if constexpr (!std::is_integral_v<Stored>)
      if (x == nullptr) return from_float<T>(0);
    const float level = x == nullptr ? 0.0f : level_of(x[c]);
    return from_float<T>(mean == nullptr ? level : (level - mean[c]) * scale[c]);
  }

  /// Writes the channels of a pixel.
  KOKKOS_FUNCTION void normalize(const Pixel& pixel, T* out) const {
    const float *mean = means(), *scale = scales();
    if (pixel.erased) {
      for (std::int64_t c = 0; c < args.channels; ++c) out[c] = from_float<T>(0);
      return;
    }
    for (std::int64_t c = 0; c < args.channels; ++c) out[c] = value_of(pixel.x, c, mean, scale);
  }

  /// Writes weight * own + (1 - weight) * partner.
  KOKKOS_FUNCTION void mix(const Pixel& own, const Pixel& partner, float weight, T* out) const {
    const float *mean = means(), *scale = scales(), rest = 1 - weight;
    for (std::int64_t c = 0; c < args.channels; ++c) {
      const float ours = own.erased ? 0.0f : to_float(value_of(own.x, c, mean, scale)),
                  theirs = partner.erased ? 0.0f : to_float(value_of(partner.x, c, mean, scale));
      out[c] = from_float<T>(weight * ours + rest * theirs);
    }
  }
};

template <class Stored, class T>
void run(const Stream& stream, const PrepareImages<T>& args) {
  dispatch(stream, [=](const auto& space) {
    for_each_piece(space, values_label, args.batch * args.height, PrepareValues<Stored, T>{args});
  });
}

}  // namespace

template <class T>
void prepare_image_values(const Stream& stream, const PrepareImages<T>& args) {
  switch (args.pixel_type) {
    case PixelType::uint8: return run<std::uint8_t>(stream, args);
    case PixelType::uint16: return run<std::uint16_t>(stream, args);
    case PixelType::float16: return run<Float16>(stream, args);
    case PixelType::float32: return run<float>(stream, args);
  }
}
template void prepare_image_values(const Stream&, const PrepareImages<float>&);
template void prepare_image_values(const Stream&, const PrepareImages<BFloat16>&);
template void prepare_image_values(const Stream&, const PrepareImages<Float16>&);

}  // namespace trireme::kernels
