// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clips elements of a gradient as kernels read them.

#include <Kokkos_Core.hpp>

#include <cfloat>

#include "trireme/kernels/update/update.hpp"

namespace trireme::kernels {

/// Leaves the gradient as it is.
struct NoClip {
  KOKKOS_FUNCTION float operator()(float g) const { return g; }
};
/// Clips an element of the gradient to [-limit, limit]. Values that are not finite stay, so that
/// the norm shows them and the step is skipped.
struct Clip {
  float limit;
  KOKKOS_FUNCTION float operator()(float g) const {
    const float magnitude = fabsf(g);
    return magnitude > limit && magnitude <= FLT_MAX ? copysignf(limit, g) : g;
  }
};

/// Calls body(clip) with the form of clipping for this limit: the kernels are compiled for both, so
/// that an update without clipping does not pay for it.
template <class Body>
void with_clipping(float limit, Body&& body) {
  limit < unlimited ? body(Clip{limit}) : body(NoClip{});
}

}  // namespace trireme::kernels
