#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/log.hpp"

namespace trireme::monitor {

/// What a person watches. On a terminal one line that moves (at most ten times a second); elsewhere
/// one line every so many steps, without control characters.
class Progress {
 public:
  struct State {
    std::int64_t step = 0, total_steps = 0;  ///< total 0: the end is a time
    double epoch = 0, total_epochs = 0;
    double loss = 0,
           accuracy = -1;  ///< accuracy of the training batches since the last line, 0..1; -1: none
    double per_second = 0;  ///< images, or tokens
    bool tokens = false;
    double seconds_left = -1;
  };
  /// `enabled`: world rank 0. `every_steps`: between lines where stderr is not a terminal.
  Progress(Log& log, bool enabled, std::int64_t every_steps);
  ~Progress();
  /// After a step: shows a line where one is due; the last step's always.
  void show(const State& state);
  /// Ends the moving line (before other output, at the end).
  void clear();

 private:
  Log& log_;
  bool enabled_, terminal_, line_shown_ = false;
  std::int64_t every_steps_, last_step_ = -1;
  double last_shown_ = 0;
};

/// "step 400/4680, epoch 0.85/10, loss 0.4012, accuracy 85.31 %, 1203 images/s, 12:05 left": parts
/// that are not known are left out.
std::string progress_line(const Progress::State& state);

}  // namespace trireme::monitor
