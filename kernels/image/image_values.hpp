// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/image/image.hpp"

namespace trireme::kernels {

/// Enqueues prepare_images() for any pixel type and any number of channels.
template <class T>
void prepare_image_values(const Stream&, const PrepareImages<T>&);

}  // namespace trireme::kernels
