#pragma once

#include <stdexcept>
#include <string>

namespace trireme {

/// What the program's exit codes mean (docs/contract: section 1). Batch scripts test them.
enum class ExitCode : int {
  done = 0,
  failure = 1,
  wrong_input = 2,
  stopped_early = 75,
  diverged = 76,
  rank_lost = 77
};

/// Base of every error that ends the program: the message is printed once, the code is left with.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }
  /// Whether every rank throws this error at the same place (comm::agree), so that all can leave
  /// together and one of them speaks.
  bool thrown_on_all_ranks() const { return thrown_on_all_ranks_; }
  void set_thrown_on_all_ranks() { thrown_on_all_ranks_ = true; }

 private:
  ExitCode code_;
  bool thrown_on_all_ranks_ = false;
};

/// The user's input is wrong: command line, deck, dataset, checkpoint. Exit code 2.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message) : Error(ExitCode::wrong_input, message) {}
};

/// The program or the machine failed. Exit code 1.
class Failure : public Error {
 public:
  explicit Failure(const std::string& message) : Error(ExitCode::failure, message) {}
};

}  // namespace trireme
