// SPDX-License-Identifier: Apache-2.0
//
// Copies square patches of images to rows of a matrix. Called by src/ops/patches.cpp for the
// product of a patch embedding.
// A row of a patch is contiguous in the image and in the matrix. Memory traffic: the images are
// read once, the matrix is written once.

#include "trireme/kernels/image/patches.hpp"

#include "kernels/space/packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string patches_label = "trireme/kernels/gather_patches";

template <class T>
struct GatherPatches {
  GatherPatches(const PatchRows& all, std::int64_t first, const T* from, T* to)
      : shape(all),
        first_row(first),
        sample_rows(all.rows_of_sample()),
        grid_width(all.grid_width()),
        line(all.patch * all.channels),
        x(from),
        y(to) {}

  PatchRows shape;
  std::int64_t first_row;
  Divisor sample_rows, grid_width;
  Divisor line;  ///< numbers of one row of pixels of a patch
  const T* x;
  T* y;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1;

  bool packed() const {
    return packs_fit(x, y) && line.value() % lanes == 0 && image_line() % lanes == 0;
  }
  KOKKOS_FUNCTION std::int64_t image_line() const { return shape.width * shape.channels; }
  /// Returns the first number of the patch of a row in x; null for a row of zeros.
  KOKKOS_FUNCTION const T* patch_of(std::int64_t row) const {
    const std::int64_t sample = sample_rows.quotient(first_row + row),
                       patch = first_row + row - sample * sample_rows.value() - shape.leading;
    if (patch < 0) return nullptr;
    const std::int64_t top = grid_width.quotient(patch), left = patch - top * grid_width.value();
    return x + (sample * shape.height + top * shape.patch) * image_line() + left * line.value();
  }

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    float values[pack] = {};
    if (const T* patch = patch_of(row); patch != nullptr) {
      const std::int64_t pixels = line.quotient(column);
      load<pack>(patch + pixels * image_line() + column - pixels * line.value(), values);
    }
    store<pack>(values, y + row * shape.row_elements() + column);
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.row_elements(); }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    T* to = y + row * shape.row_elements();
    const T* patch = patch_of(row);
    if (patch == nullptr) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<T>(0);
      return;
    }
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t pixels = line.quotient(i), line_end = (pixels + 1) * line.value(),
                         stop = line_end < end ? line_end : end;
      const T* from = patch + pixels * image_line() - pixels * line.value();
      for (; i < stop; ++i) to[i] = from[i];
    }
  }
};

}  // namespace

template <class T>
void gather_patches(const Stream& stream, const PatchRows& shape, std::int64_t first_row,
                    std::int64_t rows, const T* x, T* y) {
  const GatherPatches<T> gather(shape, first_row, x, y);
  dispatch(stream, [=](const auto& space) {
    for_each_row(space, patches_label, rows, shape.row_elements(), gather.packed(), gather);
  });
}
template void gather_patches(const Stream&, const PatchRows&, std::int64_t, std::int64_t,
                             const float*, float*);
template void gather_patches(const Stream&, const PatchRows&, std::int64_t, std::int64_t,
                             const BFloat16*, BFloat16*);
template void gather_patches(const Stream&, const PatchRows&, std::int64_t, std::int64_t,
                             const Float16*, Float16*);

}  // namespace trireme::kernels
