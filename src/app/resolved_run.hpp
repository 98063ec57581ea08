// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deck_source.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/layout.hpp"

namespace trireme::app {

/// The datasets of a deck; validation and test are optional.
struct Datasets {
  data::DatasetInfo train;
  std::optional<data::DatasetInfo> validation, test;
};

/// A deck whose data and layout are known: what a run on some number of ranks will do.
struct ResolvedRun {
  deck::Deck deck;
  /// Forms of the datasets that were assumed, by split, and what was not checked because of them.
  std::vector<std::pair<std::string, std::string>> assumed;
  std::vector<std::string> not_checked;
  Datasets sets;
  /// Lines for the user on datasets whose classes or tokenizers could not be compared.
  std::vector<std::string> notes;
  std::optional<data::Dataset> train_set;   ///< Unless it is assumed.
  std::vector<train::ResolvedLayout> rows;  ///< of batch.ramp; without it the only layout
  DeviceKind device = DeviceKind::cpu;
};

/// The command line of a command that resolves a deck.
struct ResolveArguments {
  DeckSource source;
  int ranks = 0;                         // 0: the fewest that the deck allows
  std::vector<std::string> assumptions;  // the values of --assume
};

/// Adds DECK, --set, --ranks and --assume to a command; `arguments` must live until the command has
/// run. `verb`: the command's word in the help, such as "Check".
void add_resolve_options(Command& command, ResolveArguments& arguments, DeckUse use,
                         const char* verb);

/// Parses the deck and opens its datasets or takes the assumed ones, as resolve_run() does, but
/// leaves `rows` empty. Throws InputError.
ResolvedRun resolve_data(const ResolveArguments& arguments,
                         std::optional<DeviceKind> device = std::nullopt,
                         const std::function<void(const deck::Deck&)>& check = {});

/// Returns the ranks of the command line, or the fewest that the deck allows. Throws InputError.
int ranks_of(const ResolveArguments& arguments, const deck::Deck& deck);

/// Parses the deck, opens its datasets or takes the assumed ones, and resolves the layout by the
/// rules of `train`. `device`: the device of the
/// run; none: the one that `train` would take here. `check` is called once the deck is parsed.
/// Throws InputError, with the place in the deck where one is at fault.
ResolvedRun resolve_run(const ResolveArguments& arguments,
                        std::optional<DeviceKind> device = std::nullopt,
                        const std::function<void(const deck::Deck&)>& check = {});

}  // namespace trireme::app
