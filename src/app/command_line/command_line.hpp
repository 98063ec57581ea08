// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "command_description.hpp"
#include "trireme/base/error.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trireme::app {

/// The action of a command. main() runs it after the options are parsed, prints its error once and
/// exits with its code.
using CommandAction = std::function<ExitCode()>;

/// An option or positional argument of a command. Each call adds a property and returns the option.
/// (This interface hides CLI11, whose headers take 8 s to compile.)
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}
  Option& required();
  Option& default_shown();                     ///< the help shows the initial value
  Option& type_name(const std::string& name);  ///< name of the value in the help
  Option& range(std::int64_t min_value, std::int64_t max_value);  ///< both bounds included
  Option& range_of_reals(double min_value, double max_value);     ///< both bounds included
  Option& positive();                                             ///< greater than 0
  Option& one_of(const std::vector<std::string>& values);
  /// A whole number, or a number with k, KiB, MB, ...; for std::uint64_t.
  Option& size_in_bytes();
  Option& one_value_each();  ///< for a list: the name is repeated before each value

 private:
  CLI::Option* option_;
};

/// A command of the program. The variables that its options write to must live until the command
/// has run.
class Command {
 public:
  Command(CLI::App& app, CommandAction& chosen) : app_(&app), chosen_(&chosen) {}
  /// Adds an option (`name` starts with dashes) or a positional argument. It takes one value; a
  /// list takes one or more. Invalid numbers and empty words are rejected.
  Option option(const std::string& name, std::string& value, const std::string& help);
  Option option(const std::string& name, int& value, const std::string& help);
  Option option(const std::string& name, std::int64_t& value, const std::string& help);
  Option option(const std::string& name, std::uint64_t& value, const std::string& help);
  Option option(const std::string& name, double& value, const std::string& help);
  Option option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  /// Adds an option whose value is passed to `take`.
  Option option(const std::string& name, const std::function<void(const std::string&)>& take,
                const std::string& help);
  /// Adds an option without a value: `given` becomes true.
  void flag(const std::string& name, bool& given, const std::string& help);
  /// Sets the text below the help; its line breaks are kept.
  void footer(const std::string& lines);
  /// Hides the command from the help of the program.
  void hide();
  /// Sets the action of the command. Under a launcher every rank runs it.
  void set_action(const CommandAction& run);
  /// Sets an action that only one process runs: under a launcher rank 0. The other ranks exit at
  /// once with code 0; rank 1 prints one line about it.
  void set_single_rank_action(const CommandAction& run);
  /// Returns the names of the options and positionals that the command line contains. Call it after
  /// parse().
  std::vector<std::string> given_options() const;

 private:
  CLI::App* app_;
  CommandAction* chosen_;
};

/// The command line of the program: one of several commands.
class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  /// Adds a command; the second argument is its line in the help.
  Command add(const std::string& name, const std::string& description);
  /// Returns the action of the chosen command; for --help and --version an action that prints the
  /// text. Throws InputError if the command line is invalid, with the nearest command or option if
  /// one was misspelled.
  CommandAction parse(int argc, const char* const* argv);
  /// Returns what --help says. The commands must have been added.
  ProgramDescription describe() const;
  /// Returns the words that parse() read, quoted for a shell where they need it.
  const std::string& text() const { return text_; }

 private:
  std::unique_ptr<CLI::App> root_;
  CommandAction chosen_;
  std::string text_;
};

}  // namespace trireme::app
