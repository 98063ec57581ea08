#pragma once

#include <fstream>

#include <nlohmann/json.hpp>

namespace trireme::test {

/// Reads the images, losses and boxes of torchvision and PyTorch for given draws, made by
/// tests/system/make_mix_reference.py.
inline nlohmann::json mix_reference() {
  std::ifstream file(TRIREME_REFERENCE "/mix.json");
  return nlohmann::json::parse(file);
}

}  // namespace trireme::test
