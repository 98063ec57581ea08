// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace trireme::app {

/// An option or a positional argument, as `--help` shows it.
struct OptionDescription {
  std::vector<std::string> names;  ///< "-h", "--help"; of a positional argument its one name
  /// Name of the value, as "FILE"; empty for a flag. Alternatives are between bars: words in lower
  /// case are typed as they are, others stand for a value, as in "auto|none|PATH".
  std::string value;
  std::string default_value;  ///< that the help shows; may be empty
  std::string help;
  bool is_required = false;
  bool is_repeated = false;  ///< takes several values, or may be given several times

  /// Returns the alternatives of the value that are typed as they are.
  std::vector<std::string> words() const;
  /// Returns whether other words can be typed, too, such as the name of a file.
  bool takes_other_words() const;
  /// Returns the value with its default, "auto|none|PATH=auto", and " ..." if it is repeated.
  std::string value_text() const;
};

/// A command of the program, or the program itself.
struct CommandDescription {
  std::string name;     ///< "train"; of the program "trireme"
  std::string summary;  ///< its line in the help
  std::vector<OptionDescription> positionals, options;
  std::string footer;  ///< examples; may be empty
};

/// All that `--help` says: the program with its own options, and its visible commands.
struct ProgramDescription {
  CommandDescription program;
  std::vector<CommandDescription> commands;
};

}  // namespace trireme::app
