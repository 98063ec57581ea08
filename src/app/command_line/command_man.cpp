// SPDX-License-Identifier: Apache-2.0
//
// `trireme man` and `trireme completion`: what `--help` says, as manual pages and as completions of
// shells. The installation runs them (src/app/CMakeLists.txt). Both are hidden from the help.
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/output_file.hpp"
#include "completions.hpp"
#include "man_pages.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::app {

void add_man(CommandLine& line) {
  Command command = line.add("man", "Write the help of all commands as manual pages");
  command.hide();
  const auto folder = std::make_shared<std::string>();
  command.option("FOLDER", *folder, "An existing folder for trireme.1, trireme-train.1, ...")
      .required();
  command.set_single_rank_action([folder, &line] {
    validate(std::filesystem::is_directory(*folder), "{}: is no folder; name an existing one",
             *folder);
    for (const ManPage& page : man_pages(line.describe(), train::software_versions().program))
      io::replace_file(output_target("FOLDER", *folder + "/" + page.name), page.text);
    return ExitCode::done;
  });
}

void add_completion(CommandLine& line) {
  Command command = line.add("completion", "Print the completion of command lines for a shell");
  command.hide();
  const auto shell = std::make_shared<std::string>();
  command.option("SHELL", *shell, "The shell").required().one_of({"bash", "zsh"});
  command.set_single_rank_action([shell, &line] {
    const ProgramDescription program = line.describe();
    fmt::print("{}", *shell == "bash" ? bash_completion(program) : zsh_completion(program));
    return ExitCode::done;
  });
}

}  // namespace trireme::app
