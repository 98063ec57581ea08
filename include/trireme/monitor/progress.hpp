// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/log.hpp"

namespace trireme::monitor {

/// Shows the progress of a run on stderr. On a terminal it updates one line at most ten times per
/// second. Otherwise it logs one line every `every_steps` steps, without control characters.
class Progress {
 public:
  struct State {
    std::int64_t step = 0, total_steps = 0;  ///< total 0: the run ends by time
    double epoch = 0, total_epochs = 0;
    /// Loss and accuracy (0..1) over the training batches since the last line. Accuracy -1: not
    /// available.
    double loss = 0, accuracy = -1;
    double per_second = 0;  ///< images or tokens
    bool tokens = false;
    double seconds_left = -1;  ///< -1: unknown
    double flops_per_s = 0;    ///< model FLOP/s of a rank; 0: unknown
    double mfu = -1;           ///< its part of the peak (0..1); -1: the peak is unknown
  };
  /// `enabled`: true on world rank 0. `every_steps`: steps between lines if stderr is not a
  /// terminal.
  Progress(Log& log, bool enabled, std::int64_t every_steps);
  ~Progress();
  /// Called after each step. Shows a line if one is due, and always for the last step.
  void show(const State& state);
  /// Clears the line on the terminal. Called before other output and at the end.
  void clear();

 private:
  Log& log_;
  bool enabled_, terminal_, line_shown_ = false;
  std::int64_t every_steps_, last_step_ = -1;
  double last_shown_ = 0;
};

/// Returns "step 400/4680, epoch 0.85/10, loss 0.4012, accuracy 85.31 %, 1203 images/s, 12:05
/// left, 41.2 TFLOP/s a rank, MFU 45.1 %". Leaves out unknown parts.
std::string progress_line(const Progress::State& state);

}  // namespace trireme::monitor
