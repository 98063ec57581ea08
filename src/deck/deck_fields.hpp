// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/data/options.hpp"
#include "trireme/deck/options.hpp"
#include "trireme/keys/fields.hpp"
#include "trireme/monitor/options.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::deck {

using namespace keys;

// Fields of values that only decks have. Each keeps a reference to its option, which must outlive
// the field.
/// A list of layer widths, each from 1 to 2^20.
Field extents(std::vector<std::int64_t>& values);
/// Rows of a duration and a number of samples, as in [["0 epochs", 256], ["5 epochs", 1024]]; the
/// first one begins at 0. Also stores the samples of the first row in `global`. An empty list is no
/// ramp, and is not written.
Field ramp(std::vector<RampRow>& rows, std::int64_t& global, NumberRange range);
/// "auto", "none" or a time.
Field walltime(bool& automatic, std::optional<Duration>& value);
/// "none" (0), "all" (1) or "every n".
Field recompute(int& value);
/// A list of the words "optimizer", "parameters", "activations".
Field offload(parallel::Offload& value);
/// "step", "delayed" or "every n steps".
Field sync(parallel::SyncKind& kind, int& every);
/// true (parallel::ParallelOptions::all_data_ranks), false (0) or an integer of the range.
Field rank_group(int& value, NumberRange range);
/// "none" or "first..last".
Field step_range(std::optional<monitor::StepRange>& value);
/// Faults for tests, separated by ";", as in "kill rank 2 step 17 phase checkpoint-write". An empty
/// list is not written.
Field faults(std::vector<Fault>& value);
/// normalize = { mean = [..], std = [..] }.
Field normalize(std::vector<double>& mean, std::vector<double>& deviation);
/// The padding in pixels: 4 or { padding = 4 }.
Field random_crop(std::int64_t& padding);
/// { size = 224, scale = [low, high], ratio = [low, high] }, or false.
Field random_resized_crop(data::RandomResizedCrop& crop);
/// { resize = 256, crop = 224 }, or false.
Field evaluation_crop(data::EvaluationCrop& crop);
/// { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }, or false.
Field color_jitter(data::ColorJitter& jitter);
/// { count = 2, magnitude = 9 }, or false.
Field rand_augment(data::RandAugment& options);
/// { probability = 0.5, scale = [low, high], ratio = [low, high] }, or false.
Field random_erasing(data::RandomErasing& erase);
/// The parameter of the Beta distribution of mixup or cutmix, or false.
Field mixing_alpha(double& alpha);

/// A list of tables, as in [{ match = "fc.*", rate_ratio = 10 }]. If it is empty, it is not
/// written.
Field parameter_groups(std::vector<optim::ParameterGroup>& groups);

}  // namespace trireme::deck
