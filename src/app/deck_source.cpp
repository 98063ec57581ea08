// SPDX-License-Identifier: Apache-2.0
//
// Decks on the command line, and error reports of commands that use MPI.
#include "deck_source.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "error_text.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/arrays/array_files.hpp"

namespace trireme::app {

void add_deck_options(Command& command, DeckSource& source, DeckUse use) {
  Option deck = command.option("DECK", source.path,
                               "The deck: a TOML file that describes the whole experiment");
  if (use == DeckUse::required) deck.required();
  add_deck_overrides(command, source);
}

void add_deck_overrides(Command& command, DeckSource& source) {
  command
      .option("--set", source.sets,
              "Override one key of the deck, as in --set optimizer.momentum=0.8; may be repeated")
      .type_name("KEY=VALUE")
      .one_value_each();
  command
      .option("--unset", source.unsets,
              "Remove one key of the deck, as in --unset schedule.warmup; may be repeated")
      .type_name("KEY")
      .one_value_each();
}

std::vector<keys::Override> overrides_of(const DeckSource& source) {
  std::vector<keys::Override> overrides;
  for (const std::string& key : source.unsets) overrides.push_back({key, std::nullopt});
  for (const std::string& set : source.sets) {
    const std::size_t equals = set.find('=');
    validate(equals != std::string::npos && equals > 0,
             "--set {}: no value; write --set table.key=value", printable(set, 80));
    overrides.push_back({set.substr(0, equals), set.substr(equals + 1)});
  }
  return overrides;
}

void validate_no_data(const deck::Deck& deck, const char* option, const std::string& given,
                      const std::string& file) {
  if (!deck.data.hdf5.is_used()) return;
  for (const std::string& place : {deck.data.train, deck.data.validation, deck.data.test})
    validate(place.empty() || !data::takes_array_file(place, file),
             "{} {}: would be read with {} the next time; choose another folder", option, given,
             place);
}

deck::Deck read_deck(const DeckSource& source, const comm::Communicator& world,
                     deck::DeckPurpose purpose) {
  std::string text;
  comm::together(world, [&] {
    if (world.rank() == 0) text = keys::read_file(source.path);
  });
  return deck::parse(world.broadcast(text, 0), source.path, overrides_of(source), purpose);
}

void report_error(const std::string& message, bool all_ranks_know,
                  const comm::Environment& environment, Log& log) {
  const int rank = environment.world().rank();
  if (all_ranks_know && rank != 0) return;
  log.record_error(message);
  log.flush();
  print_error(all_ranks_know ? error_text(message)
                             : fmt::format("trireme: rank {} on {}: error: {}", rank,
                                           environment.host(), message));
}

}  // namespace trireme::app
