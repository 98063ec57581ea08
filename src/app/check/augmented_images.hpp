// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/data/dataset.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::app {

/// Writes a PNG file of training images as the model sees them, before normalization: a column for
/// each of up to eight samples, a row for each of six epochs. Returns a line that describes it.
///
/// `dataset` is the training set of the deck, in its form for training, validated. Values below 0
/// and above 1 are clipped. Images that do not have 3 channels are drawn by their first one. Erased
/// pixels are black. Throws InputError if an image cannot be read or the path is wrong, Failure if
/// the disk fails.
std::string draw_augmented_images(const deck::Deck& deck, const data::Dataset& dataset,
                                  const std::string& path);

}  // namespace trireme::app
