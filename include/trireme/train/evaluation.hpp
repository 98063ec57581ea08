#pragma once

#include <cmath>

#include "trireme/data/loader.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// Metrics of a whole dataset. Each sample counts exactly once; all ranks hold the same numbers.
/// `loss`, `top1` and `top5` are means over samples (tokens for language models, counted in
/// `samples`).
struct Metrics {
  double loss = 0, top1 = 0, top5 = 0;
  std::int64_t num_labels = 0;
  double perplexity() const { return std::exp(loss); }
};

/// Evaluates the whole dataset of an evaluation loader and returns its metrics on every rank.
///
/// Uses the average of weights and statistics if the replica keeps one, and puts the trained
/// weights back afterwards. Waits for the device. Collective over the replica's mesh. Without model
/// parallelism an error on one rank is thrown on all; otherwise it is thrown on that rank alone.
Metrics evaluate(Replica& replica, data::Loader& loader);

}  // namespace trireme::train
