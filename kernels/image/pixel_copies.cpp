// SPDX-License-Identifier: Apache-2.0
//
// Images that have each pixel of a smaller image several times: periodic borders, and upsampling to
// the nearest pixel. Called by src/ops/pixel_copies.cpp.
// Rows and columns follow the same rule (an axis). A row of a kernel is a pixel of its result, so
// one thread writes each element: a gradient gathers its copies and adds them in float32, in
// row-major order. Memory traffic: what is read is read once, or again from cache; the result is
// written once.

#include "trireme/kernels/image/pixel_copies.hpp"

#include "kernels/space/packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string pad_label = "trireme/kernels/periodic_pad_forward";
const std::string pad_gradient_label = "trireme/kernels/periodic_pad_backward";
const std::string upsample_label = "trireme/kernels/upsample_forward";
const std::string upsample_gradient_label = "trireme/kernels/upsample_backward";

// An axis: source() is the place in the smaller image of a place in the larger one. The copies of a
// place are at first(), first() + step() .. before end().

/// An axis that is continued periodically.
struct PeriodicAxis {
  PeriodicAxis(std::int64_t extent, const Borders& borders)
      : size(extent), copies(borders.before + extent + borders.after), before(borders.before) {}
  Divisor size, copies;  ///< places in the smaller and in the larger image
  std::int64_t before;

  KOKKOS_FUNCTION std::int64_t remainder(std::int64_t place) const {
    return place - size.quotient(place) * size.value();
  }
  KOKKOS_FUNCTION std::int64_t source(std::int64_t place) const {
    return remainder(place + size.value() - before);
  }
  KOKKOS_FUNCTION std::int64_t first(std::int64_t place) const { return remainder(place + before); }
  KOKKOS_FUNCTION std::int64_t end(std::int64_t) const { return copies.value(); }
  KOKKOS_FUNCTION std::int64_t step() const { return size.value(); }
};

/// An axis of which each place is repeated.
struct RepeatedAxis {
  RepeatedAxis(std::int64_t extent, std::int64_t times)
      : size(extent), copies(times * extent), factor(times) {}
  Divisor size, copies, factor;

  KOKKOS_FUNCTION std::int64_t source(std::int64_t place) const { return factor.quotient(place); }
  KOKKOS_FUNCTION std::int64_t first(std::int64_t place) const { return place * factor.value(); }
  KOKKOS_FUNCTION std::int64_t end(std::int64_t place) const { return first(place + 1); }
  KOKKOS_FUNCTION std::int64_t step() const { return 1; }
};

/// The place of a pixel of images [batch, rows, columns].
struct Pixel {
  KOKKOS_FUNCTION Pixel(std::int64_t number, const Divisor& rows, const Divisor& columns) {
    const std::int64_t line = columns.quotient(number);
    column = number - line * columns.value();
    image = rows.quotient(line);
    row = line - image * rows.value();
  }
  std::int64_t image, row, column;
};

/// y = x at the source of each pixel.
template <class T, class Axis>
struct CopyPixels {
  Axis rows, columns;
  std::int64_t channels;
  const T* x;
  T* y;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  bool packed() const { return packs_fit(x, y) && channels % lanes == 0; }
  KOKKOS_FUNCTION const T* source_of(std::int64_t number) const {
    const Pixel to(number, rows.copies, columns.copies);
    return x + ((to.image * rows.size.value() + rows.source(to.row)) * columns.size.value() +
                columns.source(to.column)) *
                   channels;
  }
  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t pixel, std::int64_t channel) const {
    float values[pack];
    load<pack>(source_of(pixel) + channel, values);
    store<pack>(values, y + pixel * channels + channel);
  }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return channels; }
  KOKKOS_FUNCTION void operator()(std::int64_t pixel, std::int64_t begin, std::int64_t end) const {
    const T* from = source_of(pixel);
    for (std::int64_t i = begin; i < end; ++i) y[pixel * channels + i] = from[i];
  }
};

