// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/options.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::data {

// Fields of the table [data.augment]. Each keeps a reference to its option, which must outlive it.
/// normalize = { mean = [..], std = [..] }.
keys::Field normalize(std::vector<double>& mean, std::vector<double>& deviation);
/// The padding in pixels: 4 or { padding = 4 }.
keys::Field random_crop(std::int64_t& padding);
/// { size = 224, scale = [low, high], ratio = [low, high] }, or false.
keys::Field random_resized_crop(RandomResizedCrop& crop);
/// { resize = 256, crop = 224 }, or false.
keys::Field evaluation_crop(EvaluationCrop& crop);
/// { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }, or false.
keys::Field color_jitter(ColorJitter& jitter);
/// { count = 2, magnitude = 9 }, or false.
keys::Field rand_augment(RandAugment& options);
/// { probability = 0.5, scale = [low, high], ratio = [low, high] }, or false.
keys::Field random_erasing(RandomErasing& erase);
/// The parameter of the Beta distribution of mixup or cutmix, or false.
keys::Field mixing_alpha(double& alpha);

}  // namespace trireme::data
