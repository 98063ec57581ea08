// SPDX-License-Identifier: Apache-2.0
//
// Entry points of the deck library: parse() reads and validates a deck of a user, parse_stored()
// that of a checkpoint. Also the folders of the splits and the locations of keys.
#include "trireme/deck/deck.hpp"

#include <utility>

#include "contradictions.hpp"
#include "tables.hpp"
#include "trireme/keys/reader.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/loss.hpp"

namespace trireme::deck {

using keys::KeysWithoutEffect, keys::Override;

namespace {

constexpr std::pair<const char*, const char*> alternatives[] = {
    {"batch.global", "batch.ramp"}, {"schedule.milestones", "schedule.every"}};

/// Fills in the defaults that depend on other keys.
void fill_in_defaults(Deck& deck, const Reader& reader) {
  if (deck.run.folder.empty()) deck.run.folder = "runs/" + deck.run.name;
  deck.loss.kind = &model::loss_of(deck.loss, answer_of(deck).kind);
  if (!reader.is_set("checkpoint.best"))
    deck.checkpoint.best =
        deck.data.validation.empty() || deck.evaluate.subset > 0 ? "" : answer_of(deck).best;
  optim::fill_in_defaults(deck.optimizer, reader);
  optim::ScheduleOptions& schedule = deck.schedule;
  if (schedule.kind == optim::ScheduleKind::one_cycle) {
    // PyTorch's OneCycleLR: div_factor = 25, final_div_factor = 1e4.
    if (!reader.is_set("schedule.start_ratio")) schedule.start_ratio = 0.04;
    if (!reader.is_set("schedule.min_ratio")) schedule.min_ratio = 4e-6;
  }
  if (schedule.kind == optim::ScheduleKind::exponential && !reader.is_set("schedule.every"))
    schedule.every = Duration{1, Duration::Unit::epochs};
  model::family_of(deck.model).fill_in_defaults(deck.model, reader);
}

/// Reads and validates all keys. Throws one InputError with all mistakes.
Deck read(Reader& reader, DeckPurpose purpose) {
  // The order matters: conditional defaults need all keys, and contradictions need the defaults.
  Deck deck;
  visit(reader, deck);
  fill_in_defaults(deck, reader);
  find_contradictions(deck, purpose, reader);
  reader.finish();
  deck.key_locations = reader.key_locations();
  return deck;
}

}  // namespace

Deck parse(const std::string& text, const std::string& file, const std::vector<Override>& overrides,
           DeckPurpose purpose) {
  Reader reader(text, file, {.overrides = overrides, .alternatives = alternatives});
  return read(reader, purpose);
}

StoredDeck parse_stored(const std::string& text, const std::string& file) {
  Reader reader(text, file, {.without_effect = KeysWithoutEffect::drop});
  Deck deck = read(reader, DeckPurpose::training);
  return {std::move(deck), reader.dropped_keys()};
}

std::string with_location(const Deck& deck, const std::string& message) {
  const std::string key = message.substr(0, message.find_first_of(" :"));
  const auto found = deck.key_locations.find(key);
  return found == deck.key_locations.end() ? message : found->second + ": " + message;
}

const Answer& answer_of(const Deck& deck) {
  return takes_tokens(deck.model) ? answer_of(AnswerKind::tokens) : deck.target.answer();
}

std::string data::DataOptions::* folder_of_split(std::string_view split) {
  if (split == "train") return &data::DataOptions::train;
  if (split == "validation") return &data::DataOptions::validation;
  if (split == "test") return &data::DataOptions::test;
  return nullptr;
}

}  // namespace trireme::deck
