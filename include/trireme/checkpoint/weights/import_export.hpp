// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/weights/weight_files.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// Selects weights of a checkpoint, each with the matching running statistics.
enum class Weights : std::uint8_t {
  evaluated,  ///< the weights that the run evaluated: the average if the file has one
  model,      ///< the trained weights: /model, /buffers
  ema         ///< the exponential moving average: /ema
};

/// Returns whether `weights` selects the average (/ema) of this file. Throws InputError if the
/// average is requested and the file has none.
bool selects_average(Weights weights, const Contents& contents, const std::string& path);

/// The order of the matrices of GPT-2's blocks in a file.
enum class FileMatrixOrder : std::uint8_t {
  by_shapes,  ///< the order that the matrices that are not square have
  linear,     ///< [out, in], as torch.nn.Linear and nanoGPT
  conv1d      ///< [in, out], as GPT-2 of transformers and the model
};

/// Makes a checkpoint of step 0 without optimizer state from weights of another program. Weights go
/// to /model, running statistics to /buffers, `info` (deck, written_by) is its metadata. Runs on
/// one rank. Returns the order in which matrices were read; conv1d for a model without GPT-2's
/// names.
///
/// `expected` lists the tensors of the whole model. Ignored: `num_batches_tracked`, causal masks
/// (`*.attn.bias` [1, 1, n, n], `*.attn.masked_bias`) and `*.rotary_emb.inv_freq`. If the model
/// ties its head to the embedding, `lm_head.weight` must equal the embedding bit for bit.
///
/// Throws InputError with the first five tensors that are missing, unknown or of a different shape.
/// Also throws it if the order of matrices is unknown or not that of all of them.
FileMatrixOrder import_weights(const WeightFiles& weights, const parallel::ParameterList& expected,
                               const Info& info, const std::string& checkpoint,
                               FileMatrixOrder wanted = FileMatrixOrder::by_shapes);

/// Verifies a checkpoint, then writes the selected weights and running statistics to a safetensors
/// file, under the same names. Runs on one rank. Throws InputError if the checkpoint is damaged or
/// has no such weights.
void export_safetensors(const std::string& checkpoint, const std::string& file,
                        Weights weights = Weights::model);
/// Fills a file that the caller commits, with names behind `prefix`; lm_head.weight gets none.
void export_safetensors(const std::string& checkpoint, const io::StagedFile& staged,
                        Weights weights, const std::string& prefix);

}  // namespace trireme::checkpoint
