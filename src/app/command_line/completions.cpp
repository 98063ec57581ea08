// SPDX-License-Identifier: Apache-2.0
//
// Writes completions for bash and zsh from what `--help` says, for `trireme completion`.
#include "completions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::app {
namespace {

/// Returns the names of all options between spaces.
std::string names_of(const CommandDescription& command) {
  std::string names;
  for (const OptionDescription& option : command.options)
    names += fmt::format("{}{}", names.empty() ? "" : " ", fmt::join(option.names, " "));
  return names;
}

/// Returns text inside single quotes of zsh, in which `marks` have a backslash.
std::string escaped_for_zsh(const std::string& text, std::string_view marks) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\'') {
      result += "'\\''";
      continue;
    }
    if (letter == '\\' || marks.find(letter) != std::string_view::npos) result += '\\';
    result += letter;
  }
  return result;
}

/// Returns how zsh completes a value: ":NAME:(words)", ":NAME:_files", or both by a function of the
/// script.
std::string value_for_zsh(const std::string& name, const OptionDescription& option) {
  const std::vector<std::string> words = option.words();
  std::string action = "_files";
  if (!words.empty() && option.takes_other_words())
    action = fmt::format(" _trireme_words_or_files {}", fmt::join(words, " "));
  else if (!words.empty())
    action = fmt::format("({})", fmt::join(words, " "));
  return ":" + escaped_for_zsh(name, ":") + ":" + action;
}

/// Returns the arguments of zsh's _arguments, each on a line behind `indent`.
std::string arguments_for_zsh(const CommandDescription& command, const std::string& indent) {
  std::string text;
  for (const OptionDescription& option : command.options)
    for (const std::string& name : option.names)
      text += fmt::format(" \\\n{}'{}{}[{}]{}'", indent, option.is_repeated ? "*" : "", name,
                          escaped_for_zsh(option.help, "[]"),
                          option.value.empty() ? "" : value_for_zsh(option.value, option));
  for (std::size_t i = 0; i < command.positionals.size(); ++i) {
    const OptionDescription& argument = command.positionals[i];
    text += fmt::format(" \\\n{}'{}{}'", indent, argument.is_repeated ? "*" : std::to_string(i + 1),
                        value_for_zsh(argument.names.back(), argument));
  }
  return text;
}

}  // namespace

std::string bash_completion(const ProgramDescription& program) {
  // 1. By command and the word before: the words of a value.
  std::string values, commands, options;
  const auto add_value = [&values](const std::string& command, const std::string& before,
                                   const OptionDescription& option) {
    const std::string words = fmt::format("{}", fmt::join(option.words(), " "));
    if (!words.empty())
      values += fmt::format("    {}:{}) words=\"{}\"{} ;;\n", command, before, words,
                            option.takes_other_words() ? " others=1" : "");
  };
  for (const CommandDescription& command : program.commands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    options += fmt::format("    {}) words=\"{}\" ;;\n", command.name, names_of(command));
    for (const OptionDescription& option : command.options)
      for (const std::string& name : option.names) add_value(command.name, name, option);
    if (!command.positionals.empty()) add_value(command.name, "", command.positionals.front());
  }
  // 2. The function.
  return fmt::format(R"(# Completion of {0} for bash, written by `{0} completion bash`.
_{0}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command='' words='' others='' place IFS=$' \t\n'
  COMPREPLY=()
  # Bash makes three words of --name=value.
  if [[ $before == = ]]; then
    before=${{COMP_WORDS[COMP_CWORD - 2]}}
  elif [[ $current == = ]]; then
    current=''
  fi
  for ((place = 1; place < COMP_CWORD; ++place)); do
    [[ ${{COMP_WORDS[place]}} == -* ]] && continue
    command=${{COMP_WORDS[place]}}
    ((place == COMP_CWORD - 1)) && before=''
    break
  done
  [[ $current == -* ]] || case $command:$before in
{1}  esac
  # Without words bash completes names of files.
  [[ $command && ! $words && $current != -* ]] && return
  [[ $words ]] || case $command in
    '') words="{2} {3}" ;;
{4}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  [[ $others ]] && mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -f -- "$current") &&
    compopt -o filenames 2> /dev/null
}}
complete -o default -F _{0} {0}
)",
                     program.program.name, values, commands, names_of(program.program), options);
}

std::string zsh_completion(const ProgramDescription& program) {
  std::string commands, cases;
  for (const CommandDescription& command : program.commands) {
    commands += fmt::format("        '{}:{}'\n", escaped_for_zsh(command.name, ":"),
                            escaped_for_zsh(command.summary, ""));
    cases += fmt::format("        {})\n          _arguments{} ;;\n", command.name,
                         arguments_for_zsh(command, "            "));
  }
  return fmt::format(R"zsh(#compdef {0}
# Completion of {0} for zsh, written by `{0} completion zsh`.
_{0}_words_or_files() {{
  _alternative "words:word:($*)" 'files:file:_files'
}}
_{0}() {{
  local curcontext=$curcontext state line
  typeset -A opt_args
  _arguments -C{1} \
    '1:command:->command' \
    '*::argument:->argument'
  case $state in
    command)
      local -a commands=(
{2}      )
      _describe -t commands command commands ;;
    argument)
      case $words[1] in
{3}      esac ;;
  esac
}}
_{0} "$@"
)zsh",
                     program.program.name, arguments_for_zsh(program.program, "    "), commands,
                     cases);
}

}  // namespace trireme::app
