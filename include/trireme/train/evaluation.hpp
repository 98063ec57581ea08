#pragma once

#include <cmath>

#include "trireme/data/loader.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// Metrics over a whole set, from summed counts over all ranks: no sample twice, none left out. The
/// same numbers on every rank.
struct Metrics {
  double loss = 0, top1 = 0, top5 = 0;
  std::int64_t num_labels = 0;
  double perplexity() const { return std::exp(loss); }
};

/// One pass over the loader's set (an evaluation loader), with the average of the weights and
/// running statistics where the replica keeps one; afterwards they are what they were. Collective
/// over the replica's mesh.
Metrics evaluate(Replica& replica, data::Loader& loader);

}  // namespace trireme::train
