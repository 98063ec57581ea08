#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// The run folder as this start holds it.
struct RunFolder {
  checkpoint::Lease lease;
  bool is_new = false;         ///< by this start
  bool ended_as_done = false;  ///< the start before left a record that says so
};

/// The lease on the run folder, which is made where it is missing; log.txt is opened and the last
/// start's exit record removed. Collective. Throws InputError where another job holds it.
RunFolder acquire_run_folder(const deck::Deck& deck, const comm::Environment& environment,
                             Log& log);

/// Gives a folder back that this start made: it is removed where it holds nothing but the log. By
/// world rank 0; elsewhere it does nothing.
void release_run_folder(RunFolder& folder, const std::string& path);

/// What a replica of this deck is made from.
ReplicaOptions make_replica_options(const deck::Deck& deck, const data::DatasetInfo& train,
                                    const ResolvedLayout& layout);

/// The host of each world rank. Collective.
std::vector<std::string> gather_hosts(const comm::Environment& environment);

/// Tokens of a sample; 0 for images.
std::int64_t context_length(const deck::Deck& deck);

/// A thread for communication where there is a core for it: the `sharers` ranks that may run on the
/// same `cores`, each of `threads` compute threads, need one more each.
comm::Engine::ProgressMode choose_progress_mode(int cores, int ranks_sharing, int threads);
/// The same for this rank, whether the launcher binds ranks or not. Collective. To be asked before
/// Kokkos is made.
comm::Engine::ProgressMode choose_progress_mode(const comm::Environment& environment);

/// The kind of device that the deck means where it will run, which need not be here: what memory is
/// planned for.
DeviceKind planned_device(const deck::Deck& deck);

/// The device of rank number `local_rank` of its host. Throws Failure where the deck wants one that
/// is not there.
Device choose_device(const deck::Deck& deck, int local_rank);

/// Throws InputError where that device cannot compute as the deck says.
void validate_precision(const deck::Deck& deck, DeviceKind device);
void validate_precision(const deck::Deck& deck, const DeviceDescription& device);

/// An evaluation loader over a whole set, for a replica on `device`.
data::LoaderOptions evaluation_loader_options(const deck::Deck& deck, const data::Dataset& set,
                                              const parallel::Mesh& mesh, Device device);

/// Everything of a training run that stands before its first step, made in the order of the
/// members. Errors are agreed on by all ranks.
struct Run {
  /// Opens the data, lays out the ranks, sizes and takes all memory.
  Run(const deck::Deck& deck, const comm::Environment& environment, comm::Engine& engine, Log& log);

  data::Dataset train_set;
  const deck::Deck deck;  ///< with what it leaves to the data (the vocabulary) filled in
  std::string deck_text;
  std::unique_ptr<data::Dataset> validation_set, test_set;
  ResolvedLayout layout;
  parallel::Mesh mesh;
  comm::Engine& engine;
  data::EpochBatching cutter;
  Device device;
  MemoryPlan plan;
  std::unique_ptr<Replica> replica;
  std::unique_ptr<data::Loader> train_loader, validation_loader, test_loader;

  /// Writes deck.toml and this start's entry in environment.json (rank 0 writes; collective).
  void record_start(const comm::Environment& environment) const;
  /// Steps between two lines of progress where nobody watches a terminal.
  std::int64_t progress_steps() const;
};

}  // namespace trireme::train
