// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "app/command_line/command_line.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::app {

/// The deck on the command line: DECK [--set key=value]... [--unset key]...
struct DeckSource {
  std::string path;
  std::vector<std::string> sets, unsets;
};

/// A command requires DECK, or may do without.
enum class DeckUse { required, optional };

/// Adds DECK, --set and --unset to a command; `source` must live until the command has run.
void add_deck_options(Command& command, DeckSource& source, DeckUse use = DeckUse::required);

/// Adds --set and --unset alone.
void add_deck_overrides(Command& command, DeckSource& source);

/// Returns the keys to remove, then the keys to set. Throws InputError if a value is missing.
std::vector<keys::Override> overrides_of(const DeckSource& source);

/// Reads the deck on rank 0, broadcasts its text and parses it on every rank. Collective. Throws
/// InputError on all ranks alike.
deck::Deck read_deck(const DeckSource& source, const comm::Communicator& world,
                     deck::DeckPurpose purpose = deck::DeckPurpose::training);

/// Throws InputError if a file would be read with a set of the deck the next time. `option` and
/// `given`: the option that leads to the file, and its value.
void validate_no_data(const deck::Deck& deck, const char* option, const std::string& given,
                      const std::string& file);

/// Runs `body`, which checks a deck against data, ranks and sizes. Adds the line of the key in the
/// deck to an InputError that names a key.
template <class Body>
auto with_deck_locations(const deck::Deck& deck, Body&& body) {
  try {
    return body();
  } catch (const InputError& error) {
    InputError with_place(deck::with_location(deck, error.what()));
    if (error.thrown_on_all_ranks()) with_place.set_thrown_on_all_ranks();
    throw with_place;
  }
}

/// Prints an error to stderr. If all ranks have it, rank 0 prints it once. Otherwise each failed
/// rank prints it with its rank and host.
void report_error(const std::string& message, bool all_ranks_know,
                  const comm::Environment& environment, Log& log);

/// Runs the body of a command that uses MPI and exits through `environment`. Never returns; runs no
/// destructor afterwards.
///
/// - If all ranks have an error, they exit together with its code. These are agreed errors and
///   wrong input, which all ranks find alike.
/// - If only this rank has an error, it aborts the whole job at once: the other ranks may wait in a
///   collective call.
template <class Body>
[[noreturn]] void run_and_exit(comm::Environment& environment, Log& log, Body&& body) {
  ExitCode code = ExitCode::failure;
  bool all_ranks_know = true;
  try {
    code = body();
  } catch (const std::exception& caught) {
    const Error error = to_error(caught);
    code = error.code();
    // An exception of a library may concern this rank alone, also if its code is that of wrong
    // input.
    const bool found_alike = dynamic_cast<const InputError*>(&caught) != nullptr;
    all_ranks_know = error.thrown_on_all_ranks() || found_alike || environment.world().size() == 1;
    report_error(error.what(), all_ranks_know, environment, log);
  }
  log.flush();
  if (!all_ranks_know) environment.abort(code);
  environment.finalize_and_exit(code);
}

}  // namespace trireme::app
