// SPDX-License-Identifier: Apache-2.0
//
// Max pooling forward and backward. Called by src/ops/pooling.cpp.
// Plan: channels are innermost. On the host a piece is a pixel with an inner loop over channels; on
// a device a thread takes a pack of channels of one pixel. So all accesses are contiguous.
// ResNet's windows (3 x 3, stride 2) are unrolled on a device, with all loads before the first use.
// The gradient of max pooling is gathered: one thread writes each element, so results do not depend
// on the number of threads.
// Memory traffic: inputs are read once and outputs are written once; overlapping windows are read
// again from cache.

#include "trireme/kernels/pooling.hpp"

#include <cmath>

#include "kernels/space/elements.hpp"

namespace trireme::kernels {
namespace {

const std::string forward_label = "trireme/kernels/max_pool_forward";
const std::string backward_label = "trireme/kernels/max_pool_backward";

// Channels that one call of a functor takes side by side: some vector registers' worth.
constexpr int host_lanes = 64;

/// A number that is known when the program is compiled; like std::integral_constant, on devices,
/// too.
template <int number>
struct Constant {
  KOKKOS_FUNCTION constexpr operator int() const { return number; }
};

/// Calls take(channel, count) for vectors of `width` channels from `begin` to `end`. `count` is a
/// constant for whole vectors, so that their loops are unrolled.
template <int width, class Take>
KOKKOS_FORCEINLINE_FUNCTION void for_each_vector(std::int64_t begin, std::int64_t end,
                                                 const Take& take) {
  std::int64_t c = begin;
  for (; c + width <= end; c += width) take(c, Constant<width>{});
  if (c < end) take(c, static_cast<int>(end - c));
}

template <class T, int width>
struct MaxPoolForward {
  PoolWindows w;
  const T* x;
  T* y;
  std::uint8_t* winners;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return w.channels; }

  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    for_each_vector<width>(
        begin, end, [&](std::int64_t channel, auto count) { find_maximum(piece, channel, count); });
  }

  // The window's first element inside the image is the maximum until a larger one or a NaN comes.
  // Nothing wins over a NaN. There is a first one, since the padding is smaller than the window.
  template <class Count>
  KOKKOS_FUNCTION void find_maximum(std::int64_t piece, std::int64_t channel, Count count) const {
    const std::int64_t column = piece % w.out_width * w.stride - w.padding,
                       over = piece / w.out_width, row = over % w.out_height * w.stride - w.padding,
                       image = over / w.out_height;
    float best[width];
    std::int32_t place[width];
    bool first = true;
    for (std::int64_t r = row < 0 ? -row : 0; r < w.kernel && row + r < w.height; ++r) {
      for (std::int64_t s = column < 0 ? -column : 0; s < w.kernel && column + s < w.width; ++s) {
        const T* source =
            x + ((image * w.height + row + r) * w.width + column + s) * w.channels + channel;
        const auto here = static_cast<std::int32_t>(r * w.kernel + s);
        if (first) {
          for (int c = 0; c < count; ++c) {
            best[c] = to_float(source[c]);
            place[c] = here;
          }
          first = false;
          continue;
        }
        for (int c = 0; c < count; ++c) {
          const float value = to_float(source[c]), old = best[c];
          const bool wins = !(value <= old) && old == old;
          best[c] = wins ? value : old;
          place[c] = wins ? here : place[c];
        }
      }
    }
    T* __restrict target = y + piece * w.channels + channel;
    std::uint8_t* __restrict target_place = winners + piece * w.channels + channel;
    for (int c = 0; c < count; ++c) {
      target[c] = from_float<T>(best[c]);
      target_place[c] = static_cast<std::uint8_t>(place[c]);
    }
  }
};

KOKKOS_FORCEINLINE_FUNCTION bool inside(int i, int count) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(count);
}

/// Device form of forward: a thread takes one pixel and a pack of its channels. `side`: window
/// side; 0: w.kernel.
template <class T, int side>
struct MaxPoolForwardPacks {
  PoolWindows w;
  const T* x;
  T* y;
  std::uint8_t* winners;
  /// of the output
  Divisor columns, rows;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  MaxPoolForwardPacks(const PoolWindows& windows, const T* from, T* to, std::uint8_t* places)
      : w(windows),
        x(from),
        y(to),
        winners(places),
        columns(windows.out_width),
        rows(windows.out_height) {}

