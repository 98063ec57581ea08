#pragma once

#include <functional>

#include "trireme/base/check.hpp"

namespace CLI {
class App;
}

namespace trireme::app {

/// What a subcommand does once its options are parsed; main runs it, catches, prints once and leaves.
using Run = std::function<ExitCode()>;

// Each adds one subcommand with its options and help to `root`; when it is chosen, `run` is set.
void add_bench(CLI::App& root, Run& run);
void add_check(CLI::App& root, Run& run);
void add_evaluate(CLI::App& root, Run& run);
void add_export(CLI::App& root, Run& run);
void add_generate(CLI::App& root, Run& run);
void add_import(CLI::App& root, Run& run);
void add_inspect(CLI::App& root, Run& run);
void add_probe(CLI::App& root, Run& run);  ///< not for people: io/hdf5_probe.hpp
void add_shard(CLI::App& root, Run& run);
void add_train(CLI::App& root, Run& run);
void add_verify(CLI::App& root, Run& run);

}  // namespace trireme::app
