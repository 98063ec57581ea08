// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::plan {

/// Parameters of a model and tokens that it is trained on.
struct ModelAndData {
  double parameters = 0, tokens = 0;

  double tokens_per_parameter() const { return tokens / parameters; }
};

/// Returns the FLOPs of training, 6 N D: 2 for each parameter and token in the forward pass, 4 in
/// the backward pass. Leaves out attention, whose part grows with the context, and what is computed
/// again.
/// Source: Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1
/// (arXiv:2001.08361).
double training_flops(const ModelAndData& run);

/// Returns FLOPs in petaFLOP/s-days, 8.64e19 each (Kaplan et al. 2020, section 1.3).
double petaflop_days(double flops);

/// Returns the hours of one GPU that computes `flops_per_s`.
double gpu_hours(double flops, double flops_per_s);

/// Returns the model and data that use `flops` = 6 N D with `tokens_per_parameter` = D / N. The
/// rule of 20 tokens a parameter is N = 0.091 sqrt(C), D = 1.83 sqrt(C).
/// Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, section 3.4 and
/// table 3 (arXiv:2203.15556): N and D grow alike; about 20 tokens a parameter.
ModelAndData compute_optimal(double flops, double tokens_per_parameter = 20);

/// Returns N = 0.7 sqrt(C), D = 1.4 sqrt(C), a form that is often quoted beside the rule of 20
/// tokens. It differs: D / N is 2, and N D is about C, so that 6 N D is 5.88 times the budget.
ModelAndData quoted_square_root_form(double flops);

/// Bytes a parameter of the state that a GPU holds with AdamW in bfloat16, without activations.
/// Source: docs/design/parallelism.md, "State of a rank"; a test compares it with the memory plan.
struct StateBytes {
  double working_weights = 2, master_weights = 4, gradient = 4, optimizer = 8;

  /// Data-parallel replicas (shard = "none"): every GPU holds all of it.
  double replicated() const { return working_weights + master_weights + gradient + optimizer; }
  /// Full sharding (shard = "parameters"): the GPUs share this. Each holds two blocks of working
  /// weights and gradients besides, which depend on the shape of the model.
  double sharded() const { return master_weights + gradient + optimizer; }
};

/// Returns how many GPUs hold `bytes` together if each gives `bytes_per_gpu` (> 0).
std::int64_t gpus_for(double bytes, double bytes_per_gpu);

}  // namespace trireme::plan
