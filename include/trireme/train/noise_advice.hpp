// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "trireme/deck/deck.hpp"
#include "trireme/train/layout.hpp"

namespace trireme::train {

/// The gradient noise scale that a run measured, in samples.
struct NoiseReading {
  double samples = 0;        ///< the last one
  double low = 0, high = 0;  ///< the range of the later half
};

/// Returns the reading of a run's measurements in their order. Those that are not positive are left
/// out: the noise hid the gradient. None if no other is left.
std::optional<NoiseReading> read_noise(std::span<const double> measurements);

/// The batch of a deck, compared with another one by a noise scale.
struct NoiseAdvice {
  std::int64_t batch = 0;  ///< the largest of the deck
  std::int64_t other = 0;  ///< the batch with which it is compared
  double epochs = 0;       ///< factor of the epochs that it needs to the same loss
  std::string text;        ///< all of it in words
  std::string ramp;        ///< keys with a ramp up to `batch`, as in `batch.ramp = [..]`; or empty
};
/// Compares the largest batch of the deck with 256 samples, or with the noise scale if it is not
/// larger than 256 (McCandlish et al. 2018, section 2.3). The advice has a ramp if the batch is
/// larger than the noise scale, the deck has no ramp, and run.stop is no time.
NoiseAdvice noise_advice(const NoiseReading& reading, const deck::Deck& deck,
                         const ResolvedLayout& layout);

}  // namespace trireme::train
