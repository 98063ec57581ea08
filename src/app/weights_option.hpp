#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "trireme/checkpoint/exchange.hpp"

namespace trireme::app {

/// `--weights model|ema`: which of a checkpoint's weights are taken. `weights` stays as it is, which `otherwise` names, where the option is not given.
inline void add_weights_option(CLI::App& command, checkpoint::Weights& weights, const std::string& otherwise) {
  const auto take = [&weights](const std::string& name) { weights = name == "ema" ? checkpoint::Weights::ema : checkpoint::Weights::model; };
  command.add_option_function<std::string>("--weights", take, "model: as trained; ema: their average (optimizer.ema); default: " + otherwise)->check(CLI::IsMember({"model", "ema"}));
}

}  // namespace trireme::app
