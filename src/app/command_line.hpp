#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trireme::app {

/// What a subcommand does once its options are parsed; main runs it, catches, prints once and
/// leaves.
using CommandAction = std::function<ExitCode()>;

/// An option or positional that was declared; each call says more of it. (CLI11 behind an interface
/// of its own: its headers take 8 s to compile.)
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}
  Option& required();
  Option& default_shown();                     ///< the value held before parsing, in the help
  Option& type_name(const std::string& name);  ///< in the help, for the type's own
  Option& range(std::int64_t min_value, std::int64_t max_value);  ///< both may be given
  Option& range_of_reals(double min_value, double max_value);     ///< both may be given
  Option& positive();                                             ///< above 0
  Option& one_of(const std::vector<std::string>& values);
  Option&
  size_in_bytes();  ///< a whole number, or with k, KiB, MB, ... behind it; for std::uint64_t
  Option& separated_by(char delimiter);  ///< several values in one word
  Option& one_value_each();              ///< of a list: each value with the option's name before it

 private:
  CLI::Option* option_;
};

/// A subcommand of a CommandLine. What options write into must live until it has run.
class Command {
 public:
  Command(CLI::App& app, CommandAction& chosen) : app_(&app), chosen_(&chosen) {}
  /// `name` with dashes: an option, else a positional; of one value, or of one or more for a list.
  /// What is no number, where one is meant, is refused.
  Option option(const std::string& name, std::string& value, const std::string& help);
  Option option(const std::string& name, int& value, const std::string& help);
  Option option(const std::string& name, std::int64_t& value, const std::string& help);
  Option option(const std::string& name, std::uint64_t& value, const std::string& help);
  Option option(const std::string& name, double& value, const std::string& help);
  Option option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  /// An option whose value goes to `take`.
  Option option(const std::string& name, const std::function<void(const std::string&)>& take,
                const std::string& help);
  /// An option without a value: true where it is given.
  void flag(const std::string& name, bool& given, const std::string& help);
  /// Lines below the help, as they are.
  void footer(const std::string& lines);
  /// The help of the program does not name it.
  void hide();
  /// What it does where it is chosen; under a launcher on every rank.
  void set_action(const CommandAction& run);
  /// The same for work of one process: under a launcher that of rank 0. The other ranks are done at
  /// once, which rank 1 says in one line.
  void set_single_rank_action(const CommandAction& run);
  /// Names of the options and positionals that the command line gave, once it is parsed.
  std::vector<std::string> given_options() const;

 private:
  CLI::App* app_;
  CommandAction* chosen_;
};

/// The command line of the program: one of several subcommands.
class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  Command add(const std::string& name, const std::string& description);
  /// The chosen command; for --help and --version, one that prints what was asked for. Throws
  /// InputError that says what is wrong with the line, with the nearest command or option where one
  /// was misspelt.
  CommandAction parse(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> root_;
  CommandAction chosen_;
};

}  // namespace trireme::app
