#pragma once

namespace trireme::app {

/// This process's rank as its launcher says; 0 where there is none. MPI may not be up, or no more.
int launched_rank();

}  // namespace trireme::app
