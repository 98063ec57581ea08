#pragma once

#include "command_line.hpp"

namespace trireme::app {

// Each adds one subcommand with its options and help.
void add_bench(CommandLine& line);
void add_check(CommandLine& line);
void add_evaluate(CommandLine& line);
void add_export(CommandLine& line);
void add_generate(CommandLine& line);
void add_import(CommandLine& line);
void add_inspect(CommandLine& line);
void add_probe(CommandLine& line);  ///< not for people: io/hdf5_probe.hpp
void add_shard(CommandLine& line);
void add_train(CommandLine& line);
void add_verify(CommandLine& line);

}  // namespace trireme::app
