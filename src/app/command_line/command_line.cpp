// SPDX-License-Identifier: Apache-2.0
//
// The command line, on top of CLI11. No other file includes CLI11, whose headers take 8 s to
// compile.
//
// 1. main() adds the commands with their options.
// 2. parse() returns the action of the chosen command, or throws InputError.
// 3. main() runs the action.
// Errors of CLI11 are replaced by our own messages, which suggest the nearest command or option.
#include "command_line.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "app/error_text.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::app {

namespace {

std::vector<const CLI::App*> visible_commands(const CLI::App& root) {
  return root.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); });
}

/// Returns the names of all visible commands.
std::vector<std::string> command_names(const CLI::App& root) {
  std::vector<std::string> names;
  for (const CLI::App* command : visible_commands(root)) names.push_back(command->get_name());
  return names;
}

OptionDescription described(const CLI::Option& option) {
  OptionDescription result;
  if (option.get_positional()) {
    result.names = {option.get_single_name()};
  } else {
    for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  }
  const bool takes_value = option.get_type_size_max() > 0;
  if (takes_value) result.value = option.get_type_name();
  result.default_value = option.get_default_str();
  result.help = option.get_description();
  result.is_required = option.get_required();
  result.is_repeated = takes_value && option.get_expected_max() > 1;
  return result;
}

CommandDescription described(const CLI::App& app) {
  CommandDescription result;
  result.name = app.get_name();
  result.summary = app.get_description();
  result.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? result.positionals : result.options).push_back(described(*option));
  }
  return result;
}

/// Returns the message for an unknown command, with the nearest known one.
std::string unknown_command(const CLI::App& root, const std::string& word) {
  const std::vector<std::string> names = command_names(root);
  const std::string guess = nearest(word, names);
  if (!guess.empty())
    return fmt::format("unknown command \"{}\", did you mean \"{}\"?", word, guess);
  return fmt::format("unknown command \"{}\"; commands are {}", word, fmt::join(names, ", "));
}

/// Returns the long options of a command, with their dashes.
std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// Returns the message for an unknown option, with the nearest known one, or with the commands that
/// have it.
std::string unknown_option(const CLI::App& root, const CLI::App& command, const std::string& word) {
  const std::vector<std::string> names = option_names(command);
  const std::string name = word.substr(0, word.find('='));
  const std::string guess = nearest(name, names);
  if (!guess.empty()) return fmt::format("unknown option {}, did you mean {}?", word, guess);
  std::vector<std::string> owners;
  for (const std::string& owner : command_names(root)) {
    const std::vector<std::string> known = option_names(*root.get_subcommand(owner));
    if (std::find(known.begin(), known.end(), name) != known.end()) owners.push_back(owner);
  }
  if (!owners.empty())
    return fmt::format("unknown option {}; it is an option of {}", word, fmt::join(owners, ", "));
  return fmt::format("unknown option {}; options are {}", word, fmt::join(names, ", "));
}

/// Returns the message for a value that a flag was given, as in --json=yes; "" for other errors.
std::string value_of_flag(const CLI::ParseError& error, int argc, const char* const* argv) {
  const std::string message = error.what();
  const std::size_t end = message.find(" was given a disallowed flag override");
  if (end == std::string::npos) return "";
  const std::string name = "--" + message.substr(0, end);
  const auto* const word = std::find_if(argv + 1, argv + argc, [&](const char* each) {
    return std::string_view(each).starts_with(name + "=");
  });
  return fmt::format("{}: {} takes no value; write {} alone, or leave it out",
                     word == argv + argc ? name : *word, name, name);
}

/// Returns the message for an invalid command line, with the nearest command or option if one was
/// misspelled.
std::string explain(const CLI::App& root, const CLI::ParseError& error, int argc,
                    const char* const* argv) {
  const std::vector<const CLI::App*> chosen =
      root.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  const std::string value = value_of_flag(error, argc, argv);
  if (!value.empty()) return value;
  const std::vector<std::string> before_command = root.remaining();
  if (!before_command.empty()) {
    const std::string& first = before_command.front();
    return first.starts_with('-') ? unknown_option(root, root, first)
                                  : unknown_command(root, first);
  }
  if (chosen.empty())
    return fmt::format("a command is missing; commands are {} (trireme --help)",
                       fmt::join(command_names(root), ", "));
  const CLI::App& command = *chosen.front();
  const std::string help = fmt::format(" (trireme {} --help)", command.get_name());
  for (const std::string& word : command.remaining(true))
    if (word.starts_with('-')) return unknown_option(root, command, word) + help;
  if (!command.remaining(true).empty())
    return fmt::format("\"{}\" is one argument too many", command.remaining(true).front()) + help;
  // CLI11: "--machine: At Most 1 required but received 2".
  constexpr std::string_view repeated = ": At Most 1 required but received ";
  std::string message = error.what();
  if (const std::size_t place = message.find(repeated); place != std::string::npos)
    message = fmt::format("{}: is given {} times; give it once", message.substr(0, place),
                          message.substr(place + repeated.size()));
  return message + help;
}

