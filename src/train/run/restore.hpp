// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "trireme/checkpoint/folder.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/run/trainer.hpp"

namespace trireme::train {

/// The point from which a run resumes.
struct RestoredRun {
  RunState state;
  bool from_own_folder = false;    ///< Restored from a checkpoint of this run's folder.
  std::optional<deck::Deck> deck;  ///< The deck in that checkpoint, if it has one.
  std::string path;                ///< The checkpoint; empty after a fresh start.
  /// The checkpoint is of another row of batch.ramp than the run: only its state was read.
  bool is_of_other_row = false;
};

/// Loads the replica from a checkpoint as the policy asks, or fills it with initial weights.
///
/// Logs the file, the checkpoints that were set aside with the reason, and changes of the deck.
/// `newest` is an earlier result of find_newest() for the run's folder, because that function reads
/// every byte of a checkpoint. Collective. Throws InputError on all ranks if all checkpoints of the
/// folder are damaged (without `--restart none`), the deck changes a fixed key, or `required` finds
/// no checkpoint.
RestoredRun restore(Run& run, const RestartPolicy& policy,
                    const std::optional<checkpoint::CheckpointChoice>& newest, Log& log);

/// Loads a checkpoint of this run into the replica again, for a rollback, unless it is of another
/// row of batch.ramp. Returns its state. Collective. Throws InputError on all ranks if the file is
/// damaged.
RunState reload_checkpoint(Run& run, const std::string& path, Log& log);

/// Verifies the seal of a checkpoint and returns its contents (metadata and tensor list). Rank 0
/// reads every byte. Files without a seal are accepted. Collective; throws InputError.
checkpoint::Contents read_verified_contents(const comm::Communicator& world,
                                            const std::string& path);

/// Returns the deck that a checkpoint holds, or nothing, with a warning, if it holds none. Logs the
/// keys that were dropped because they have no effect: earlier versions wrote them.
std::optional<deck::Deck> stored_deck(const checkpoint::Contents& contents, const std::string& path,
                                      Log& log);

/// Throws InputError if the checkpoint's deck describes another model than this one: it differs in
/// a key of [model] that decides what given weights compute. `path` is that of the checkpoint.
void validate_same_model(const deck::Deck& stored, const deck::Deck& deck, const std::string& path);
/// Throws InputError if the checkpoint's deck has another table [target]: then its outputs mean
/// something else.
void validate_same_target(const deck::Deck& stored, const deck::Deck& deck,
                          const std::string& path);
/// Warns if the deck prepares or names its inputs in another way than that of a checkpoint, which
/// may be meant: names of datasets differ between files.
void warn_of_other_inputs(const deck::Deck& stored, const deck::Deck& deck, const std::string& path,
                          Log& log);

/// Loads weights and running statistics of a checkpoint into a replica that keeps no average of its
/// own (evaluate, generate). Collective. Throws InputError if tensors are missing or belong to
/// another model.
void load_weights(Replica& replica, const checkpoint::Contents& contents, const std::string& path,
                  checkpoint::Weights weights);

}  // namespace trireme::train
