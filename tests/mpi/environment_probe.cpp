// SPDX-License-Identifier: Apache-2.0
//
// The program that environment_test.cpp starts: prints the world that it finds, then ends in the
// way and with the code of its arguments.

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <mpi.h>

#include "trireme/comm/environment.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 3;
  const std::string_view way = argv[1];
  const auto code = static_cast<trireme::ExitCode>(std::atoi(argv[2]));
  try {
    trireme::comm::Environment environment;
    int uses_mpi = 0;
    MPI_Initialized(&uses_mpi);
    std::printf("rank %d of %d, %s MPI\n", environment.world().rank(), environment.world().size(),
                uses_mpi != 0 ? "with" : "without");
    if (way == "leave") environment.finalize_and_exit(code);
    if (way == "leave_on_last" && environment.world().rank() + 1 < environment.world().size())
      environment.finalize_and_exit(trireme::ExitCode::done);
    if (way == "leave_on_last") environment.finalize_and_exit(code);
    std::fflush(stdout);
    if (environment.world().rank() == 0) environment.abort(code);  // the others hang
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  } catch (const trireme::Error& error) {
    std::printf("error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
