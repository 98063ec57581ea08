// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/software_versions.hpp"

#include "trireme/comm/versions.hpp"
#include "trireme/device/versions.hpp"
#include "trireme/io/versions.hpp"
#include "trireme/ops/versions.hpp"

namespace trireme::train {

SoftwareVersions software_versions(const comm::Environment& environment) {
  return {.program = TRIREME_VERSION,
          .source_revision = TRIREME_REVISION,
          .compiler = TRIREME_COMPILER,
          .build_type = TRIREME_BUILD_TYPE,
          .mpi = environment.library(),
          .hdf5 = io::hdf5_version(),
          .kokkos = kokkos_version(),
          .onednn = ops::onednn_version(),
          .cudnn = ops::cudnn_version(),
          .nccl = comm::nccl_version()};
}

}  // namespace trireme::train
