#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "trireme/device/device.hpp"

namespace trireme::test {

/// The device that the tests of ops run on, by the environment: TRIREME_TEST_DEVICE = cpu (also
/// where it is not set), emulated or cuda.
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

/// Whether this program's kernels have a device's form on whatever they run (test_device_form).
/// Defined in main.cpp.
extern const bool kernels_in_device_form;

}  // namespace trireme::test
