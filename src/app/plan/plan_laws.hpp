// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/command_line/command_line.hpp"
#include "trireme/plan/machine/machine.hpp"

namespace trireme::app {

/// The options of `trireme plan` without a deck, as they were written; empty: not given.
struct LawArguments {
  std::string model_size, tokens;  // numbers of parameters and tokens: "7B", "1.5T", "1e12"
  std::string budget, gpu_hours;   // FLOP, and hours of one GPU
  std::string rate, mfu;           // FLOP/s of a GPU, or the part of its peak

  bool any() const;
};

/// Adds the options to the command; `arguments` must live until it has run.
void add_law_options(Command& command, LawArguments& arguments);

/// Plans by scaling laws: FLOPs, GPU-hours and days of a model or a budget, compute-optimal sizes,
/// and the memory of the state. `price`: US dollars for a GPU and hour; 0: that of the machine.
/// `ranks`: GPUs; 0: not given. `json`: file, "-": standard output; empty: prints lines. Throws
/// InputError with the option at fault.
void plan_by_laws(const LawArguments& arguments, const std::optional<plan::Machine>& machine,
                  double price, int ranks, const std::string& json);

}  // namespace trireme::app
