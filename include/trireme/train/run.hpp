// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/io/new_folders.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// The run folder, locked for this start. Until keep() is called, folders that this start created
/// are removed at its end if they are empty.
struct HeldRunFolder {
  /// On world rank 0. Declared before the lease: its destructor must find no file of the lease.
  io::NewFolders new_folders;
  checkpoint::Lease lease;
  bool is_new = false;         ///< Created by this start.
  bool is_starting = true;     ///< An input error removes a new folder.
  bool ended_as_done = false;  ///< The exit record of the previous start has the code 0 (done).

  /// The start has succeeded.
  void keep() {
    is_starting = false;
    new_folders.keep();
  }
};

/// Throws InputError if run.folder is a folder of data, or has a name that is too long. Looks at
/// the file system of this rank and changes nothing.
void validate_run_folder_place(const deck::Deck& deck);

/// Acquires the lease on the run folder, which is created if it is missing. Rank 0 opens log.txt
/// and removes the previous exit record. Collective. Throws InputError if another job holds the
/// lease or the path cannot be a run folder.
HeldRunFolder acquire_run_folder(const deck::Deck& deck, const comm::Environment& environment,
                                 Log& log);

/// Creates and removes a file in the folder of checkpoints. Otherwise a run would notice only at
/// its first checkpoint that it cannot write one. Collective. Throws InputError if writing is not
/// permitted there, Failure if the disk is full or fails.
void check_writable(const comm::Communicator& world, const std::string& checkpoints);

/// Releases a folder that this start created, and removes the log if it holds nothing else, so that
/// the destructor of `folder` removes it. For starts that fail on wrong input. Acts on world rank 0
/// only.
void release_run_folder(HeldRunFolder& folder, const monitor::RunFolder& files);

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
