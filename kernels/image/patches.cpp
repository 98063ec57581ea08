// SPDX-License-Identifier: Apache-2.0
//
// Copies square patches of images to rows of a matrix, and rows back to the patches of images.
// Called by src/ops/patches.cpp for the product of a patch embedding, and for maps that a vision
// transformer gives by patches. Each is the adjoint of the other.
// A row of pixels of a patch is contiguous in the image and in the matrix. Memory traffic: the
// images once, the matrix once.

#include "trireme/kernels/image/patches.hpp"

#include "kernels/space/packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string gather_label = "trireme/kernels/gather_patches";
const std::string scatter_label = "trireme/kernels/scatter_patches";

/// The places of the rows of a matrix in the images.
struct PatchPlaces {
  PatchPlaces(const PatchRows& all, std::int64_t first)
      : shape(all),
        first_row(first),
        sample_rows(all.rows_of_sample()),
        grid_width(all.grid_width()),
        line(all.patch * all.channels) {}

  PatchRows shape;
  std::int64_t first_row;
  Divisor sample_rows, grid_width;
  Divisor line;  ///< numbers of one row of pixels of a patch

  KOKKOS_FUNCTION std::int64_t image_line() const { return shape.width * shape.channels; }
  /// Returns whether packs of this many numbers divide each line of an image and of a patch.
  bool has_packs_of(int lanes) const {
    return line.value() % lanes == 0 && image_line() % lanes == 0;
  }
  /// Returns the place in the images where the patch of a row begins; -1 for a leading row.
  KOKKOS_FUNCTION std::int64_t place_of(std::int64_t row) const {
    const std::int64_t sample = sample_rows.quotient(first_row + row),
                       patch = first_row + row - sample * sample_rows.value() - shape.leading;
    if (patch < 0) return -1;
    const std::int64_t top = grid_width.quotient(patch), left = patch - top * grid_width.value();
    return (sample * shape.height + top * shape.patch) * image_line() + left * line.value();
  }
  /// Returns how far element `i` of a row is from the beginning of its patch in the image.
  KOKKOS_FUNCTION std::int64_t offset_of(std::int64_t i) const {
    const std::int64_t pixels = line.quotient(i);
    return pixels * image_line() + i - pixels * line.value();
  }
  /// Calls copy(at, offset, count) for each run of [begin, end) of a row that is contiguous in the
  /// image.
  template <class Copy>
  KOKKOS_FUNCTION void for_each_run(std::int64_t begin, std::int64_t end, Copy&& copy) const {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t line_end = (line.quotient(i) + 1) * line.value(),
                         stop = line_end < end ? line_end : end;
      copy(i, offset_of(i), stop - i);
      i = stop;
    }
  }
};

template <class T>
struct GatherPatches {
  PatchPlaces places;
  const T* x;
  T* y;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;
  static const std::string& label() { return gather_label; }

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    float values[pack] = {};
    if (const std::int64_t place = places.place_of(row); place >= 0)
      load<pack>(x + place + places.offset_of(column), values);
    store<pack>(values, y + row * places.shape.row_elements() + column);
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return places.shape.row_elements(); }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    T* to = y + row * places.shape.row_elements();
    const std::int64_t place = places.place_of(row);
    if (place < 0) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<T>(0);
      return;
    }
    places.for_each_run(begin, end, [&](std::int64_t at, std::int64_t offset, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) to[at + i] = x[place + offset + i];
    });
  }
};

template <class T>
struct ScatterPatches {
  PatchPlaces places;
  const T* x;
  T* y;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;
  static const std::string& label() { return scatter_label; }

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    const std::int64_t place = places.place_of(row);
    if (place < 0) return;
    float values[pack];
    load<pack>(x + row * places.shape.row_elements() + column, values);
    store<pack>(values, y + place + places.offset_of(column));
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return places.shape.row_elements(); }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const T* from = x + row * places.shape.row_elements();
    const std::int64_t place = places.place_of(row);
    if (place < 0) return;
    places.for_each_run(begin, end, [&](std::int64_t at, std::int64_t offset, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) y[place + offset + i] = from[at + i];
    });
  }
};

/// Runs Gather- or ScatterPatches on rows from `first_row` on.
template <template <class> class Copy, class T>
void copy_patches(const Stream& stream, const PatchRows& shape, std::int64_t first_row,
                  std::int64_t rows, const T* x, T* y) {
  const Copy<T> copy{PatchPlaces(shape, first_row), x, y};
  const bool packed = packs_fit(x, y) && copy.places.has_packs_of(Copy<T>::lanes);
  dispatch(stream, [=](const auto& space) {
    for_each_row(space, Copy<T>::label(), rows, shape.row_elements(), packed, copy);
  });
}

}  // namespace

template <class T>
void gather_patches(const Stream& stream, const PatchRows& shape, std::int64_t first_row,
                    std::int64_t rows, const T* x, T* y) {
  copy_patches<GatherPatches>(stream, shape, first_row, rows, x, y);
}
template void gather_patches(const Stream&, const PatchRows&, std::int64_t, std::int64_t,
                             const float*, float*);
template void gather_patches(const Stream&, const PatchRows&, std::int64_t, std::int64_t,
                             const BFloat16*, BFloat16*);
template void gather_patches(const Stream&, const PatchRows&, std::int64_t, std::int64_t,
                             const Float16*, Float16*);

template <class T>
void scatter_patches(const Stream& stream, const PatchRows& shape, std::int64_t rows, const T* x,
                     T* y) {
  copy_patches<ScatterPatches>(stream, shape, 0, rows, x, y);
}
template void scatter_patches(const Stream&, const PatchRows&, std::int64_t, const float*, float*);
template void scatter_patches(const Stream&, const PatchRows&, std::int64_t, const BFloat16*,
                              BFloat16*);
template void scatter_patches(const Stream&, const PatchRows&, std::int64_t, const Float16*,
                              Float16*);

}  // namespace trireme::kernels
