// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::app {

/// Returns notes on classes without a sample: of all samples, or of the pixels of 32 of them; and
/// on pixels that do not count. `dataset`: the training set. Throws InputError if a sample cannot
/// be read, Failure if the disk fails.
std::vector<std::string> notes_on_classes(const deck::Deck& deck, const data::Dataset& dataset);

}  // namespace trireme::app
