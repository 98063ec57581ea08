#pragma once

#include <cstdint>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// Which of the weights in a checkpoint are meant, each with running statistics to match.
enum class Weights : std::uint8_t {
  evaluated,  ///< those that the run evaluated: the average where the file has one
  model,      ///< as trained: /model, /buffers
  ema         ///< the average: /ema
};

/// Whether it is the average of a file with these contents. Throws InputError where that is asked
/// for and not there.
bool selects_average(Weights weights, const Contents& contents, const std::string& path);

/// Makes a checkpoint of step 0, without optimizer state, from a safetensors file: weights to
/// /model, running statistics to /buffers. `expected` is the whole model's list. A prefix
/// `transformer.` is accepted; `num_batches_tracked`, causal masks (`*.attn.bias` [1, 1, n, n],
/// `*.attn.masked_bias`) and `*.rotary_emb.inv_freq` are passed over; where the model has no head
/// of its own, a `lm_head.weight` must be `wte.weight` or `model.embed_tokens.weight` bit for bit.
/// Throws InputError naming the first five of the missing, unknown or misshapen tensors.
void import_safetensors(const std::string& file, const parallel::ParameterList& expected,
                        const std::string& deck, const std::string& checkpoint);

/// Writes weights and running statistics of a checkpoint under the same names. The checkpoint is
/// verified first. Throws InputError.
void export_safetensors(const std::string& checkpoint, const std::string& file,
                        Weights weights = Weights::model);

}  // namespace trireme::checkpoint
