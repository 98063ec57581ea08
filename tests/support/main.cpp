// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "tested_device.hpp"
#include "trireme/device/device.hpp"

#if defined(TRIREME_DEVICE_FORM)
const bool trireme::test::kernels_in_device_form = true;
#else
const bool trireme::test::kernels_in_device_form = false;
#endif

namespace {
// Starts Kokkos in a test environment instead of main(), because listing the test cases must not
// start or print anything.
struct KokkosEnvironment : testing::Environment {
  std::unique_ptr<trireme::KokkosScope> kokkos;
  void SetUp() override { kokkos = std::make_unique<trireme::KokkosScope>(); }
  void TearDown() override { kokkos.reset(); }
};
}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string why;
  if (trireme::test::tested_device() == trireme::DeviceKind::cuda &&
      trireme::cuda_device_count(&why) == 0) {
    std::printf("skipped: no CUDA device: %s\n", why.c_str());
    return 77;  // ctest reports the test as skipped
  }
  testing::AddGlobalTestEnvironment(new KokkosEnvironment);
  return RUN_ALL_TESTS();
}
