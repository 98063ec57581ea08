// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/answer.hpp"
#include "trireme/checkpoint/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/deck/options.hpp"
#include "trireme/keys/reader.hpp"
#include "trireme/model/options.hpp"
#include "trireme/monitor/options.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::deck {

/// The complete experiment: one member per table of the deck, with every default filled in.
///
/// parse() and parse_stored() are the only producers. All other libraries read it and none changes
/// it.
struct Deck {
  RunOptions run;
  model::ModelOptions model;
  model::LossOptions loss;
  data::DataOptions data;
  data::TargetOptions target;
  BatchOptions batch;
  parallel::ParallelOptions parallel;
  PrecisionOptions precision;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;
  EvaluateOptions evaluate;
  checkpoint::CheckpointOptions checkpoint;
  HealthOptions health;
  monitor::MonitorOptions monitor;
  DebugOptions debug;
  /// Location of each key that the user gave: "batch.global" -> "deck.toml:17:9" or
  /// "--set batch.global=500". Used in error messages only; it is no part of the experiment.
  std::map<std::string, std::string> key_locations;
};

/// The purpose for which a command reads a deck. An evaluation makes no steps, and the number of
/// its replicas follows from the ranks. So these rules between keys are those of training alone:
///
/// - batch.global, the rows of batch.ramp and parallel.data; pairs of mixed samples
/// - parallel.sequence, pipeline_schedule, pipeline_chunks and sync_batch_norm
/// - monitor.noise_scale
enum class DeckPurpose : std::uint8_t { training, evaluation };

/// Parses and validates the text of a deck. Not collective: each rank parses the same text.
///
/// `file` is the file name for messages. An override's value is parsed as TOML, or taken as a
/// string if that fails; it must be UTF-8.
///
/// Throws one InputError that lists all mistakes, one per line, in the form
/// `deck.toml:17:9: [optimizer] momentun: unknown key, did you mean "momentum"?`. A mistake in an
/// override begins with `--set optimizer.rate=abc:` instead.
///
/// Special values:
/// - checkpoint.best may be "none", which is stored as an empty string. It is the default if
///   data.validation is missing.
/// - schedule.warmup, schedule.length and monitor.trace may be "none".
/// - model.vocabulary is optional: 0 means that the training data define it, and write()
///   leaves it out.
/// - Keys that this version does not implement accept only the values that mean "off". They are
///   not stored.
///
/// A key that has no effect beside the other keys is a mistake: schedule.base_batch with scaling =
/// "none". write() leaves such keys out.
Deck parse(const std::string& text, const std::string& file,
           const std::vector<keys::Override>& overrides = {},
           DeckPurpose purpose = DeckPurpose::training);

/// The deck of a checkpoint.
struct StoredDeck {
  Deck deck;
  /// The keys that were dropped because they have no effect, as in "schedule.base_batch".
  std::vector<std::string> dropped_keys;
};
/// Parses the deck of a checkpoint as parse() does, but drops keys that have no effect: earlier
/// versions wrote them.
StoredDeck parse_stored(const std::string& text, const std::string& file);

/// Returns `message` with the location of its key in front. The key is the first word of the
/// message, as in "data.train = ...: no such folder". Other messages are returned unchanged.
std::string with_location(const Deck& deck, const std::string& message);

/// Returns the key of [data] that names the folder of a split ("train", "validation" or "test");
/// null for any other name. Usage: deck.data.*folder_of_split("train").
std::string data::DataOptions::* folder_of_split(std::string_view split);

/// Returns what the model of a deck answers.
const Answer& answer_of(const Deck& deck);

/// Returns the deck as TOML text with every default filled in. parse() reads it back to an equal
/// deck.
std::string write(const Deck& deck);

/// One key that differs between two decks: "optimizer.rate: 0.1 -> 0.05". Values are in the form
/// that write() produces; an empty one means that the key is absent.
struct Difference {
  std::string key, before, after;
  /// A restart must not change this key (docs/reference/numerics.md).
  bool forbidden = false;
};
/// Returns the keys that differ between the deck of a checkpoint and the deck of its restart.
std::vector<Difference> differences(const Deck& before, const Deck& after);

/// The description of one key, for users. An empty text means that the key has no such property.
struct KeyInfo {
  std::string table, key;     ///< as in "data.augment" and "flip"
  std::string type, range;    ///< as in "integer" and "at least 1"
  std::string default_value;  ///< as TOML; empty: required, off, or computed from other keys
  std::string owner;          ///< the choice that the key belongs to, as in kind = "resnet"
  std::string meaning;        ///< one sentence of at most 25 words
  bool required = false;      ///< the owner has no default for this key
  bool fixed_at_restart = false;
};
/// Returns all keys of the deck in the order in which write() writes them. A key that differs
/// between kinds of a model (model.width, model.norm) appears once for each.
std::vector<KeyInfo> keys();

}  // namespace trireme::deck
