// SPDX-License-Identifier: Apache-2.0
//
// Resolves a deck for the commands that need no training: check and plan.

#include "resolved_run.hpp"

#include <limits>
#include <tuple>

#include <fmt/format.h>

#include "app/check/assumed_data.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/train/datasets.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

/// Gives targets that are assumed the extents of the map that the model makes.
void set_map_extents(const deck::Deck& deck, data::DatasetInfo& info) {
  info.target = model::outputs_of(deck.model, {1, info.height, info.width, info.channels},
                                  info.target.count, deck::answer_of(deck).is_map);
}

/// Opens the datasets, or takes the assumed ones, and checks them against the model. Keeps the
/// training set in `train_set` unless it is assumed. Adds lines for the user to `notes`. Throws
/// InputError.
Datasets describe_datasets(const deck::Deck& deck, const AssumedData& assumed,
                           std::optional<data::Dataset>& train_set,
                           std::vector<std::string>& notes) {
  std::vector<data::LabelMeaning> meanings;  // an assumed set has none
  const auto describe = [&](const std::string& split, const std::string& folder) {
    const std::string key = "data." + split;
    const data::SampleForm form =
        split == "train" ? train::training_form(deck) : train::evaluation_form(deck);
    std::optional<data::DatasetInfo> info = assumed.find(split, form);
    const bool with_checksums = split == "train" && deck.data.verify > 0;
    if (info) set_map_extents(deck, *info);
    if (!info) {
      data::Dataset dataset =
          train::open_dataset(comm::Communicator(), key, folder, form, with_checksums);
      info = dataset.info();
      meanings.push_back(data::meaning_of(*info, key, folder));
      if (split == "train") train_set.emplace(std::move(dataset));
    }
    train::validate_dataset(deck.model, deck.data, *info, key, folder);
    return *info;
  };
  Datasets sets{describe("train", deck.data.train), std::nullopt, std::nullopt};
  for (const auto& [split, folder, info] :
       {std::tuple("validation", &deck.data.validation, &sets.validation),
        std::tuple("test", &deck.data.test, &sets.test)}) {
    if (folder->empty()) continue;
    *info = describe(split, *folder);
    train::validate_same_form(sets.train, **info, std::string("data.") + split, *folder);
  }
  notes = data::validate_same_meaning(meanings);
  if (train_set && !deck::answer_of(deck).is_one_class() && !deck::answer_of(deck).is_tokens())
    notes.push_back("targets are checked when training reads them with their samples, not here");
  constexpr std::int64_t max_chunk_samples = 4;
  if (const std::int64_t samples = sets.train.chunk_samples;
      deck.data.shuffle == data::Shuffle::full && samples > max_chunk_samples)
    notes.push_back(
        fmt::format("data.train = \"{}\" is compressed in chunks of {} samples, and shuffle = "
                    "\"full\" may unpack a chunk for each of them; data.shuffle = \"blocks\" with "
                    "shuffle_block = {} unpacks it about twice",
                    deck.data.train, samples, samples));
  return sets;
}

}  // namespace

void add_resolve_options(Command& command, ResolveArguments& arguments, DeckUse use,
                         const char* verb) {
  add_deck_options(command, arguments.source, use);
  command
      .option("--ranks", arguments.ranks,
              "Ranks the run will have (default: the fewest that the deck allows)")
      .range(1, std::int64_t{1} << 30)
      .type_name("N");
  command
      .option("--assume", arguments.assumptions,
              fmt::format("{} without data: describe a dataset instead of reading its folder, as "
                          "images:COUNT,HxWxC,CLASSES, fields:... of float32 or "
                          "tokens:COUNT,VOCABULARY; train=, "
                          "validation= or test= in front names the set (default: train); may be "
                          "repeated",
                          verb))
      .type_name("[SET=]FORM")
      .one_value_each();
}

ResolvedRun resolve_data(const ResolveArguments& arguments, std::optional<DeviceKind> device,
                         const std::function<void(const deck::Deck&)>& check) {
  const DeckSource& source = arguments.source;
  ResolvedRun run;
  AssumedData assumed(arguments.assumptions);
  run.deck = deck::parse(keys::read_file(source.path), source.path, overrides_of(source));
  assumed.replace_folders(run.deck);
  run.assumed = assumed.forms();
  run.not_checked = assumed.not_checked();
  const deck::Deck& deck = run.deck;
  if (check) check(deck);
  run.sets = with_deck_locations(
      deck, [&] { return describe_datasets(deck, assumed, run.train_set, run.notes); });
  if (run.sets.validation)
    with_deck_locations(deck, [&] { train::validate_subset(deck.evaluate, *run.sets.validation); });
  run.device = device.value_or(train::planned_device(deck));
  with_deck_locations(deck, [&] { train::validate_precision(deck, run.device); });
  return run;
}

int ranks_of(const ResolveArguments& arguments, const deck::Deck& deck) {
  const std::int64_t wanted =
      arguments.ranks > 0 ? arguments.ranks : train::min_ranks(deck.parallel);
  validate(wanted <= std::numeric_limits<int>::max(),
           "parallel.data = {}: makes {} ranks with tensor and pipeline; no machine has as many",
           deck.parallel.data, wanted);
  return static_cast<int>(wanted);
}

ResolvedRun resolve_run(const ResolveArguments& arguments, std::optional<DeviceKind> device,
                        const std::function<void(const deck::Deck&)>& check) {
  ResolvedRun run = resolve_data(arguments, device, check);
  const deck::Deck& deck = run.deck;
  // With batch.ramp a layout of each row. An error names the key's place in the deck.
  run.rows = with_deck_locations(deck, [&] {
    return train::resolve_rows(
        {deck.run, deck.batch, deck.parallel, deck.data, deck.schedule, deck.model}, run.sets.train,
        ranks_of(arguments, deck));
  });
  return run;
}

}  // namespace trireme::app
