// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include "trireme/kernels/image/image.hpp"

namespace trireme::kernels {

/// Returns whether a pixel is in a range.
KOKKOS_FORCEINLINE_FUNCTION bool contains(const PixelRange& range, std::int64_t row,
                                          std::int64_t column) {
  return row >= range.top && row < range.bottom && column >= range.left && column < range.right;
}

/// Returns whether pixels of a row come from the partner.
KOKKOS_FORCEINLINE_FUNCTION bool needs_partner(const ImageTransform& transform, std::int64_t row) {
  return transform.mix == Mix::mixup ||
         (transform.mix == Mix::cutmix && row >= transform.pasted.top &&
          row < transform.pasted.bottom);
}

}  // namespace trireme::kernels
