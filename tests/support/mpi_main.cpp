// SPDX-License-Identifier: Apache-2.0
#include "mpi.hpp"

#include <iostream>
#include <memory>

#include <gtest/gtest.h>

#include "trireme/device/device.hpp"

namespace {

trireme::comm::Environment* environment = nullptr;

/// Prints only the failures of ranks other than 0.
class QuietPrinter final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << environment->world().rank() << ": "
              << (result.file_name() == nullptr ? "?" : result.file_name()) << ":"
              << result.line_number() << ": " << result.message() << std::endl;
  }
};

}  // namespace

trireme::comm::Environment& test_environment() { return *environment; }

int main(int argc, char** argv) {
  trireme::comm::Environment mpi;
  environment = &mpi;
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (mpi.world().rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new QuietPrinter);
  }
  int result = 0;
  {
    const trireme::KokkosScope kokkos;
    result = RUN_ALL_TESTS();
  }
  mpi.finalize_and_exit(mpi.world().all_reduce(result != 0, trireme::comm::Reduction::max) != 0
                            ? trireme::ExitCode::failure
                            : trireme::ExitCode::done);
}
