#pragma once

#include <string>
#include <vector>

#include "command_line.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::app {

/// A deck on the command line: DECK [--set key=value]...
struct DeckSource {
  std::string path;
  std::vector<std::string> sets;
};

void add_deck_options(Command& command, DeckSource& source);

/// The `--set key=value` options taken apart. Throws InputError.
std::vector<deck::Override> overrides_of(const DeckSource& source);

/// Read by rank 0, broadcast as bytes, parsed by all. Throws InputError on all ranks alike.
deck::Deck read_deck(const DeckSource& source, const comm::Communicator& world);

/// Runs what looks at the world that a deck speaks of (data, ranks, sizes): an input error about
/// one of its keys gets the key's place.
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

/// Prints what went wrong: what all ranks know alike once, by rank 0; a failure that is one rank's
/// alone on that rank, with its name.
void report_error(const std::string& message, bool all_ranks_know,
                  const comm::Environment& environment, Log& log);

/// Runs the body of a command that uses MPI and leaves through the environment: no return, no
/// destructor after it. Errors that all ranks have (agreed on, or wrong input, which is found
/// before ranks part) let all leave together; any other one ends the job at once, since the other
/// ranks may wait in a collective call.
template <class Body>
[[noreturn]] void run_and_exit(comm::Environment& environment, Log& log, Body&& body) {
  ExitCode code = ExitCode::failure;
  bool all_ranks_know = true;
  try {
    code = body();
  } catch (const Error& error) {
    code = error.code();
    all_ranks_know = error.thrown_on_all_ranks() || code == ExitCode::wrong_input ||
                     environment.world().size() == 1;
    report_error(error.what(), all_ranks_know, environment, log);
  } catch (const std::exception& error) {
    all_ranks_know = environment.world().size() == 1;
    report_error(error.what(), all_ranks_know, environment, log);
  }
  log.flush();
  if (!all_ranks_know) environment.abort(code);
  environment.finalize_and_exit(code);
}

}  // namespace trireme::app
