// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "app/command_line/command_line.hpp"

namespace trireme::app {

// Each function adds one command with its options and help.
void add_bench(CommandLine& line);
void add_check(CommandLine& line);
void add_completion(CommandLine& line);  ///< hidden; `line` must outlive the action
void add_doctor(CommandLine& line);
void add_evaluate(CommandLine& line);
void add_export(CommandLine& line);
void add_generate(CommandLine& line);
void add_import(CommandLine& line);
void add_inspect(CommandLine& line);
void add_index_hdf5(CommandLine& line);  ///< hidden; started by io::index_hdf5() only
void add_man(CommandLine& line);         ///< hidden; `line` must outlive the action
void add_plan(CommandLine& line);
void add_predict(CommandLine& line);
void add_shard(CommandLine& line);
void add_train(CommandLine& line);
void add_train_tokenizer(CommandLine& line);  ///< hidden; started by `shard` only
void add_verify(CommandLine& line);
void add_report(CommandLine& line);
void add_watch(CommandLine& line);

}  // namespace trireme::app
