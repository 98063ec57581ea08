#pragma once

#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::io {

// Protects the program from damaged HDF5 files. The HDF5 library itself can crash, loop or exhaust
// memory on a damaged file. So a separate process reads each untrusted file (a shard, or a
// checkpoint without a seal) first, under limits of memory and time. If that process dies, the user
// sees an error message instead of a crash (docs/design/decisions/0011).

/// Sets the command that starts the probe process: program and first arguments. The paths are
/// appended. Called once by main(). Without it probe_hdf5() does nothing.
void set_hdf5_probe_command(std::vector<std::string> command);

/// Checks files in a probe process and waits for it. Files that passed before and have the same
/// size and time are skipped.
///
/// The process is started by posix_spawn(), which copies no page of this process, so it is safe
/// under MPI with pinned memory. Throws InputError with the path of the file that crashed the
/// process or exceeded its limits. Other errors in a file are left to its readers. Throws Failure
/// if no process can be started.
void probe_hdf5(const std::vector<std::string>& paths);

/// Runs in the probe process: sets the limits, reads each file, and writes one byte to descriptor 1
/// after each file. Returns the exit code of the process: wrong_input if a file exceeds the memory
/// limit.
ExitCode run_hdf5_probe(const std::vector<std::string>& paths);

/// Initializes HDF5 before MPI and disables its exit handler. After a failed close on a broken disk
/// that handler would write to the disk again, while MPI shuts down. The owners of files close
/// them. Called once by main(). Throws Failure.
void initialize_hdf5();

}  // namespace trireme::io
