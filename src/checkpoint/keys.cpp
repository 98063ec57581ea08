// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the table [checkpoint].
#include "trireme/checkpoint/keys.hpp"

#include "trireme/base/answer.hpp"

namespace trireme::checkpoint {

using namespace keys;

void visit_keys(Visitor& v, CheckpointOptions& checkpoint) {
  v.table("checkpoint");
  v.field({"every", "Sets the interval between checkpoints, as in \"1 epoch\" or \"30 minutes\"."},
          duration(checkpoint.every, DurationUnits::counts_or_times, true));
  v.field({"keep", "Sets the number of newest checkpoints that are kept."},
          integer(checkpoint.keep, at_least(1)));
  v.field({"keep_every",
           "Keeps the first checkpoint at or past each multiple of this duration permanently, as "
           "in \"10 epochs\"; \"none\" turns it off."},
          optional_duration(checkpoint.keep_every, DurationUnits::counts, true));
  std::vector<std::pair<std::string, std::string>> metrics{{"none", ""}};
  for (const std::string& word : metric_words()) metrics.emplace_back(word, word);
  v.field({"best", "Selects the metric whose best checkpoint is kept as best.h5, or none."},
          choice<std::string>(checkpoint.best, std::move(metrics)));
  v.field({"async",
           "Writes checkpoints in a thread while training continues; false lets training wait."},
          flag(checkpoint.asynchronous));
}

}  // namespace trireme::checkpoint