/// dx = sum of dy over the copies of each pixel [+ addend].
template <class T, class Axis>
struct SumCopies {
  Axis rows, columns;
  std::int64_t channels;
  const T *dy, *addend;
  T* dx;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  bool packed() const { return packs_fit(dy, addend, dx) && channels % lanes == 0; }
  /// Calls add(address) for the copies of a pixel.
  template <class Add>
  KOKKOS_FUNCTION void for_each_copy(std::int64_t pixel, const Add& add) const {
    const Pixel at(pixel, rows.size, columns.size);
    const std::int64_t row_end = rows.end(at.row), column_end = columns.end(at.column);
    for (std::int64_t row = rows.first(at.row); row < row_end; row += rows.step()) {
      const std::int64_t line = (at.image * rows.copies.value() + row) * columns.copies.value();
      for (std::int64_t column = columns.first(at.column); column < column_end;
           column += columns.step())
        add(dy + (line + column) * channels);
    }
  }
  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t pixel, std::int64_t channel) const {
    float sum[pack] = {};
    if (addend != nullptr) load<pack>(addend + pixel * channels + channel, sum);
    for_each_copy(pixel, [&](const T* from) {
      float values[pack];
      load<pack>(from + channel, values);
      for (int k = 0; k < pack; ++k) sum[k] += values[k];
    });
    store<pack>(sum, dx + pixel * channels + channel);
  }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return channels; }
  KOKKOS_FUNCTION void operator()(std::int64_t pixel, std::int64_t begin, std::int64_t end) const {
    constexpr std::int64_t at_once = 64;
    float sum[at_once];
    for (std::int64_t channel = begin; channel < end; channel += at_once) {
      const std::int64_t count = end - channel < at_once ? end - channel : at_once;
      const std::int64_t place = pixel * channels + channel;
      for (std::int64_t k = 0; k < count; ++k)
        sum[k] = addend != nullptr ? to_float(addend[place + k]) : 0;
      for_each_copy(pixel, [&](const T* from) {
        for (std::int64_t k = 0; k < count; ++k) sum[k] += to_float(from[channel + k]);
      });
      for (std::int64_t k = 0; k < count; ++k) dx[place + k] = from_float<T>(sum[k]);
    }
  }
};

template <class T, class Axis>
void copy_pixels(const Stream& stream, const std::string& label, const Images& images,
                 const Axis& rows, const Axis& columns, const T* x, T* y) {
  const CopyPixels<T, Axis> copy{rows, columns, images.channels, x, y};
  const std::int64_t pixels = images.batch * rows.copies.value() * columns.copies.value();
  dispatch(stream, [=, &label](const auto& space) {
    for_each_row(space, label, pixels, images.channels, copy.packed(), copy);
  });
}

template <class T, class Axis>
void sum_copies(const Stream& stream, const std::string& label, const Images& images,
                const Axis& rows, const Axis& columns, const T* dy, const T* addend, T* dx) {
  const SumCopies<T, Axis> sum{rows, columns, images.channels, dy, addend, dx};
  const std::int64_t pixels = images.batch * images.height * images.width;
  dispatch(stream, [=, &label](const auto& space) {
    for_each_row(space, label, pixels, images.channels, sum.packed(), sum);
  });
}

}  // namespace

template <class T>
void pad_periodically(const Stream& stream, const Images& images, const Borders& borders,
                      const T* x, T* y) {
  copy_pixels(stream, pad_label, images, PeriodicAxis(images.height, borders),
              PeriodicAxis(images.width, borders), x, y);
}
template void pad_periodically(const Stream&, const Images&, const Borders&, const float*, float*);
template void pad_periodically(const Stream&, const Images&, const Borders&, const BFloat16*,
                               BFloat16*);
template void pad_periodically(const Stream&, const Images&, const Borders&, const Float16*,
                               Float16*);

template <class T>
void sum_periodic_copies(const Stream& stream, const Images& images, const Borders& borders,
                         const T* dy, const T* addend, T* dx) {
  sum_copies(stream, pad_gradient_label, images, PeriodicAxis(images.height, borders),
             PeriodicAxis(images.width, borders), dy, addend, dx);
}
template void sum_periodic_copies(const Stream&, const Images&, const Borders&, const float*,
                                  const float*, float*);
template void sum_periodic_copies(const Stream&, const Images&, const Borders&, const BFloat16*,
                                  const BFloat16*, BFloat16*);
template void sum_periodic_copies(const Stream&, const Images&, const Borders&, const Float16*,
                                  const Float16*, Float16*);

template <class T>
void upsample(const Stream& stream, const Images& images, std::int64_t factor, const T* x, T* y) {
  copy_pixels(stream, upsample_label, images, RepeatedAxis(images.height, factor),
              RepeatedAxis(images.width, factor), x, y);
}
template void upsample(const Stream&, const Images&, std::int64_t, const float*, float*);
template void upsample(const Stream&, const Images&, std::int64_t, const BFloat16*, BFloat16*);
template void upsample(const Stream&, const Images&, std::int64_t, const Float16*, Float16*);

template <class T>
void sum_upsampled(const Stream& stream, const Images& images, std::int64_t factor, const T* dy,
                   T* dx) {
  sum_copies(stream, upsample_gradient_label, images, RepeatedAxis(images.height, factor),
             RepeatedAxis(images.width, factor), dy, static_cast<const T*>(nullptr), dx);
}
template void sum_upsampled(const Stream&, const Images&, std::int64_t, const float*, float*);
template void sum_upsampled(const Stream&, const Images&, std::int64_t, const BFloat16*, BFloat16*);
template void sum_upsampled(const Stream&, const Images&, std::int64_t, const Float16*, Float16*);

}  // namespace trireme::kernels
