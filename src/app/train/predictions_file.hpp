// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/train/inference/predict_arrays.hpp"
#include "trireme/train/scores/prediction_rows.hpp"

namespace trireme::io {
class Hdf5File;
class StagedFile;
}  // namespace trireme::io

namespace trireme::app {

/// Answers that a rank keeps before it writes them, in bytes.
inline constexpr std::int64_t max_kept_answers = std::int64_t{64} << 20;

/// Throws InputError if a file of predictions cannot be written there. `option`: that names it.
/// `overwrites`: one that exists is replaced.
void validate_predictions_file(const char* option, const std::string& path, bool overwrites);

/// The parts of a file of predictions that concern all samples.
struct PredictionsInfo {
  const char* option = "--predictions";  ///< that names the file
  std::int64_t samples = 0;
  std::int64_t context = 0;             ///< tokens of a sample; 0 for images
  const Answer* answer = nullptr;       ///< what the model answers
  AnswerExtents outputs;                ///< of a sample
  std::vector<std::string> classes;     ///< names; only of an answer that is one class
  std::string checkpoint, split, deck;  ///< paths and text
  bool flips = false;                   ///< logits are means over an image and its mirror image
  std::uint64_t checkpoint_digest = 0;
  /// Samples without targets: their files, in the order of the samples. Empty: of a dataset.
  std::vector<train::ArrayPrediction::File> files;
};

/// A file of predictions that is being written. All functions are collective, and throw InputError
/// or Failure on all ranks.
class PredictionsFile {
 public:
  /// Creates a temporary file with all datasets.
  PredictionsFile(const comm::Communicator& world, const std::string& path, PredictionsInfo info,
                  const train::PredictionOptions& options);
  ~PredictionsFile();
  /// Writes samples of this rank, which were not written before.
  void write(const train::PredictionRows& mine);
  /// Replaces the file at `path`. All samples have been written.
  void publish();

 private:
  void close();

  const comm::Communicator& world_;
  PredictionsInfo info_;
  train::PredictionOptions options_;
  std::string temporary_;
  std::unique_ptr<io::StagedFile> staged_;  ///< of rank 0
  /// With several ranks it is open only while they write: closing it is collective, and a rank may
  /// fail alone in between.
  std::unique_ptr<io::Hdf5File> file_;
};

}  // namespace trireme::app
