#include "trireme/kernels/pooling.hpp"

#include "launch.hpp"

// Max and average pooling, and sums over rows. Channels are innermost: a piece is a pixel (or a block of columns) and its inner loop
// runs over channels, so every access is to neighbours. Every kernel reads its inputs and writes its outputs once from memory (windows
// that overlap are read again from cache); the gradient of max pooling gathers, so no two threads write one element.

namespace trireme::kernels {
namespace {

const std::string forward_label = "trireme/kernels/max_pool_forward";
const std::string backward_label = "trireme/kernels/max_pool_backward";
const std::string sum_label = "trireme/kernels/sum_rows";
const std::string broadcast_label = "trireme/kernels/broadcast_rows";

// Elements that one call of a functor adds up side by side: on the host some vector registers' worth, on a device the thread's own.
template <class Space>
constexpr int lanes = on_host<Space> ? 64 : 1;

template <class T>
struct MaxPoolForward {
  PoolWindows w;
  const T* x;
  T* y;
  std::uint8_t* winners;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return w.channels; }

  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const std::int64_t column = piece % w.out_width, row = piece / w.out_width % w.out_height, image = piece / w.out_width / w.out_height;
    T* __restrict best = y + piece * w.channels;
    std::uint8_t* __restrict place = winners + piece * w.channels;
    bool first = true;
    for (std::int64_t r = 0; r < w.kernel; ++r) {
      const std::int64_t i = row * w.stride - w.padding + r;
      if (i < 0 || i >= w.height) continue;
      for (std::int64_t s = 0; s < w.kernel; ++s) {
        const std::int64_t j = column * w.stride - w.padding + s;
        if (j < 0 || j >= w.width) continue;
        const T* __restrict source = x + ((image * w.height + i) * w.width + j) * w.channels;
        take(source, best, place, static_cast<std::uint8_t>(r * w.kernel + s), first, begin, end);
        first = false;
      }
    }
  }

  KOKKOS_FUNCTION static void take(const T* __restrict source, T* __restrict best, std::uint8_t* __restrict place, std::uint8_t here, bool first,
                                   std::int64_t begin, std::int64_t end) {
    if (first) {
      for (std::int64_t c = begin; c < end; ++c) {
        best[c] = source[c];
        place[c] = here;
      }
      return;
    }
    for (std::int64_t c = begin; c < end; ++c) {
      const float value = to_float(source[c]), old = to_float(best[c]);
      const bool wins = value > old || (value != value && old == old);
      best[c] = wins ? source[c] : best[c];
      place[c] = wins ? here : place[c];
    }
  }
};

template <class T, int width>
struct MaxPoolBackward {
  PoolWindows w;
  const T* dy;
  const std::uint8_t* winners;
  T* dx;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return w.channels; }

  // Output rows (or columns) whose windows hold `position`: from `first` while they begin at or before it.
  KOKKOS_FUNCTION std::int64_t first_window(std::int64_t position) const {
    const std::int64_t past = position + w.padding - w.kernel + 1;
    return past > 0 ? (past + w.stride - 1) / w.stride : 0;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t c = begin; c < end; c += width) gather(piece, c, end - c < width ? static_cast<int>(end - c) : width);
  }

  KOKKOS_FUNCTION void gather(std::int64_t piece, std::int64_t channel, int count) const {
    const std::int64_t column = piece % w.width, row = piece / w.width % w.height, image = piece / w.width / w.height;
    float sum[width] = {};
    for (std::int64_t i = first_window(row); i < w.out_height && i * w.stride <= row + w.padding; ++i) {
      for (std::int64_t j = first_window(column); j < w.out_width && j * w.stride <= column + w.padding; ++j) {
        const std::int64_t place = (row + w.padding - i * w.stride) * w.kernel + column + w.padding - j * w.stride;
        const std::int64_t offset = ((image * w.out_height + i) * w.out_width + j) * w.channels + channel;
        for (int c = 0; c < count; ++c) sum[c] += winners[offset + c] == place ? to_float(dy[offset + c]) : 0.0f;
      }
    }
    T* __restrict target = dx + piece * w.channels + channel;
    for (int c = 0; c < count; ++c) target[c] = from_float<T>(sum[c]);
  }
};

constexpr std::int64_t block_columns = 64;  // columns of a piece of sum_rows: a cache line or more of each row
constexpr std::int64_t chunk_rows = 128;    // rows of a partial sum: the error grows with 128 + rows / 128, not with rows

template <class T, class Out, int width>
struct SumRows {
  RowSums s;
  const T* x;
  Out* y;

