// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "app/command_line/command_line.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"

namespace trireme::app {

/// Adds `--weights model|ema`: the weights of a checkpoint to use. Without the option `weights`
/// keeps its value; `default_text` describes that in the help.
inline void add_weights_option(Command& command, checkpoint::Weights& weights,
                               const std::string& default_text) {
  const auto take = [&weights](const std::string& name) {
    weights = name == "ema" ? checkpoint::Weights::ema : checkpoint::Weights::model;
  };
  command
      .option("--weights", take,
              "model: as trained; ema: their average (optimizer.ema); default: " + default_text)
      .one_of({"model", "ema"});
}

}  // namespace trireme::app
