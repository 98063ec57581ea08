#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "trireme/io/hdf5_probe.hpp"

namespace trireme::app {

void add_probe(CLI::App& root, Run& run) {
  CLI::App* command = root.add_subcommand("probe-hdf5", "Look over HDF5 files for another process of this program");
  command->group("");  // not in the help
  const auto paths = std::make_shared<std::vector<std::string>>();
  command->add_option("PATH", *paths, "Files")->required();
  command->callback([paths, &run] { run = [paths] { return io::run_hdf5_probe(*paths); }; });
}

}  // namespace trireme::app
