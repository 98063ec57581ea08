// SPDX-License-Identifier: Apache-2.0
//
// Crops, mirrors and standardizes a batch of stored images. Called by src/ops/image.cpp at the
// start of the forward pass. The kernels of this file take bytes of 1 to 4 channels; all other
// images are prepared by image_values.cpp.
// Host: a row of an output image is a piece, in blocks of 16 pixels. The bytes of a block are
// gathered into a buffer (0 outside of the stored image, reversed if mirrored), then one vector
// loop converts them. Blocks of 16 pixels repeat the pattern of 1 to 4 channels.
// Device: a thread computes a pack of numbers of a row; neighboring threads read neighboring bytes.
// Erasing and mixing have kernels of their own, so that others do not pay for them: they compute
// the pixels of a sample and of its partner as above, rounded to y's type, and combine them. Memory
// traffic: each used byte is read once, and again for a partner; y is written once.

#include "trireme/kernels/image/image.hpp"

#include <cstring>

#include "image_mixing.hpp"
#include "image_values.hpp"
#include "kernels/space/packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string prepare_label = "trireme/kernels/prepare_images";
const std::string mix_label = "trireme/kernels/prepare_and_mix_images";

constexpr int block_pixels = 16, max_channels = static_cast<int>(max_inline_channels);

template <class T>
struct Prepare {
  PrepareImages<T> args;

  /// Mean and scale of the values of a block.
  struct Pattern {
    float mean[block_pixels * max_channels], scale[block_pixels * max_channels];
  };
  /// The stored row that a row of an output image shows.
  struct Source {
    const std::uint8_t* x;
    std::int64_t column;  // of the first pixel
    bool inside, flip;
  };

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const {
    return (args.width + block_pixels - 1) / block_pixels;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t task, std::int64_t begin, std::int64_t end) const {
    const Pattern pattern = make_pattern();
    const std::int64_t sample = task / args.height;
    const Source source = source_of(args.transforms[sample], sample, task % args.height);
    T* y = args.y + task * args.width * args.written_channels;
    for (std::int64_t block = begin; block < end; ++block)
      prepare_block(source, pattern, block, y + block * block_pixels * args.written_channels);
  }

  KOKKOS_FUNCTION Pattern make_pattern() const {
    const int channels = static_cast<int>(args.channels);
    Pattern pattern;
    for (int i = 0; i < block_pixels * channels; ++i) {
      pattern.mean[i] = args.mean[i % channels];
      pattern.scale[i] = args.inverse_std[i % channels];
    }
    return pattern;
  }

  KOKKOS_FUNCTION Source source_of(const ImageTransform& transform, std::int64_t sample,
                                   std::int64_t image_row) const {
    const std::int64_t row = transform.row + image_row;
    const bool inside = row >= 0 && row < args.stored_height, flip = transform.flip != 0;
    const auto* const images = static_cast<const std::uint8_t*>(args.x);
    return {images + (sample * args.stored_height + (inside ? row : 0)) * args.stored_width *
                         args.channels,
            transform.column + (flip ? args.width - 1 : 0), inside, flip};
  }

  /// Returns the pixels of a block: the last one of a row may have fewer.
  KOKKOS_FUNCTION int pixels_of(std::int64_t block) const {
    const std::int64_t left = args.width - block * block_pixels;
    return static_cast<int>(left < block_pixels ? left : block_pixels);
  }

  /// Writes the pixels of a block to `out`.
  KOKKOS_FORCEINLINE_FUNCTION void prepare_block(const Source& source, const Pattern& pattern,
                                                 std::int64_t block, T* out) const {
    const int channels = static_cast<int>(args.channels),
              written = static_cast<int>(args.written_channels), pixels = pixels_of(block),
              values = pixels * channels;
    const std::int64_t first = block * block_pixels;
    std::uint8_t bytes[block_pixels * max_channels] = {};
    if (source.inside)
      gather(source.x, source.column + (source.flip ? -first : first), source.flip, pixels, bytes);
    const float *mean = pattern.mean, *scale = pattern.scale;
    if (written != channels) {
      for (int pixel = 0; pixel < pixels; ++pixel) {
        for (int c = 0; c < written; ++c) {
          const int i = pixel * channels + c;
          out[pixel * written + c] = from_float<T>(
              c < channels ? (static_cast<float>(bytes[i]) / 255.0f - mean[i]) * scale[i] : 0);
        }
      }
      return;
    }
#pragma omp simd
    for (int i = 0; i < values; ++i)
      out[i] = from_float<T>((static_cast<float>(bytes[i]) / 255.0f - mean[i]) * scale[i]);
  }

