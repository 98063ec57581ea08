// SPDX-License-Identifier: Apache-2.0
//
// `trireme index-hdf5` (hidden): opens untrusted HDF5 files for another Trireme process, which
// survives if HDF5 crashes.
#include <memory>
#include <string>
#include <vector>

#include "app/commands.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::app {

void add_index_hdf5(CommandLine& line) {
  Command command =
      line.add("index-hdf5", "Describe HDF5 files for another process of this program");
  command.hide();
  const auto paths = std::make_shared<std::vector<std::string>>();
  command.option("PATH", *paths, "Files").required();
  command.set_action([paths] { return io::run_hdf5_indexing(*paths); });
}

}  // namespace trireme::app
