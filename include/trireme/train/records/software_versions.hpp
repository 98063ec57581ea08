// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

namespace trireme::train {

/// The program and the libraries that it uses. The text of a library that this build does not use
/// is empty.
struct SoftwareVersions {
  std::string program;  ///< "0.1.0"
  std::string
      source_revision;  ///< git revision, "-dirty" after it if files were changed; "unknown"
  std::string compiler, flags, build_type;
  std::string instruction_set;  ///< for which the CPU kernels were compiled
  std::string mpi, hdf5, kokkos, onednn;
  std::string onednn_instruction_set;  ///< that oneDNN chose on this machine
  std::string cuda, cudnn, nccl;
};

/// A member of SoftwareVersions with its names.
struct SoftwareField {
  const char* key;    ///< in environment.json and `trireme --version --json`
  const char* label;  ///< in text
  std::string SoftwareVersions::* value;
};

/// Returns all members of SoftwareVersions in the order in which they are printed.
std::span<const SoftwareField> software_fields();

/// Asks the libraries for their versions. Needs neither MPI_Init nor a GPU. Throws Failure if a
/// library does not report its version.
SoftwareVersions software_versions();

/// Returns the lines of `trireme --version`: "trireme 0.1.0", then lines as "HDF5: 1.14.6". A
/// library that is not used is "none".
std::vector<std::string> to_lines(const SoftwareVersions& versions);

/// Returns the same in one line, with "; " between the values.
std::string to_line(const SoftwareVersions& versions);

/// Returns the same as one JSON object on several lines. A library that is not used is null.
std::string to_json(const SoftwareVersions& versions);

}  // namespace trireme::train
