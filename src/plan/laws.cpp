// SPDX-License-Identifier: Apache-2.0
#include "trireme/plan/laws.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::plan {

double training_flops(const ModelAndData& run) { return 6 * run.parameters * run.tokens; }

double petaflop_days(double flops) { return flops / (1e15 * 24 * 3600); }

double gpu_hours(double flops, double flops_per_s) { return flops / flops_per_s / 3600; }

ModelAndData compute_optimal(double flops, double tokens_per_parameter) {
  const double parameters = std::sqrt(flops / (6 * tokens_per_parameter));
  return {parameters, tokens_per_parameter * parameters};
}

ModelAndData quoted_square_root_form(double flops) {
  return {0.7 * std::sqrt(flops), 1.4 * std::sqrt(flops)};
}

std::int64_t gpus_for(double bytes, double bytes_per_gpu) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(bytes / bytes_per_gpu)));
}

}  // namespace trireme::plan
