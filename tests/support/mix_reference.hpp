// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace trireme::test {

/// Reads the images, losses and boxes of torchvision and PyTorch for given draws, made by
/// tests/system/make_mix_reference.py. The file is beside the program, so that the program may be
/// moved with it. Throws std::runtime_error if it is missing.
inline nlohmann::json mix_reference() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").replace_filename("mix.json");
  std::ifstream file(path);
  if (!file)
    throw std::runtime_error(path.string() +
                             " is missing; copy tests/system/reference/mix.json to it");
  return nlohmann::json::parse(file);
}

}  // namespace trireme::test
