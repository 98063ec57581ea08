// SPDX-License-Identifier: Apache-2.0
//
// Writes what `--help` says as manual pages, for `trireme man`.
#include "man_pages.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace trireme::app {
namespace {

/// Returns text that groff prints as it is: these characters have other meanings or shapes.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '`': result += "\\(ga"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      default: result += letter;
    }
  }
  // A request begins with a dot; a quote has its escape above.
  if (result.starts_with('.')) result.insert(0, "\\&");
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string head(const std::string& title, const std::string& version) {
  return fmt::format(".TH {} 1 \"\" \"Trireme {}\" \"Trireme\"\n", title, version);
}

/// Returns the first name with two dashes; the first of all if there is none.
const std::string& long_name(const OptionDescription& option) {
  const auto found = std::find_if(option.names.begin(), option.names.end(),
                                  [](const std::string& name) { return name.starts_with("--"); });
  return found == option.names.end() ? option.names.front() : *found;
}

/// Returns "[--set KEY=VALUE ...]" of each option but --help, and the positional arguments.
std::string synopsis(const CommandDescription& command) {
  std::string text;
  for (const OptionDescription& option : command.options) {
    const std::string& name = long_name(option);
    if (name == "--help") continue;
    std::string part = bold(name);
    if (!option.value.empty()) part += " " + italic(option.value);
    if (option.is_repeated) part += " ...";
    text += option.is_required ? part + "\n" : "[" + part + "]\n";
  }
  for (const OptionDescription& argument : command.positionals) {
    const std::string part = italic(argument.names.back()) + (argument.is_repeated ? " ..." : "");
    text += argument.is_required ? part + "\n" : "[" + part + "]\n";
  }
  return text;
}

/// Returns a section with a paragraph for each option; nothing without options.
std::string section(const char* title, const std::vector<OptionDescription>& options) {
  if (options.empty()) return "";
  std::string text = fmt::format(".SH {}\n", title);
  for (const OptionDescription& option : options) {
    text += ".TP\n";
    for (const std::string& name : option.names)
      text += (&name == &option.names.front() ? "" : ", ") + bold(name);
    if (const std::string value = option.value_text(); !value.empty()) text += " " + italic(value);
    text += "\n" + escaped(option.help) + "\n";
    if (option.is_required) text += "(required)\n";
  }
  return text;
}

/// Returns the lines of a footer as they are.
std::string lines_section(const std::string& footer) {
  if (footer.empty()) return "";
  std::string text = ".SH EXAMPLES\n.nf\n";
  for (std::size_t begin = 0; begin <= footer.size();) {
    const std::size_t end = std::min(footer.find('\n', begin), footer.size());
    const std::string line = footer.substr(begin, end - begin);
    text += (line.empty() ? ".sp" : escaped(line)) + "\n";
    begin = end + 1;
  }
  return text + ".fi\n";
}

std::string exit_status() {
  return ".SH EXIT STATUS\n"
         "0: done. 1: a failure of the machine, a library or the program. 2: wrong input.\n"
         "75, 76 and 77 of\n.B trireme train\ntell the scripts of a chain of jobs how to go on.\n";
}

}  // namespace

std::vector<ManPage> man_pages(const ProgramDescription& program, const std::string& version) {
  const std::string& name = program.program.name;
  // 1. The program: its commands.
  std::string text = head("TRIREME", version);
  text += fmt::format(".SH NAME\n{} \\- {}\n", name, escaped(program.program.summary));
  text += ".SH SYNOPSIS\n" + bold(name) + " " + italic("COMMAND") + " [" + italic("ARGUMENTS") +
          "]\n.br\n" + bold(name) + "\n" + synopsis(program.program);
  text += ".SH COMMANDS\n";
  for (const CommandDescription& command : program.commands)
    text += ".TP\n" + bold(command.name) + "\n" + escaped(command.summary) + "\n";
  text += section("OPTIONS", program.program.options) + lines_section(program.program.footer) +
          exit_status() + ".SH SEE ALSO\n";
  for (const CommandDescription& command : program.commands)
    text += fmt::format(".BR {}\\-{} (1){}\n", name, escaped(command.name),
                        &command == &program.commands.back() ? "" : ",");
  std::vector<ManPage> pages{{name + ".1", text}};
  // 2. Each command.
  for (const CommandDescription& command : program.commands) {
    const std::string title = name + "-" + command.name;
    std::string upper = title;
    for (char& letter : upper)
      if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
    text = head(escaped(upper), version);
    text += fmt::format(".SH NAME\n{} \\- {}\n", escaped(title), escaped(command.summary));
    text += ".SH SYNOPSIS\n" + bold(name + " " + command.name) + "\n" + synopsis(command);
    text += section("ARGUMENTS", command.positionals) + section("OPTIONS", command.options) +
            lines_section(command.footer) + exit_status() + ".SH SEE ALSO\n.BR " + name + " (1)\n";
    pages.push_back({title + ".1", text});
  }
  return pages;
}

}  // namespace trireme::app