  /// The maximum so far and its index in the window. It starts as minus infinity with the index of
  /// the window's first element inside the image.
  template <int pack>
  struct Best {
    float value[pack];
    int place[pack];
    KOKKOS_FORCEINLINE_FUNCTION void process(const float (&values)[pack], int here) {
      for (int c = 0; c < pack; ++c) {
        // A NaN wins, and nothing wins over a NaN.
        const bool wins = !(values[c] <= value[c]) && value[c] == value[c];
        value[c] = wins ? values[c] : value[c];
        place[c] = wins ? here : place[c];
      }
    }
  };

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t pixel, std::int64_t channel) const {
    const std::int64_t over = columns.quotient(pixel), image = rows.quotient(over);
    const int row = static_cast<int>((over - image * rows.value()) * w.stride - w.padding);
    const int column = static_cast<int>((pixel - over * columns.value()) * w.stride - w.padding);
    const int height = static_cast<int>(w.height), width = static_cast<int>(w.width),
              kernel = side > 0 ? side : static_cast<int>(w.kernel);
    // Corner of the window; read only inside the image.
    const T* corner = x + ((image * height + row) * width + column) * w.channels + channel;
    Best<pack> best;
    const int first = (row < 0 ? -row : 0) * kernel + (column < 0 ? -column : 0);
    for (int c = 0; c < pack; ++c) {
      best.value[c] = -INFINITY;
      best.place[c] = first;
    }
    if constexpr (side > 0) {
      float values[side][side][pack];
      for (int r = 0; r < side; ++r) {
        for (int s = 0; s < side; ++s) {
          if (inside(row + r, height) && inside(column + s, width)) {
            load<pack>(corner + (static_cast<std::int64_t>(r) * width + s) * w.channels,
                       values[r][s]);
          } else {
            for (int c = 0; c < pack; ++c) values[r][s][c] = -INFINITY;
          }
        }
      }
      for (int r = 0; r < side; ++r) {
        for (int s = 0; s < side; ++s) best.process(values[r][s], r * side + s);
      }
    } else {
      for (int r = 0; r < kernel; ++r) {
        for (int s = 0; s < kernel; ++s) {
          if (!inside(row + r, height) || !inside(column + s, width)) continue;
          float values[pack];
          load<pack>(corner + (static_cast<std::int64_t>(r) * width + s) * w.channels, values);
          best.process(values, r * kernel + s);
        }
      }
    }
    const std::int64_t at = pixel * w.channels + channel;
    store<pack>(best.value, y + at);
    if constexpr (pack % 4 == 0) {
      Words<pack / 4> places;
      for (int c = 0; c < pack; c += 4) {
        places.word[c / 4] =
            static_cast<std::uint32_t>(best.place[c] | best.place[c + 1] << 8 |
                                       best.place[c + 2] << 16 | best.place[c + 3] << 24);
      }
      write_words(places, winners + at);
    } else {
      for (int c = 0; c < pack; ++c) winners[at + c] = static_cast<std::uint8_t>(best.place[c]);
    }
  }
};

/// Operands of backward, and the search for the windows that contain a pixel.
template <class T>
struct PoolGradient {
  PoolWindows w;
  const T* dy;
  const std::uint8_t* winners;
  T* dx;
  Divisor columns, rows, stride;

  PoolGradient(const PoolWindows& windows, const T* gradient, const std::uint8_t* places, T* to)
      : w(windows),
        dy(gradient),
        winners(places),
        dx(to),
        columns(windows.width),
        rows(windows.height),
        stride(windows.stride) {}

  /// Returns the first output row (or column) whose window contains row (or column) `padded` of the
  /// padded image. The windows that contain it continue until one begins behind it.
  template <class Integer>
  KOKKOS_FORCEINLINE_FUNCTION Integer first_window(Integer padded) const {
    const Integer past = padded - static_cast<Integer>(w.kernel) + 1;
    return past > 0 ? static_cast<Integer>(stride.quotient(past + w.stride - 1)) : 0;
  }
};

