// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/step/noise_scale.hpp"
#include "trireme/train/step/replica.hpp"
#include "trireme/train/supervision/health.hpp"

namespace trireme::train {

/// The largest step, and number of samples, epochs and updates, in a checkpoint: exact in any
/// reader of HDF5, and far beyond every run.
inline constexpr std::int64_t max_step = std::int64_t{1} << 53;

/// The progress of a run: everything that a restart needs besides tensors.
struct RunState {
  std::int64_t step = 0, samples = 0;
  data::Cursor cursor;
  double elapsed_seconds = 0;  ///< Seconds of training, over all starts.
  std::optional<double> best;  ///< Best value of the metric checkpoint.best so far.
  std::string best_metric;     ///< Name of that metric: "top1", "loss", "perplexity".
  std::int64_t best_step = 0;
  /// The evaluation that was due at this step is still to be made: its samples could not be read.
  bool owes_evaluation = false;
  optim::PlateauState plateau;  ///< Of schedule.kind = "plateau"; else empty.
  NoiseScaleState noise;        ///< With monitor.noise_scale; else empty.
  std::int64_t skipped = 0;     ///< Steps that were not applied.
  HealthState health;
  /// The meaning of the labels or tokens that the steps so far were trained on, as in the
  /// checkpoint of the restart. Datasets may name less than earlier ones.
  data::LabelMeaning meaning;
};

/// The rows of each tensor that a rank reads or writes.
enum class Rows : std::uint8_t {
  share,  ///< For writing: all ranks together cover each element once.
  owned   ///< For reading: all rows that this rank holds.
};

/// Returns a slice for every tensor of the whole model, including empty slices for tensors that
/// this rank does not hold.
///
/// Contains weights and running statistics. With `slots` also the optimizer state, the average of
/// weights and statistics, the outer momentum, and the pending gradient of delayed updates (whose
/// sums must be complete); all but the average are without frozen tensors. The slices point into
/// the replica's memory.
std::vector<checkpoint::TensorSlice> slices_of(Replica& replica, Rows rows, bool slots);

/// Returns the metadata of a checkpoint. `meaning`: of the labels or tokens that it was trained on.
/// `dataset` is the identity of the training set.
checkpoint::Info checkpoint_info(const RunState& state, Replica& replica, const std::string& deck,
                                 const data::LabelMeaning& meaning, std::uint64_t dataset,
                                 std::uint64_t seed);

/// Prepares a delayed reducer for the pending gradient of this checkpoint, or for none. Must be
/// called before slices_of() for reading. Throws InputError for values that no run can write.
void restore_pending(parallel::GradientReducer& reducer, const checkpoint::Info& info);

/// Restores the loss scale (float16) if the checkpoint holds one. Throws InputError for values that
/// no run can write.
void restore_loss_scale(optim::Optimizer& optimizer, const checkpoint::Info& info);

/// Returns the run state in a checkpoint's metadata; missing values are 0.
RunState run_state_of(const checkpoint::Info& info);

/// Returns the identity of the training set of the run that wrote a checkpoint; nothing if the file
/// does not hold it.
std::optional<std::uint64_t> dataset_of(const checkpoint::Info& info);

/// Throws InputError if the numbers of a dataset were made of files of other programs otherwise
/// than those that the model in a checkpoint was trained on. `key`: of the dataset.
void validate_preparation(const checkpoint::Info& info, const data::DatasetInfo& data,
                          const std::string& key, const std::string& path);

/// The images that a model was trained on.
struct TrainedImages {
  Shape extents;                ///< [height, width, channels], as the model takes them
  std::int64_t pixel_bits = 8;  ///< of a stored value; 8: uint8
  /// The type of a stored value. None: the file is of an earlier version, and 16 bits may be uint16
  /// or float16.
  std::optional<DType> pixel_type = {};
};

/// Returns the images that the model in a checkpoint was trained on; nothing if the file does not
/// say it. Throws InputError for values that no run can write.
std::optional<TrainedImages> trained_images_of(const checkpoint::Info& info,
                                               const std::string& path);

/// Returns the meaning of the labels or tokens that the model in a checkpoint was trained on.
data::LabelMeaning meaning_of(const checkpoint::Info& info, const std::string& path);

}  // namespace trireme::train
