#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace trireme {

/// What the program's exit codes mean (docs/contract: section 1). Batch scripts test them.
enum class ExitCode : int { done = 0, failure = 1, wrong_input = 2, stopped_early = 75, diverged = 76, rank_lost = 77 };

/// Base of every error that ends the program: the message is printed once, the code is left with.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
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

/// Checks what came from outside (always on). The message says the problem, why it matters and what would be right.
/// Throws InputError.
template <class... Args>
void validate(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

/// Checks what the machine or a library did (always on). Throws Failure.
template <class... Args>
void ensure(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] inline void contract_broken(const char* condition, const char* file, int line) {
  fmt::print(stderr, "trireme: broken assumption: {} ({}:{})\n", condition, file, line);
  std::abort();
}

}  // namespace trireme

/// Checks the program's own assumptions: a failure is a bug. Compiled in with TRIREME_CONTRACTS (debug, asan).
#if defined(TRIREME_CONTRACTS)
#define TRIREME_EXPECT(condition) ((condition) ? void(0) : ::trireme::contract_broken(#condition, __FILE__, __LINE__))
#else
#define TRIREME_EXPECT(condition) ((void)sizeof(bool(condition)))
#endif
