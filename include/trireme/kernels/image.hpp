#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// How one sample is taken from its stored image: shift of the crop window (rows, columns; zero
/// padding outside) and mirroring.
struct ImageTransform {
  std::int16_t row = 0, column = 0;
  std::uint8_t flip = 0;
};

template <class T>
struct PrepareImages {
  std::int64_t batch = 0, channels = 0;  ///< channels <= 4
  std::int64_t stored_height = 0, stored_width = 0, height = 0, width = 0;
  float mean[4] = {0, 0, 0, 0}, inverse_std[4] = {1, 1, 1, 1};
  const std::uint8_t* x = nullptr;             ///< [batch, stored_height, stored_width, channels]
  const ImageTransform* transforms = nullptr;  ///< [batch]
  T* y = nullptr;  ///< = [batch, height, width, channels]: (x / 255 - mean) * inverse_std
};
template <class T>
void prepare_images(const Stream&, const PrepareImages<T>&);

}  // namespace trireme::kernels
