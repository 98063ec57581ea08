// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "trireme/device/device.hpp"

namespace trireme::test {

/// Returns the device on which tests of ops run: TRIREME_TEST_DEVICE = cpu (the default), emulated
/// or cuda. Exits with code 2 for another value.
inline DeviceKind tested_device() {
  static const DeviceKind kind = [] {
    const char* const name = std::getenv("TRIREME_TEST_DEVICE");
    if (name == nullptr || std::string_view(name) == "cpu") return DeviceKind::cpu;
    if (std::string_view(name) == "emulated") return DeviceKind::emulated;
    if (std::string_view(name) == "cuda") return DeviceKind::cuda;
    std::fprintf(stderr, "TRIREME_TEST_DEVICE = %s: cpu, emulated or cuda\n", name);
    std::exit(2);
  }();
  return kind;
}

/// Returns whether ops of the tested device may be fused (ContextOptions::fusions): not with
/// TRIREME_TEST_FUSIONS = off.
inline bool tested_fusions() {
  const char* const word = std::getenv("TRIREME_TEST_FUSIONS");
  return word == nullptr || std::string_view(word) != "off";
}

/// True in the programs of test_device_form, whose kernels are compiled in their device form even
/// for the CPU. Defined in main.cpp.
extern const bool kernels_in_device_form;

}  // namespace trireme::test
