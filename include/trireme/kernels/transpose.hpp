// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// y [batch, columns, rows] = x [batch, rows, columns] with rows and columns exchanged.
template <class T>
void transpose(const Stream&, std::int64_t batch, std::int64_t rows, std::int64_t columns,
               const T* x, T* y);

}  // namespace trireme::kernels
