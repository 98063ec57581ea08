#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/sampler.hpp"

namespace trireme::data {

/// Table [data.augment] of the deck.
struct AugmentOptions {
  std::vector<double> mean, std;  ///< normalize = { mean, std }, one a channel; empty: value / 255
  std::int64_t random_crop = 0;   ///< padding in pixels; 0: off
  bool flip = false;
};

/// Table [data] of the deck.
struct DataOptions {
  std::string train, validation, test;  ///< folders; the last two may be empty
  Shuffle shuffle = Shuffle::full;
  std::int64_t shuffle_block = 1024, shuffle_window = 65536;
  int workers = 0;  ///< reader threads; 0: workers = "auto"
  int prefetch = 4;
  double verify = 0;  ///< share of the checksum blocks that training compares in each epoch
  bool drop_last = true;
  AugmentOptions augment;
};

}  // namespace trireme::data
