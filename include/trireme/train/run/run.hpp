// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Returns the replica options of a deck. `train` provides extents, classes and vocabulary.
ReplicaOptions make_replica_options(const deck::Deck& deck, const data::DatasetInfo& train,
                                    const ResolvedLayout& layout);

/// Gathers the host name of each world rank. Collective.
std::vector<std::string> gather_hosts(const comm::Environment& environment);

/// Returns the tokens per sample; 0 for images.
std::int64_t context_length(const deck::Deck& deck);

/// Returns the steps of training images.
data::ImagePipeline training_pipeline(const deck::Deck& deck);
/// Returns how the samples of the training set, and those of an evaluation, get their form.
data::SampleForm training_form(const deck::Deck& deck);
data::SampleForm evaluation_form(const deck::Deck& deck);

/// Chooses a communication thread if there is a spare core for it: `ranks_sharing` ranks share
/// `cores`, and each needs `threads` compute threads plus one.
comm::Engine::ProgressMode choose_progress_mode(int cores, int ranks_sharing, int threads);
/// Chooses for this rank, with or without binding by the launcher. Collective. Must be called
/// before Kokkos is initialized.
comm::Engine::ProgressMode choose_progress_mode(const comm::Environment& environment);

/// Returns the kind of device that memory is planned for. The device need not exist on this
/// machine.
DeviceKind planned_device(const deck::Deck& deck);

/// Returns the device of the rank with this index on its host. Throws Failure if the deck requires
/// a device that is missing.
Device choose_device(const deck::Deck& deck, int local_rank);

/// Throws InputError if the device does not support precision.compute.
void validate_precision(const deck::Deck& deck, DeviceKind device);
void validate_precision(const deck::Deck& deck, const DeviceDescription& device);

/// Returns loader options for an evaluation of a whole dataset by a replica on `device`.
data::LoaderOptions evaluation_loader_options(const deck::Deck& deck, const data::Dataset& set,
                                              const parallel::Mesh& mesh, Device device,
                                              int reader_threads);

/// All objects of a training run that exist before its first step, created in member order. Errors
/// are agreed on by all ranks.
struct Run {
  /// Opens the datasets, resolves the layout, plans and allocates all memory, connects the engine.
  /// With batch.ramp it is made for the row of the step after `steps_done`. Collective. Throws
  /// InputError and Failure on all ranks.
  Run(const deck::Deck& deck, const comm::Environment& environment, comm::Engine& engine, Log& log,
      std::int64_t steps_done = 0);

  data::Dataset train_set;
  const deck::Deck deck;  ///< With the values that the dataset provides (the vocabulary).
  std::string deck_text;
  std::unique_ptr<data::Dataset> validation_set, test_set;
  ResolvedLayout layout;
  parallel::Mesh mesh;
  comm::Engine& engine;
  Device device;
  MemoryPlan plan;
  std::unique_ptr<Replica> replica;
  std::unique_ptr<data::Loader> train_loader, validation_loader, test_loader;
  /// Reads the samples of evaluate.subset; null without it.
  std::unique_ptr<data::Loader> subset_loader;

  monitor::RunFolder folder() const { return monitor::RunFolder(deck.run.folder); }
  /// Returns the identity of the samples that are trained on: that of the set, changed by
  /// data.samples.
  std::uint64_t training_identity() const;
  /// Returns the steps between progress lines if stderr is not a terminal.
  std::int64_t progress_steps() const;
};

}  // namespace trireme::train
