// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::app {

/// Means and standard deviations (of the population) of training samples.
struct DataStatistics {
  std::int64_t samples = 0, of = 0;  ///< that were read, of all of the set
  /// By channel, in the unit of data.augment.normalize: integers are 0 to 1.
  std::vector<double> mean, std;
  /// By value or component of the target, in units of the data; empty: it has no units.
  std::vector<double> target_mean, target_std;
};

/// Reads up to 4,096 samples, spread over the set, of 4 GiB or less. `dataset` is the training
/// set of the deck, in its form for training. Throws InputError if a sample cannot be read, Failure
/// if the disk fails.
DataStatistics measure_statistics(const deck::Deck& deck, const data::Dataset& dataset);
/// The same from 32 samples, which are read once: a large mean of a target costs digits.
DataStatistics estimate_statistics(const deck::Deck& deck, const data::Dataset& dataset);

/// Returns a note if the numbers of a channel, and one if those of a part of the target, are far
/// from 0 and 1 as the model gets them.
std::vector<std::string> notes_on_scale(const deck::Deck& deck, const DataStatistics& statistics);

/// Returns the statistics as lines of a deck.
std::string to_text(const DataStatistics& statistics);

}  // namespace trireme::app