  KOKKOS_FUNCTION std::int64_t blocks() const { return (s.columns + block_columns - 1) / block_columns; }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = s.columns - piece % blocks() * block_columns;
    return left < block_columns ? left : block_columns;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const std::int64_t image = piece / blocks(), column = piece % blocks() * block_columns + begin;
    const T* __restrict source = x + image * s.rows * s.columns + column;
    const int count = static_cast<int>(end - begin);
    float total[width] = {};
    for (std::int64_t chunk = 0; chunk < s.rows; chunk += chunk_rows) {
      const std::int64_t stop = chunk + chunk_rows < s.rows ? chunk + chunk_rows : s.rows;
      float partial[width] = {};
      for (std::int64_t r = chunk; r < stop; ++r) {
        for (int c = 0; c < count; ++c) partial[c] += to_float(source[r * s.columns + c]);
      }
      for (int c = 0; c < count; ++c) total[c] += partial[c];
    }
    Out* __restrict target = y + image * s.columns + column;
    for (int c = 0; c < count; ++c) target[c] = from_float<Out>(s.scale * total[c] + (s.add ? to_float(target[c]) : 0.0f));
  }
};

template <class T>
struct BroadcastRows {
  RowSums s;
  const T* x;
  T* y;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return s.columns; }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const T* __restrict source = x + piece / s.rows * s.columns;
    T* __restrict target = y + piece * s.columns;
    for (std::int64_t c = begin; c < end; ++c) target[c] = from_float<T>(s.scale * to_float(source[c]));
  }
};

template <class Space, class T>
void run_forward(const Space& space, const PoolWindows& w, const T* x, T* y, std::uint8_t* winners) {
  for_each_piece(space, forward_label, w.batch * w.out_height * w.out_width, MaxPoolForward<T>{w, x, y, winners});
}

template <class Space, class T>
void run_backward(const Space& space, const PoolWindows& w, const T* dy, const std::uint8_t* winners, T* dx) {
  for_each_piece(space, backward_label, w.batch * w.height * w.width, MaxPoolBackward<T, lanes<Space>>{w, dy, winners, dx});
}

template <class Space, class T, class Out>
void run_sums(const Space& space, const RowSums& s, const T* x, Out* y) {
  static_assert(lanes<Space> == 1 || lanes<Space> >= block_columns);
  const SumRows<T, Out, lanes<Space>> sums{s, x, y};
  for_each_piece(space, sum_label, s.batch * sums.blocks(), sums);
}

template <class Space, class T>
void run_broadcast(const Space& space, const RowSums& s, const T* x, T* y) {
  for_each_piece(space, broadcast_label, s.batch * s.rows, BroadcastRows<T>{s, x, y});
}

}  // namespace

void max_pool_forward(const Stream& stream, const PoolWindows& w, const float* x, float* y, std::uint8_t* winners) {
  dispatch(stream, [&](const auto& space) { run_forward(space, w, x, y, winners); });
}
void max_pool_forward(const Stream& stream, const PoolWindows& w, const BFloat16* x, BFloat16* y, std::uint8_t* winners) {
  dispatch(stream, [&](const auto& space) { run_forward(space, w, x, y, winners); });
}
void max_pool_backward(const Stream& stream, const PoolWindows& w, const float* dy, const std::uint8_t* winners, float* dx) {
  dispatch(stream, [&](const auto& space) { run_backward(space, w, dy, winners, dx); });
}
void max_pool_backward(const Stream& stream, const PoolWindows& w, const BFloat16* dy, const std::uint8_t* winners, BFloat16* dx) {
  dispatch(stream, [&](const auto& space) { run_backward(space, w, dy, winners, dx); });
}
void sum_rows(const Stream& stream, const RowSums& s, const float* x, float* y) {
  dispatch(stream, [&](const auto& space) { run_sums(space, s, x, y); });
}
void sum_rows(const Stream& stream, const RowSums& s, const BFloat16* x, float* y) {
  dispatch(stream, [&](const auto& space) { run_sums(space, s, x, y); });
}
void sum_rows(const Stream& stream, const RowSums& s, const BFloat16* x, BFloat16* y) {
  dispatch(stream, [&](const auto& space) { run_sums(space, s, x, y); });
}
void broadcast_rows(const Stream& stream, const RowSums& s, const float* x, float* y) {
  dispatch(stream, [&](const auto& space) { run_broadcast(space, s, x, y); });
}
void broadcast_rows(const Stream& stream, const RowSums& s, const BFloat16* x, BFloat16* y) {
  dispatch(stream, [&](const auto& space) { run_broadcast(space, s, x, y); });
}

}  // namespace trireme::kernels
