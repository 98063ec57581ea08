// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {

/// Checks the seal over every byte of a file, then the values, as `trireme verify` does. Returns
/// the results of io::with_seal().
inline std::string verify_checkpoint(const std::string& path) {
  const std::string seal = io::check_seal(path);
  return io::is_damage(seal)
             ? seal
             : io::with_seal(seal, verify_values(io::Hdf5Reader(io::index_hdf5(path))));
}

}  // namespace trireme::checkpoint