/// Returns a whole message, as long as it is, without control characters.
std::string printed(const std::string& message) { return printable(message, message.size()); }

/// Returns the words of a command line, in single quotes where a shell would change them.
std::vector<std::string> quoted_words(int argc, const char* const* argv) {
  std::vector<std::string> words(argv, argv + argc);
  for (std::string& word : words) {
    const bool plain =
        !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char letter) {
          return std::isalnum(letter) != 0 ||
                 std::string_view("%+,-./:=@_").find(static_cast<char>(letter)) !=
                     std::string_view::npos;
        });
    if (plain) continue;
    std::string quoted = "'";
    for (const char letter : word) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
    word = quoted + "'";
  }
  return words;
}

/// Returns what --version prints, as lines or as a JSON object.
std::string version_text(bool as_json) {
  const train::SoftwareVersions versions = train::software_versions();
  return as_json ? to_json(versions) : fmt::format("{}", fmt::join(to_lines(versions), "\n"));
}

/// Keeps the lines of the examples: CLI11 2.5 and newer would join them into paragraphs.
template <class Formatter>
void keep_lines_of_footers(Formatter& formatter) {
  if constexpr (requires { formatter.enable_footer_formatting(false); })
    formatter.enable_footer_formatting(false);
}

/// Refuses words that are not a number of this type, or not `allowed`. `rule`: what is right.
template <class Number, class Allowed>
void add_number_check(CLI::Option& option, const std::string& rule, const Allowed& allowed) {
  option.check([rule, allowed](const std::string& word) -> std::string {
    // CLI11 would read 010 as an octal number.
    const bool is_octal =
        std::is_integral_v<Number> && word.size() > 1 && word[0] == '0' && word[1] != 'x';
    if (is_octal) return fmt::format("{}, but is \"{}\"; leave the zeros in front out", rule, word);
    Number value{};
    const char* end = word.data() + word.size();
    const auto [stopped, error] = std::from_chars(word.data(), end, value);
    if (error == std::errc() && stopped == end && allowed(value)) return "";
    return fmt::format("{}, but is \"{}\"", rule, word);
  });
}

/// Throws InputError if --json is in front of a command: there it belongs to --version.
void refuse_json_alone(const CLI::App& root) {
  validate(root.count("--json") == 0,
           "--json without --version; write it behind the command, as in `trireme doctor --json`");
}

