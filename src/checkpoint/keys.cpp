// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the table [checkpoint].
#include "trireme/checkpoint/keys.hpp"

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
  v.field({"best",
           "Selects the metric whose best checkpoint is kept as best.h5: loss, top1, perplexity or "
           "none."},
          choice<std::string>(
              checkpoint.best,
              {{"none", ""}, {"top1", "top1"}, {"loss", "loss"}, {"perplexity", "perplexity"}}));
  v.field({"async",
           "Writes checkpoints in a thread while training continues; false lets training wait."},
          flag(checkpoint.asynchronous));
}

}  // namespace trireme::checkpoint
