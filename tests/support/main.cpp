#include <gtest/gtest.h>

#include "trireme/device/device.hpp"

namespace {
// Inside an environment, not in main: listing the cases must start nothing and print nothing.
struct KokkosEnvironment : testing::Environment {
  std::unique_ptr<trireme::KokkosScope> kokkos;
  void SetUp() override { kokkos = std::make_unique<trireme::KokkosScope>(); }
  void TearDown() override { kokkos.reset(); }
};
}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new KokkosEnvironment);
  return RUN_ALL_TESTS();
}
