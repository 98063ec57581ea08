// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Extents of images [batch, height, width, channels].
struct Images {
  std::int64_t batch = 0, height = 0, width = 0, channels = 0;
};

/// Rows and columns in front of an image and behind it, at most those of the image.
struct Borders {
  std::int64_t before = 0, after = 0;
};

/// y [batch, height + both borders, width + both borders, channels] = x, continued periodically.
template <class T>
void pad_periodically(const Stream&, const Images&, const Borders&, const T* x, T* y);
/// dx = sum of dy over the copies of each pixel of dx [+ addend]. Null: no addend.
template <class T>
void sum_periodic_copies(const Stream&, const Images&, const Borders&, const T* dy, const T* addend,
                         T* dx);

/// y [batch, factor height, factor width, channels] = each pixel of x factor x factor times.
template <class T>
void upsample(const Stream&, const Images&, std::int64_t factor, const T* x, T* y);
/// dx = sum of dy over the factor x factor copies of each pixel of dx.
template <class T>
void sum_upsampled(const Stream&, const Images&, std::int64_t factor, const T* dy, T* dx);

}  // namespace trireme::kernels