template <class T, int width>
struct MaxPoolBackward : PoolGradient<T> {
  using Base = PoolGradient<T>;
  using Base::Base, Base::w, Base::dy, Base::winners, Base::dx, Base::columns, Base::rows;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return w.channels; }

  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    for_each_vector<width>(
        begin, end, [&](std::int64_t channel, auto count) { gather(piece, channel, count); });
  }

  template <class Count>
  KOKKOS_FUNCTION void gather(std::int64_t piece, std::int64_t channel, Count count) const {
    const std::int64_t over = columns.quotient(piece), image = rows.quotient(over);
    const std::int64_t row = over - image * rows.value() + w.padding,
                       column = piece - over * columns.value() + w.padding;
    float sum[width] = {};
    for (std::int64_t i = this->first_window(row); i < w.out_height && i * w.stride <= row; ++i) {
      for (std::int64_t j = this->first_window(column); j < w.out_width && j * w.stride <= column;
           ++j) {
        const auto place =
            static_cast<std::uint8_t>((row - i * w.stride) * w.kernel + column - j * w.stride);
        const std::int64_t offset =
            ((image * w.out_height + i) * w.out_width + j) * w.channels + channel;
        const T* gradients = dy + offset;
        const std::uint8_t* places = winners + offset;
        for (int c = 0; c < count; ++c) {
          const float gradient = to_float(gradients[c]);  // read by all, so that they are vectors
          sum[c] += places[c] == place ? gradient : 0.0f;
        }
      }
    }
    T* __restrict target = dx + piece * w.channels + channel;
    for (int c = 0; c < count; ++c) target[c] = from_float<T>(sum[c]);
  }
};

/// Winners and gradients of one window for a pack of channels. Before read(), all gradients are 0
/// and contribute nothing.
template <int pack>
struct WindowGradient {
  Words<(pack + 3) / 4> winner = {};
  float gradient[pack] = {};

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION void read(const std::uint8_t* winners, const T* dy) {
    if constexpr (pack % 4 == 0) {
      winner = read_words<pack / 4>(winners);
    } else {
      winner.word[0] = *winners;
    }
    load<pack>(dy, gradient);
  }
  KOKKOS_FORCEINLINE_FUNCTION void add_to(float (&sum)[pack], int place) const {
    const std::uint32_t everywhere = static_cast<std::uint32_t>(place) * 0x01010101u;
    for (int c = 0; c < pack; ++c)
      sum[c] +=
          ((winner.word[c / 4] ^ everywhere) & (0xFFu << c % 4 * 8)) == 0 ? gradient[c] : 0.0f;
  }
};

/// Device form of backward: a thread takes one pixel and a pack of its channels.
template <class T>
struct MaxPoolBackwardPacks : PoolGradient<T> {
  using Base = PoolGradient<T>;
  using Base::Base, Base::w, Base::dy, Base::winners, Base::dx, Base::columns, Base::rows;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t pixel, std::int64_t channel) const {
    const std::int64_t over = columns.quotient(pixel), image = rows.quotient(over);
    const int row = static_cast<int>(over - image * rows.value() + w.padding),
              column = static_cast<int>(pixel - over * columns.value() + w.padding);
    const int kernel = static_cast<int>(w.kernel), step = static_cast<int>(w.stride);
    float sum[pack] = {};
    for (int i = this->first_window(row); i < w.out_height && i * step <= row; ++i) {
      for (int j = this->first_window(column); j < w.out_width && j * step <= column; ++j) {
        const std::int64_t at =
            ((image * w.out_height + i) * w.out_width + j) * w.channels + channel;
        WindowGradient<pack> window;
        window.read(winners + at, dy + at);
        window.add_to(sum, (row - i * step) * kernel + column - j * step);
      }
    }
    store<pack>(sum, dx + pixel * w.channels + channel);
  }
};

/// Device form of backward for windows of 3 x 3 with stride 2: a thread takes a block of 2 x 2
/// pixels of the padded image and a pack of channels. It loads the four windows that contain these
/// pixels.
template <class T>
struct MaxPoolBackwardBlocks {
  PoolWindows w;
  const T* dy;
  const std::uint8_t* winners;
  T* dx;
  /// of blocks
  Divisor columns, rows;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1, side = 2, kernel = 3;

