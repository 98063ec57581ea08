// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/train/step/replica_options.hpp"

namespace trireme::train {

/// Returns the model FLOPs of one sample: the multiplications and additions (2 for each
/// multiply-add) of the matrix products, convolutions and attention products of its forward and
/// backward pass, as the ops count them. Nothing that is computed again counts: neither
/// parallel.recompute nor the scores in the backward of attention (Chowdhery et al., PaLM, 2022,
/// appendix B). Causal attention counts the scores that exist, about half of all pairs of tokens.
///
/// The number does not depend on the layout: it is rehearsed on one rank of the meta device.
/// Touches no device memory.
double model_flops_of_a_sample(ReplicaOptions options);

}  // namespace trireme::train
