// SPDX-License-Identifier: Apache-2.0
//
// Gathers the versions of the program and of its libraries, for `trireme --version`, the log and
// environment.json of a run, `trireme doctor` and checkpoints.
//
// The only source that knows the revision: a new commit compiles this file alone
// (cmake/write_revision.cmake).
#include "trireme/train/records/software_versions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "revision.hpp"
#include "trireme/comm/versions.hpp"
#include "trireme/device/versions.hpp"
#include "trireme/io/versions.hpp"
#include "trireme/ops/versions.hpp"

namespace trireme::train {

std::span<const SoftwareField> software_fields() {
  static constexpr SoftwareField fields[] = {
      {"version", "trireme", &SoftwareVersions::program},
      {"source_revision", "source revision", &SoftwareVersions::source_revision},
      {"compiler", "compiler", &SoftwareVersions::compiler},
      {"flags", "flags", &SoftwareVersions::flags},
      {"build_type", "build type", &SoftwareVersions::build_type},
      {"instruction_set", "CPU kernels", &SoftwareVersions::instruction_set},
      {"mpi", "MPI", &SoftwareVersions::mpi},
      {"hdf5", "HDF5", &SoftwareVersions::hdf5},
      {"kokkos", "Kokkos", &SoftwareVersions::kokkos},
      {"onednn", "oneDNN", &SoftwareVersions::onednn},
      {"onednn_instruction_set", "oneDNN uses", &SoftwareVersions::onednn_instruction_set},
      {"cuda", "CUDA", &SoftwareVersions::cuda},
      {"cudnn", "cuDNN", &SoftwareVersions::cudnn},
      {"nccl", "NCCL", &SoftwareVersions::nccl}};
  return fields;
}

SoftwareVersions software_versions() {
  return {.program = TRIREME_VERSION,
          .source_revision = TRIREME_REVISION,
          .compiler = TRIREME_COMPILER,
          .flags = TRIREME_COMPILER_FLAGS,
          .build_type = TRIREME_BUILD_TYPE,
          .instruction_set = ops::kernel_instruction_set(),
          .mpi = comm::mpi_version(),
          .hdf5 = io::hdf5_version(),
          .kokkos = kokkos_version(),
          .onednn = ops::onednn_version(),
          .onednn_instruction_set = ops::onednn_instruction_set(),
          .cuda = cuda_version(),
          .cudnn = ops::cudnn_version(),
          .nccl = comm::nccl_version()};
}

std::vector<std::string> to_lines(const SoftwareVersions& versions) {
  std::vector<std::string> lines;
  for (const auto& [key, label, member] : software_fields()) {
    const std::string& value = versions.*member;
    lines.push_back(
        fmt::format("{}{} {}", label, lines.empty() ? "" : ":", value.empty() ? "none" : value));
  }
  return lines;
}

std::string to_line(const SoftwareVersions& versions) {
  return fmt::format("{}", fmt::join(to_lines(versions), "; "));
}

std::string to_json(const SoftwareVersions& versions) {
  nlohmann::ordered_json json;
  for (const auto& [key, label, member] : software_fields()) {
    const std::string& value = versions.*member;
    json[key] = value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trireme::train
