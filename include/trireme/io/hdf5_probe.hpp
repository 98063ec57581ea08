#pragma once

#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::io {

// HDF5's own library can be brought down by a damaged file: it reads past its buffers, follows
// addresses in circles, takes memory without end. Files that carry no seal are therefore read first
// by a process of its own, under limits, whose death is an error message (docs/decisions/0011).

/// How that process is started: the program and its first arguments, behind which the paths come.
/// Set once, by main(); until then nothing is probed.
void set_hdf5_probe_command(std::vector<std::string> command);

/// Lets such a process look over files. Those that it looked at before and that have not changed
/// since (size, time) are passed over. Started by posix_spawn: no page of this process is copied,
/// so that it may stand under MPI with memory pinned. Throws InputError naming the file at which
/// the process died or came to its limits; what is wrong with a file otherwise is for its readers
/// to find. Throws Failure where there is no starting a process.
void probe_hdf5(const std::vector<std::string>& paths);

/// What that process does: takes its limits, looks over each file, and writes a byte to descriptor
/// 1 after each. Returns its exit code: wrong_input where a file takes more memory than it may.
ExitCode run_hdf5_probe(const std::vector<std::string>& paths);

/// HDF5 is started here, before MPI, and told not to end itself with MPI or the process: after a
/// failed close on a broken disk its end would write to that disk again, through an MPI that is
/// shutting down. Files are closed by their owners, and the process ends by itself.
void initialize_hdf5();

}  // namespace trireme::io
