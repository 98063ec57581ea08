// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace trireme::app {

/// Options of `trireme bench data`.
struct BenchDataOptions {
  std::string folder;        ///< of shards
  int workers = 0;           ///< reader threads; 0: 1, 2 and 4 are measured
  std::int64_t batch = 256;  ///< samples of a micro-batch
  std::int64_t context = 0;  ///< tokens of a sample; 0: 1024
  /// Side of random resized crops; 0: plain images are not cropped, encoded ones to 224.
  std::int64_t crop = 0;
  std::string decode = "exact";  ///< or "fast", as data.decode
  bool colors = false;           ///< with color_jitter and rand_augment
  double seconds = 2;            ///< for each measurement
  bool cold = false;             ///< the shards are dropped from the page cache before each one
  bool json = false;
};

/// Measures how fast a dataset is read and prepared on this host, in one process, and prints a
/// table. Throws InputError if the folder is no dataset.
void bench_data(const BenchDataOptions& options);

}  // namespace trireme::app
