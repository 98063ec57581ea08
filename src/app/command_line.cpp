#include "command_line.hpp"

#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/text.hpp"

namespace trireme::app {

namespace {

std::vector<std::string> command_names(const CLI::App& root) {
  std::vector<std::string> names;
  for (const CLI::App* command : root.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); })) names.push_back(command->get_name());
  return names;
}

std::string unknown_command(const CLI::App& root, const std::string& word) {
  const std::vector<std::string> later = {"plan", "report", "doctor"};
  const std::vector<std::string> names = command_names(root);
  if (std::find(later.begin(), later.end(), word) != later.end())
    return fmt::format("the command \"{}\" is not available in this version of Trireme ({}); available: {}", word, TRIREME_VERSION, fmt::join(names, ", "));
  const std::string guess = nearest(word, names);
  if (!guess.empty()) return fmt::format("unknown command \"{}\", did you mean \"{}\"?", word, guess);
  return fmt::format("unknown command \"{}\"; commands are {}", word, fmt::join(names, ", "));
}

std::string unknown_option(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::string guess = nearest(word.substr(0, word.find('=')), names);
  if (!guess.empty()) return fmt::format("unknown option {}, did you mean {}?", word, guess);
  return fmt::format("unknown option {}; options are {}", word, fmt::join(names, ", "));
}

}  // namespace

std::string explain(const CLI::App& root, const CLI::ParseError& error, int argc, const char* const* argv) {
  const std::vector<const CLI::App*> chosen = root.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  if (chosen.empty()) {
    if (argc < 2) return fmt::format("a command is missing; commands are {} (trireme --help)", fmt::join(command_names(root), ", "));
    const std::string first = argv[1];
    return first.starts_with('-') ? unknown_option(root, first) : unknown_command(root, first);
  }
  const CLI::App& command = *chosen.front();
  const std::string help = fmt::format(" (trireme {} --help)", command.get_name());
  for (const std::string& word : command.remaining(true))
    if (word.starts_with('-')) return unknown_option(command, word) + help;
  if (!command.remaining(true).empty()) return fmt::format("\"{}\" is one argument too many", command.remaining(true).front()) + help;
  return error.what() + help;
}

}  // namespace trireme::app
