// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/train/scores/sample_result.hpp"

namespace trireme::app {

/// Returns an SVG picture of these samples of a dataset, in their order, each with its true class,
/// predicted class and the probability of the latter. Images are drawn before normalization; values
/// below 0 and above 1 are clipped. Images that do not have 3 channels are drawn by their first
/// one. Throws InputError if an image cannot be read.
std::string draw_worst(const std::string& title, const data::Dataset& dataset,
                       std::span<const train::SampleResult> results,
                       const std::vector<std::string>& names);

}  // namespace trireme::app
