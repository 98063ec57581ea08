#pragma once

#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// Makes a checkpoint of step 0, without optimizer state, from a safetensors file: weights to /model, running statistics to /buffers. A prefix
/// `transformer.` is accepted; `num_batches_tracked` and mask buffers are passed over; a tied `lm_head.weight` must equal `wte.weight`.
/// Throws InputError naming the first five of the missing, unknown or misshapen tensors.
void import_safetensors(const std::string& file, const parallel::ParameterList& expected, const std::string& deck, const std::string& checkpoint);

/// Writes /model and /buffers of a checkpoint under the same names. The checkpoint is verified first. Throws InputError.
void export_safetensors(const std::string& checkpoint, const std::string& file);

}  // namespace trireme::checkpoint
