// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Names of the files and folders in a run folder, of which monitor::RunFolder makes paths. They
/// are here because library checkpoint, which does not use monitor, needs some of them.
namespace trireme::io::run_names {

inline constexpr const char *algorithms = "algorithms.txt", *chain_log = "chain.log",
                            *checkpoints = "checkpoints", *deck = "deck.toml", *decks = "decks",
                            *environment = "environment.json", *exit_record = "exit.json",
                            *lease = "run.lock", *log = "log.txt", *metrics = "metrics.jsonl",
                            *prediction = "prediction.json", *restart_attempts = "restart.json",
                            *stop_file = "STOP", *tensorboard = "tensorboard",
                            *trace = "trace.json";
inline constexpr const char* best_checkpoint = "best.h5";  ///< in `checkpoints`

}  // namespace trireme::io::run_names
