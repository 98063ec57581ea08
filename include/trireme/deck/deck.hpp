#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/monitor/options.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/train/options.hpp"

namespace trireme::deck {

/// The whole experiment, every default filled in; const after parsing.
struct Deck {
  train::RunOptions run;
  model::ModelOptions model;
  model::LossOptions loss;
  data::DataOptions data;
  train::BatchOptions batch;
  parallel::ParallelOptions parallel;
  train::PrecisionOptions precision;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions schedule;
  train::EvaluateOptions evaluate;
  checkpoint::CheckpointOptions checkpoint;
  train::HealthOptions health;
  monitor::MonitorOptions monitor;
  train::DebugOptions debug;
  /// Where each given key stands: "batch.global" -> "deck.toml:17:9" or "--set batch.global=500".
  /// Says nothing about the experiment.
  std::map<std::string, std::string> key_locations;
};

/// One `--set key=value`.
struct Override {
  std::string key, value;
};

/// Reads a deck from its text. `file` is what messages call it. All mistakes are gathered and
/// thrown as one InputError, a line each, in the form `deck.toml:17:9: [optimizer] momentun:
/// unknown key, did you mean "momentum"?`; one that an override makes begins with
/// `--set optimizer.rate=abc:`. An override's value is TOML, or else a string; it must be UTF-8.
/// checkpoint.best may be "none" (kept as an empty string), which is its default without
/// data.validation; schedule.warmup, schedule.length and monitor.trace may be "none".
/// model.vocabulary of a gpt may be left out: it is then 0, not written back, and the data's. Keys
/// that this version does not do are taken at the values that mean "off" and not stored.
Deck parse(const std::string& text, const std::string& file,
           const std::vector<Override>& overrides = {});

/// A message about a key of the deck ("data.train = ...: no such folder"), with the key's place
/// before it; any other message as it is.
std::string with_location(const Deck& deck, const std::string& message);

/// The text of a file, of 1 MiB at most. Throws InputError.
std::string read_file(const std::string& path);

/// The deck with every default filled in, as TOML that parse() reads back to an equal deck.
std::string write(const Deck& deck);

/// What a restart changed: "optimizer.rate: 0.1 -> 0.05", and whether the change is one that may
/// not be made (docs/contract section 9). Values are as write() gives them; empty: the key is not
/// there.
struct Difference {
  std::string key, before, after;
  bool forbidden = false;
};
std::vector<Difference> differences(const Deck& before, const Deck& after);

}  // namespace trireme::deck
