// SPDX-License-Identifier: Apache-2.0
#include "trireme/data/targets/move_map.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace trireme::data {
namespace {

template <class T>
void move_values(const SampleInfo& info, const ops::ImageTransform& transform, T missing, T* map,
                 T* from) {
  const std::int64_t height = info.labels[0], width = info.labels[1],
                     components = info.labels.rank() == 3 ? info.labels[2] : 1;
  std::copy_n(map, height * width * components, from);
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t row = y + transform.row,
                         column = transform.column + (transform.flip != 0 ? width - 1 - x : x);
      const bool inside = row >= 0 && row < height && column >= 0 && column < width;
      T* const to = map + (y * width + x) * components;
      if (inside)
        std::copy_n(from + (row * width + column) * components, components, to);
      else
        std::fill_n(to, components, missing);
    }
}

}  // namespace

void move_map(const SampleInfo& info, const ops::ImageTransform& transform, void* labels,
              std::vector<std::byte>& scratch) {
  if (transform.row == 0 && transform.column == 0 && transform.flip == 0) return;
  scratch.resize(static_cast<std::size_t>(info.labels.elements() * size_of(info.label_type)));
  if (info.label_type == DType::float32)
    move_values(info, transform, std::numeric_limits<float>::quiet_NaN(),
                static_cast<float*>(labels), reinterpret_cast<float*>(scratch.data()));
  else
    move_values(info, transform, std::int32_t{-1}, static_cast<std::int32_t*>(labels),
                reinterpret_cast<std::int32_t*>(scratch.data()));
}

}  // namespace trireme::data
