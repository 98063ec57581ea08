// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace trireme {

/// The exit codes of the program, documented in docs/reference/exit_codes.md. Batch scripts test
/// them.
enum class ExitCode : int {
  done = 0,
  failure = 1,
  wrong_input = 2,
  stopped_early = 75,
  diverged = 76,
  rank_lost = 77
};

/// Base class of every error that ends the program. main() prints the message once and returns the
/// code.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }
  /// Returns whether every rank throws this error at the same place (set by comm::agree). Then all
  /// ranks can exit together and only one of them prints the message.
  bool thrown_on_all_ranks() const { return thrown_on_all_ranks_; }
  void set_thrown_on_all_ranks() { thrown_on_all_ranks_ = true; }

 private:
  ExitCode code_;
  bool thrown_on_all_ranks_ = false;
};

/// The user's input is wrong: command line, deck, dataset or checkpoint. Exit code 2.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message) : Error(ExitCode::wrong_input, message) {}
};

/// The program, the machine or a library failed. Exit code 1.
class Failure : public Error {
 public:
  explicit Failure(const std::string& message) : Error(ExitCode::failure, message) {}
};

/// Returns whether another path could succeed, for the errno of a call that names a path (missing,
/// not permitted, too long, ...). Such an error is the user's (InputError); every other errno is
/// the machine's (Failure).
bool is_path_error(int error);

/// Returns the message about a thread that cannot be started: the reason, the number of threads of
/// this process, its limits, and what to do.
std::string thread_error_text(const std::string& reason);

/// Returns a caught exception as an error of the program: itself, if it is one; a path that cannot
/// be examined as wrong input; every other exception of a library as a failure. A thread that
/// cannot be started gets thread_error_text().
Error to_error(const std::exception& caught);

}  // namespace trireme