  /// Copies `pixels` pixels of a stored row, from `column` to the right or, if mirrored, to the
  /// left.
  KOKKOS_FUNCTION void gather(const std::uint8_t* x, std::int64_t column, bool flip, int pixels,
                              std::uint8_t* bytes) const {
    const int channels = static_cast<int>(args.channels);
    if (!flip && column >= 0 && column + pixels <= args.stored_width) {
      memcpy(bytes, x + column * channels, static_cast<std::size_t>(pixels * channels));
      return;
    }
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const std::int64_t from = flip ? column - pixel : column + pixel;
      if (from < 0 || from >= args.stored_width) continue;
      for (int c = 0; c < channels; ++c) bytes[pixel * channels + c] = x[from * channels + c];
    }
  }
};

/// Host form of erasing and mixing.
template <class T>
struct PrepareAndMix {
  Prepare<T> images;

  explicit PrepareAndMix(const PrepareImages<T>& args) : images{args} {}
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t task) const { return images.extent(task); }

  KOKKOS_FUNCTION void operator()(std::int64_t task, std::int64_t begin, std::int64_t end) const {
    const PrepareImages<T>& args = images.args;
    const typename Prepare<T>::Pattern pattern = images.make_pattern();
    const std::int64_t sample = task / args.height, row = task % args.height, partner = sample ^ 1;
    const ImageTransform transform = args.transforms[sample];
    const bool mixed = needs_partner(transform, row);
    const ImageTransform other = mixed ? args.transforms[partner] : ImageTransform{};
    const auto source = images.source_of(transform, sample, row),
               other_source = images.source_of(other, mixed ? partner : sample, row);
    const int written = static_cast<int>(args.written_channels);
    T* y = args.y + task * args.width * written;
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * block_pixels;
      T* out = y + first * written;
      images.prepare_block(source, pattern, block, out);
      erase(transform.erased, row, block, out);
      if (!mixed) continue;
      T theirs[block_pixels * padded_image_channels];
      images.prepare_block(other_source, pattern, block, theirs);
      erase(other.erased, row, block, theirs);
      combine(transform, block, theirs, out);
    }
  }

  KOKKOS_FUNCTION void erase(const PixelRange& erased, std::int64_t row, std::int64_t block,
                             T* out) const {
    const int written = static_cast<int>(images.args.written_channels);
    for (int pixel = 0; pixel < images.pixels_of(block); ++pixel) {
      if (!contains(erased, row, block * block_pixels + pixel)) continue;
      for (int c = 0; c < written; ++c) out[pixel * written + c] = from_float<T>(0);
    }
  }

  /// Mixes a block of a row that needs its partner.
  KOKKOS_FUNCTION void combine(const ImageTransform& transform, std::int64_t block, const T* theirs,
                               T* out) const {
    const int written = static_cast<int>(images.args.written_channels),
              pixels = images.pixels_of(block);
    if (transform.mix == Mix::mixup) {
      const float weight = transform.weight, rest = 1 - weight;
#pragma omp simd
      for (int i = 0; i < pixels * written; ++i)
        out[i] = from_float<T>(weight * to_float(out[i]) + rest * to_float(theirs[i]));
      return;
    }
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const std::int64_t column = block * block_pixels + pixel;
      if (column < transform.pasted.left || column >= transform.pasted.right) continue;
      for (int c = 0; c < written; ++c) out[pixel * written + c] = theirs[pixel * written + c];
    }
  }
};

