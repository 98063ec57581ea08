// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/data/images/image_form.hpp"
#include "trireme/data/options.hpp"
#include "trireme/ops/image.hpp"

namespace trireme::data {

/// Draws the pixels that one sample loses in one epoch; often none.
///
/// As torchvision's RandomErasing (Zhong et al. 2020): with the probability, up to ten times draws
/// a part of the area, uniform in `scale`, and a ratio, uniform in its logarithm in `ratio`. The
/// first rectangle that is lower and narrower than the image is taken, at a uniform position. If
/// none is, nothing is erased.
ops::PixelRange draw_erased(const RandomErasing& erase, std::uint64_t key, ImageExtents image,
                            std::int64_t epoch, std::int64_t sample);

/// Draws from Beta(alpha, alpha) with numbers of `key`: a / (a + b) of two numbers of the
/// distribution Gamma(alpha).
double draw_beta(double alpha, std::uint64_t key);

/// Returns the pixels that come from the partner if the own image keeps `weight`, as torchvision's
/// CutMix (Yun et al. 2019): the sides are those of the image times sqrt(1 - weight), around a
/// center, clipped to the image.
ops::PixelRange pasted_around(std::int64_t row, std::int64_t column, double weight,
                              ImageExtents image);

/// Returns the part of the image that a range covers.
double part_of_area(const ops::PixelRange& range, ImageExtents image);

}  // namespace trireme::data
