// Crops, mirrors and standardizes a batch of stored images. Called by src/ops/image.cpp at the
// start of the forward pass.
// Host: a row of an output image is a piece, in blocks of 16 pixels. The bytes of a block are
// gathered into a buffer (0 outside of the stored image, reversed if mirrored), then one vector
// loop converts them. Blocks of 16 pixels repeat the pattern of 1 to 4 channels.
// Device: a thread computes a pack of numbers of a row; neighboring threads read neighboring bytes.
// Memory traffic: each used byte is read once, y is written once.

#include "trireme/kernels/image.hpp"

#include <cstring>

#include "packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string prepare_label = "trireme/kernels/prepare_images";

constexpr int block_pixels = 16, max_channels = 4;

template <class T>
struct Prepare {
  PrepareImages<T> args;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const {
    return (args.width + block_pixels - 1) / block_pixels;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t task, std::int64_t begin, std::int64_t end) const {
    const int channels = static_cast<int>(args.channels);
    float mean[block_pixels * max_channels], scale[block_pixels * max_channels];
    for (int i = 0; i < block_pixels * channels; ++i) {
      mean[i] = args.mean[i % channels];
      scale[i] = args.inverse_std[i % channels];
    }
    const std::int64_t sample = task / args.height;
    const ImageTransform transform = args.transforms[sample];
    const std::int64_t row = transform.row + task % args.height;
    const bool inside = row >= 0 && row < args.stored_height, flip = transform.flip != 0;
    const std::uint8_t* x =
        args.x + (sample * args.stored_height + (inside ? row : 0)) * args.stored_width * channels;
    const int written = static_cast<int>(args.written_channels);
    T* y = args.y + task * args.width * written;
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * block_pixels;
      const int pixels =
          static_cast<int>(args.width - first < block_pixels ? args.width - first : block_pixels);
      std::uint8_t bytes[block_pixels * max_channels] = {};
      if (inside)
        gather(x, transform.column + (flip ? args.width - 1 - first : first), flip, pixels, bytes);
      T* out = y + first * written;
      const int values = pixels * channels;
      if (written != channels) {
        for (int pixel = 0; pixel < pixels; ++pixel) {
          for (int c = 0; c < written; ++c) {
            const int i = pixel * channels + c;
            out[pixel * written + c] = from_float<T>(
                c < channels ? (static_cast<float>(bytes[i]) / 255.0f - mean[i]) * scale[i] : 0);
          }
        }
        continue;
      }
#pragma omp simd
      for (int i = 0; i < values; ++i)
        out[i] = from_float<T>((static_cast<float>(bytes[i]) / 255.0f - mean[i]) * scale[i]);
    }
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

/// Device form: a pack of numbers of one output row, whose pixels have `written` channels.
template <class T, int channels, int written>
struct PreparePacks {
  PrepareImages<T> args;
  /// of an image
  Divisor rows;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  explicit PreparePacks(const PrepareImages<T>& images) : args(images), rows(images.height) {}

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t task, std::int64_t number) const {
    const std::int64_t sample = rows.quotient(task);
    const ImageTransform transform = args.transforms[sample];
    const std::int64_t row = transform.row + task - sample * rows.value();
    const bool inside = row >= 0 && row < args.stored_height;
    // Pixel and channel of the first number.
    const int first = static_cast<int>(number) / written,
              phase = static_cast<int>(number) - first * written;
    const int stored_width = static_cast<int>(args.stored_width),
              step = transform.flip != 0 ? -1 : 1;
    int column = transform.column +
                 (transform.flip != 0 ? static_cast<int>(args.width) - 1 - first : first),
        channel = phase;
    const std::uint8_t* x =
        args.x + (sample * args.stored_height + (inside ? row : 0)) * args.stored_width * channels;
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
    float value[pack];
    for (int k = 0; k < pack; ++k) {
      // 2^23 + byte as bits, less 2^23: cheaper than an integer conversion.
      const float level = float_of_bits(0x4B000000u | byte[k]) - 8388608.0f;
      value[k] = (level * (1.0f / 255.0f) - mean[k % written]) * scale[k % written];
    }
    store<pack>(value, args.y + task * args.width * written + number);
  }
};

template <int channels, int written, class Space, class T>
void run_packs(const Space& space, const PrepareImages<T>& args) {
  for_each_row(space, prepare_label, args.batch * args.height, args.width * written,
               packs_fit(args.y), PreparePacks<T, channels, written>(args));
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
    for_each_piece(space, prepare_label, args.batch * args.height, Prepare<T>{args});
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
  dispatch(stream, [=](const auto& space) { run(space, args); });
}
template void prepare_images(const Stream&, const PrepareImages<float>&);
template void prepare_images(const Stream&, const PrepareImages<BFloat16>&);
template void prepare_images(const Stream&, const PrepareImages<Float16>&);

}  // namespace trireme::kernels
