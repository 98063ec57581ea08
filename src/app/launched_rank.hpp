#pragma once

namespace trireme::app {

/// Returns this process's rank from the launcher's environment variables; 0 without a launcher.
/// Works before MPI is started and after it has ended.
int launched_rank();

}  // namespace trireme::app
