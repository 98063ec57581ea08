#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"

namespace CLI {
class App;
}

namespace trireme::app {

/// A deck on the command line: DECK [--set key=value]...
struct DeckSource {
  std::string path;
  std::vector<std::string> sets;
};

void add_deck_options(CLI::App& command, DeckSource& source);

/// The `--set key=value` options taken apart. Throws InputError.
std::vector<deck::Override> overrides_of(const DeckSource& source);

/// Read by rank 0, broadcast as bytes, parsed by all. Throws InputError on all ranks alike.
deck::Deck read_deck(const DeckSource& source, const comm::Communicator& world);

/// Prints what went wrong where it should be printed: input errors, which all ranks have alike, once; a failure on the rank that has it.
void report(const Error& error, const comm::Environment& environment, Log& log);

/// Runs the body of a command that uses MPI and leaves through the environment: no return, no destructor after it.
template <class Body>
[[noreturn]] void leave_together(comm::Environment& environment, Log& log, Body&& body) {
  ExitCode code = ExitCode::failure;
  try {
    code = body();
  } catch (const Error& error) {
    report(error, environment, log);
    code = error.code();
  } catch (const std::exception& error) {
    report(Failure(error.what()), environment, log);
  }
  log.flush();
  environment.leave(code);
}

}  // namespace trireme::app
