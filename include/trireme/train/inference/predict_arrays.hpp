// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/answer.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/train/step/evaluated_rows.hpp"

namespace trireme::train {

/// The arguments of `trireme predict` for HDF5 files.
struct ArrayPredictRequest {
  std::string checkpoint;
  std::vector<std::string> places;  ///< folders, files or patterns, as data.train
  bool flips = false;  ///< The logits of each sample and its mirror image are averaged.
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
  /// Throws InputError if the request does not fit what the model answers. Called before the files
  /// are opened; empty: all fits.
  std::function<void(const Answer&)> check = {};
};

/// The properties that all samples of a request share.
struct ArrayPrediction {
  /// A file and its samples, in the order of the samples.
  struct File {
    std::string path;
    std::int64_t samples = 0;
  };
  std::vector<File> files;
  data::TargetOptions target;        ///< what the model answers
  AnswerExtents outputs;             ///< of a sample
  std::vector<std::string> classes;  ///< their names; empty unless the answer is one class
  std::string deck;                  ///< of the checkpoint
  std::uint64_t checkpoint_digest = 0;
};

/// Applies the model of a checkpoint to samples of HDF5 and netCDF-4 files, on one rank. The files
/// need no targets; the table [data.hdf5] of the checkpoint's deck says where the inputs are. The
/// samples of all places are one dataset, in the order of the request.
///
/// Calls `begin` when all files are described and the model is loaded, then `sink` for each
/// micro-batch. EvaluatedRows::samples count through all files. Labels are -1, and targets NaN:
/// they are unknown. Throws InputError for a file that cannot be read or whose samples do not fit
/// the model, and for a checkpoint of another kind of model.
void predict_arrays(const ArrayPredictRequest& request, Log& log,
                    const std::function<void(const ArrayPrediction&)>& begin, const RowSink& sink);

}  // namespace trireme::train