  MaxPoolBackwardBlocks(const PoolWindows& windows, const T* gradient, const std::uint8_t* places,
                        T* to)
      : w(windows),
        dy(gradient),
        winners(places),
        dx(to),
        columns((windows.width + windows.padding + side - 1) / side),
        rows((windows.height + windows.padding + side - 1) / side) {}
  std::int64_t blocks() const { return w.batch * rows.value() * columns.value(); }

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t block, std::int64_t channel) const {
    const std::int64_t over = columns.quotient(block), image = rows.quotient(over);
    const int block_row = static_cast<int>(over - image * rows.value()),
              block_column = static_cast<int>(block - over * columns.value());
    const int height = static_cast<int>(w.height), width = static_cast<int>(w.width),
              padding = static_cast<int>(w.padding);
    WindowGradient<pack> window[side][side];
    for (int i = 0; i < side; ++i) {
      for (int j = 0; j < side; ++j) {
        const int row = block_row - 1 + i, column = block_column - 1 + j;
        const std::int64_t at =
            ((image * w.out_height + row) * w.out_width + column) * w.channels + channel;
        if (inside(row, static_cast<int>(w.out_height)) &&
            inside(column, static_cast<int>(w.out_width)))
          window[i][j].read(winners + at, dy + at);
      }
    }
    TRIREME_UNROLLED
    for (int r = 0; r < side; ++r) {
      TRIREME_UNROLLED
      for (int s = 0; s < side; ++s) {
        float sum[pack] = {};
        for (int i = 0; i < side; ++i) {
          for (int j = 0; j < side; ++j) {
            // position relative to the window's corner
            const int below = r + side * (1 - i), beside = s + side * (1 - j);
            if (below < kernel && beside < kernel)
              window[i][j].add_to(sum, below * kernel + beside);
          }
        }
        const int row = side * block_row + r - padding, column = side * block_column + s - padding;
        if (inside(row, height) && inside(column, width))
          store<pack>(sum, dx + ((image * height + row) * width + column) * w.channels + channel);
      }
    }
  }
};

template <class Space, class T>
void run_forward(const Space& space, const PoolWindows& w, const T* x, T* y,
                 std::uint8_t* winners) {
  const std::int64_t pixels = w.batch * w.out_height * w.out_width;
  if constexpr (on_host<Space>) {
    for_each_piece(space, forward_label, pixels, MaxPoolForward<T, host_lanes>{w, x, y, winners});
  } else {
    const bool packed = packs_fit(x, y) && packs_fit(winners);
    w.kernel == 3 ? for_each_row(space, forward_label, pixels, w.channels, packed,
                                 MaxPoolForwardPacks<T, 3>(w, x, y, winners))
                  : for_each_row(space, forward_label, pixels, w.channels, packed,
                                 MaxPoolForwardPacks<T, 0>(w, x, y, winners));
  }
}

template <class Space, class T>
void run_backward(const Space& space, const PoolWindows& w, const T* dy,
                  const std::uint8_t* winners, T* dx) {
  const std::int64_t pixels = w.batch * w.height * w.width;
  if constexpr (on_host<Space>) {
    check_dividends(backward_label, pixels);
    for_each_piece(space, backward_label, pixels,
                   MaxPoolBackward<T, host_lanes>(w, dy, winners, dx));
  } else {
    const bool packed = packs_fit(dy, dx) && packs_fit(winners);
    const MaxPoolBackwardBlocks<T> blocks(w, dy, winners, dx);
    w.kernel == blocks.kernel&& w.stride == blocks.side
        ? for_each_row(space, backward_label, blocks.blocks(), w.channels, packed, blocks)
        : for_each_row(space, backward_label, pixels, w.channels, packed,
                       MaxPoolBackwardPacks<T>(w, dy, winners, dx));
  }
}

}  // namespace

template <class T>
void max_pool_forward(const Stream& stream, const PoolWindows& w, const T* x, T* y,
                      std::uint8_t* winners) {
  dispatch(stream, [=](const auto& space) { run_forward(space, w, x, y, winners); });
}
template void max_pool_forward(const Stream&, const PoolWindows&, const float*, float*,
                               std::uint8_t*);
template void max_pool_forward(const Stream&, const PoolWindows&, const BFloat16*, BFloat16*,
                               std::uint8_t*);
template void max_pool_forward(const Stream&, const PoolWindows&, const Float16*, Float16*,
                               std::uint8_t*);

template <class T>
void max_pool_backward(const Stream& stream, const PoolWindows& w, const T* dy,
                       const std::uint8_t* winners, T* dx) {
  dispatch(stream, [=](const auto& space) { run_backward(space, w, dy, winners, dx); });
}
template void max_pool_backward(const Stream&, const PoolWindows&, const float*,
                                const std::uint8_t*, float*);
template void max_pool_backward(const Stream&, const PoolWindows&, const BFloat16*,
                                const std::uint8_t*, BFloat16*);
template void max_pool_backward(const Stream&, const PoolWindows&, const Float16*,
                                const std::uint8_t*, Float16*);

}  // namespace trireme::kernels