/// Refuses an empty value: most options take it for one that was not given.
CLI::Option& refuse_empty(CLI::Option& option) {
  option.check([&option](const std::string& word) -> std::string {
    if (!word.empty()) return "";
    if (option.get_positional() || option.get_required()) return "must not be empty";
    return fmt::format("must not be empty; give {}, or leave the option out",
                       option.get_type_name());
  });
  return option;
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::default_shown() {
  option_->capture_default_str();
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::range(std::int64_t min_value, std::int64_t max_value) {
  add_number_check<std::int64_t>(
      *option_, fmt::format("must be a whole number of {} to {}", min_value, max_value),
      [=](std::int64_t value) { return min_value <= value && value <= max_value; });
  return *this;
}

Option& Option::range_of_reals(double min_value, double max_value) {
  add_number_check<double>(*option_,
                           fmt::format("must be a number of {} to {}", min_value, max_value),
                           [=](double value) { return min_value <= value && value <= max_value; });
  return *this;
}

Option& Option::positive() {
  add_number_check<double>(*option_, "must be a number above 0",
                           [](double value) { return value > 0 && std::isfinite(value); });
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values) {
  option_->type_name(fmt::format("{}", fmt::join(values, "|")));
  option_->check([values](const std::string& word) -> std::string {
    if (std::find(values.begin(), values.end(), word) != values.end()) return "";
    return fmt::format("must be one of {}, but is \"{}\"", fmt::join(values, ", "), word);
  });
  return *this;
}

Option& Option::size_in_bytes() {
  option_->transform(CLI::AsSizeValue(true).description(""))->type_name("SIZE");
  return *this;
}

Option& Option::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

Option Command::option(const std::string& name, std::string& value, const std::string& help) {
  return Option(refuse_empty(*app_->add_option(name, value, help)));
}
Option Command::option(const std::string& name, int& value, const std::string& help) {
  return Option(*app_->add_option(name, value, help));
}
Option Command::option(const std::string& name, std::int64_t& value, const std::string& help) {
  return Option(*app_->add_option(name, value, help));
}
Option Command::option(const std::string& name, std::uint64_t& value, const std::string& help) {
  CLI::Option& option = *app_->add_option(name, value, help);
  add_number_check<std::uint64_t>(
      option,
      fmt::format("must be a whole number of 0 to {}", std::numeric_limits<std::uint64_t>::max()),
      [](std::uint64_t) { return true; });
  return Option(option);
}
Option Command::option(const std::string& name, double& value, const std::string& help) {
  return Option(*app_->add_option(name, value, help));
}
Option Command::option(const std::string& name, std::vector<std::string>& values,
                       const std::string& help) {
  return Option(refuse_empty(*app_->add_option(name, values, help)));
}
Option Command::option(const std::string& name, const std::function<void(const std::string&)>& take,
                       const std::string& help) {
  return Option(*app_->add_option_function<std::string>(name, take, help));
}

void Command::flag(const std::string& name, bool& given, const std::string& help) {
  app_->add_flag(name, given, help)->disable_flag_override();
}

void Command::footer(const std::string& lines) { app_->footer(lines); }

void Command::hide() { app_->group(""); }

void Command::set_action(const CommandAction& run) {
  app_->callback([run, chosen = chosen_] { *chosen = run; });
}

void Command::set_single_rank_action(const CommandAction& run) {
  set_action([run, name = app_->get_name()] {
    if (comm::launched_rank() == 0) return run();
    if (comm::launched_rank() == 1)
      print_error(fmt::format(
          "trireme: {} runs on one process: rank 0 does it, the other ranks have nothing to do",
          name));
    return ExitCode::done;
  });
}

std::vector<std::string> Command::given_options() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options())
    if (option->count() > 0) names.push_back(option->get_name());
  return names;
}

CommandLine::CommandLine()
    : root_(std::make_unique<CLI::App>(
          "Trireme trains neural networks as a batch application for supercomputers.", "trireme")) {
  // the commands inherit the formatter
  keep_lines_of_footers(*root_->get_formatter());
  root_->footer(
      "Example:\n  mpirun -n 2 trireme train inputs/examples/fashion_resnet.toml\n\nEvery command "
      "has --help.");
  root_
      ->set_version_flag(
          "--version", [this] { return version_text(root_->count("--json") > 0); },
          "Print the versions of the program and its libraries")
      ->disable_flag_override();
  root_->add_flag_callback(
           "--json", [] {}, "With --version: print one JSON object")
      ->disable_flag_override();
  root_->get_help_ptr()->disable_flag_override();
  root_->require_subcommand(1);
}

CommandLine::~CommandLine() = default;

Command CommandLine::add(const std::string& name, const std::string& description) {
  CLI::App& command = *root_->add_subcommand(name, description);
  command.footer("");  // not the one of the program
  command.get_help_ptr()->disable_flag_override();
  return {command, chosen_};
}

ProgramDescription CommandLine::describe() const {
  ProgramDescription result{described(*root_), {}};
  for (const CLI::App* command : visible_commands(*root_))
    result.commands.push_back(described(*command));
  return result;
}

CommandAction CommandLine::parse(int argc, const char* const* argv) {
  text_ = fmt::format("{}", fmt::join(quoted_words(argc, argv), " "));
  try {
    root_->parse(argc, argv);
  } catch (const CLI::Success& asked) {
    const bool is_version = dynamic_cast<const CLI::CallForVersion*>(&asked) != nullptr;
    if (is_version && !root_->remaining().empty())
      throw InputError(printed(explain(*root_, asked, argc, argv)));
    std::ostringstream text;
    root_->exit(asked, text, text);
    return [answer = text.str()] {
      // main() checks that the text was written
      if (comm::launched_rank() == 0) std::fputs(answer.c_str(), stdout);
      return ExitCode::done;
    };
  } catch (const CLI::ParseError& error) {
    refuse_json_alone(*root_);
    throw InputError(printed(explain(*root_, error, argc, argv)));
  }
  refuse_json_alone(*root_);
  return chosen_;
}

}  // namespace trireme::app