/// Device form: a pack of numbers of one output row, whose pixels have `written` channels. `mixes`:
/// erases and mixes them.
template <class T, int channels, int written, bool mixes>
struct PreparePacks {
  PrepareImages<T> args;
  /// of an image
  Divisor rows;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  explicit PreparePacks(const PrepareImages<T>& images) : args(images), rows(images.height) {}

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t task, std::int64_t number) const {
    const std::int64_t sample = rows.quotient(task), row = task - sample * rows.value();
    const ImageTransform& transform = args.transforms[sample];
    // Pixel and channel of the first number.
    const int first = static_cast<int>(number) / written,
              phase = static_cast<int>(number) - first * written;
    float value[pack];
    normalize(transform, sample, row, first, phase, value);
    if constexpr (mixes) {
      erase(transform.erased, row, first, phase, value);
      if (needs_partner(transform, row)) {
        const ImageTransform& other = args.transforms[sample ^ 1];
        float theirs[pack];
        normalize(other, sample ^ 1, row, first, phase, theirs);
        erase(other.erased, row, first, phase, theirs);
        const float weight = transform.weight, rest = 1 - weight;
        for (int k = 0; k < pack; ++k) {
          const int column = first + (phase + k) / written;
          const bool pasted = column >= transform.pasted.left && column < transform.pasted.right;
          value[k] = transform.mix == Mix::mixup ? weight * value[k] + rest * theirs[k]
                     : pasted                    ? theirs[k]
                                                 : value[k];
        }
      }
    }
    store<pack>(value, args.y + task * args.width * written + number);
  }

  /// value[k] = number k of the pack, from channel `phase` of pixel `first` of a row.
  template <int pack>
  KOKKOS_FORCEINLINE_FUNCTION void normalize(const ImageTransform& transform, std::int64_t sample,
                                             std::int64_t image_row, int first, int phase,
                                             float (&value)[pack]) const {
    const std::int64_t row = transform.row + image_row;
    const bool inside = row >= 0 && row < args.stored_height;
    const int stored_width = static_cast<int>(args.stored_width),
              step = transform.flip != 0 ? -1 : 1;
    int column = transform.column +
                 (transform.flip != 0 ? static_cast<int>(args.width) - 1 - first : first),
        channel = phase;
    const std::uint8_t* x =
        static_cast<const std::uint8_t*>(args.x) +
        (sample * args.stored_height + (inside ? row : 0)) * args.stored_width * channels;
    std::uint32_t byte[pack];
    for (int k = 0; k < pack; ++k) {
      byte[k] = inside && channel < channels && column >= 0 && column < stored_width
                    ? x[column * channels + channel]
                    : 0u;
      const bool next = ++channel == written;
      column += next ? step : 0;
      channel = next ? 0 : channel;
    }
    // Mean and scale of the numbers k, k + written, ...; those of further channels are 0.
    float mean[written], scale[written];
    for (int k = 0; k < written; ++k) {
      mean[k] = scale[k] = 0;
      for (int c = 0; c < channels; ++c) {
        const bool mine = (phase + k) % written == c;
        mean[k] = mine ? args.mean[c] : mean[k];
        scale[k] = mine ? args.inverse_std[c] : scale[k];
      }
    }
    for (int k = 0; k < pack; ++k) {
      // 2^23 + byte as bits, less 2^23: cheaper than an integer conversion.
      const float level = float_of_bits(0x4B000000u | byte[k]) - 8388608.0f;
      value[k] = (level * (1.0f / 255.0f) - mean[k % written]) * scale[k % written];
    }
  }

  /// Rounds the numbers of a pack to T, and sets those in the range to 0.
  template <int pack>
  KOKKOS_FORCEINLINE_FUNCTION void erase(const PixelRange& erased, std::int64_t row, int first,
                                         int phase, float (&value)[pack]) const {
    for (int k = 0; k < pack; ++k)
      value[k] = contains(erased, row, first + (phase + k) / written)
                     ? 0
                     : to_float(from_float<T>(value[k]));
  }
};

template <int channels, int written, class Space, class T>
void run_packs(const Space& space, const PrepareImages<T>& args) {
  const auto run = [&](const auto& packs) {
    for_each_row(space, args.erases_or_mixes ? mix_label : prepare_label, args.batch * args.height,
                 args.width * written, packs_fit(args.y), packs);
  };
  args.erases_or_mixes ? run(PreparePacks<T, channels, written, true>(args))
                       : run(PreparePacks<T, channels, written, false>(args));
}

template <int channels, class Space, class T>
void run_channels(const Space& space, const PrepareImages<T>& args) {
  constexpr int padded = static_cast<int>(padded_image_channels);
  args.written_channels == channels ? run_packs<channels, channels>(space, args)
                                    : run_packs<channels, padded>(space, args);
}

template <class Space, class T>
void run(const Space& space, const PrepareImages<T>& args) {
  if constexpr (on_host<Space>) {
    const std::int64_t rows = args.batch * args.height;
    args.erases_or_mixes ? for_each_piece(space, mix_label, rows, PrepareAndMix<T>(args))
                         : for_each_piece(space, prepare_label, rows, Prepare<T>{args});
  } else {
    switch (args.channels) {
      case 1: return run_channels<1>(space, args);
      case 2: return run_channels<2>(space, args);
      case 3: return run_channels<3>(space, args);
      default: return run_channels<4>(space, args);
    }
  }
}

}  // namespace

template <class T>
void prepare_images(const Stream& stream, const PrepareImages<T>& args) {
  if (args.pixel_type != PixelType::uint8 || args.channels > max_inline_channels)
    return prepare_image_values(stream, args);
  dispatch(stream, [=](const auto& space) { run(space, args); });
}
template void prepare_images(const Stream&, const PrepareImages<float>&);
template void prepare_images(const Stream&, const PrepareImages<BFloat16>&);
template void prepare_images(const Stream&, const PrepareImages<Float16>&);

}  // namespace trireme::kernels
