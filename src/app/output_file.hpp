// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::app {

enum class OutputForm { png, svg, json, job, hdf5, confusion_csv, confusion_svg, report };

/// The first bytes of pictures of confusion matrices, by which they are recognized.
inline constexpr std::string_view confusion_svg_start =
    "<!-- trireme evaluate: confusion -->\n<svg ";

/// Throws InputError unless a command may write this file: it does not exist in a folder that can
/// be written, it holds a file of this form, or JSON goes into a device or a pipe. The name of a
/// new file has no ending of pictures of another form. "-" is for JSON alone. `option`: the option
/// that names the file, for messages.
void validate_output(const char* option, const std::string& path, OutputForm form);

/// Returns the file that a command replaces: `path`, or that to which it links, so that the link
/// remains. Throws InputError if it is a link to nothing.
std::string output_target(const std::string& option, const std::string& path);

/// Returns output_target(). Throws InputError unless a file can be created beside it, as commands
/// do before they replace it; Failure if the disk is full or fails. A command calls it before its
/// work.
std::string validate_creatable(const std::string& option, const std::string& path);

/// Throws InputError if two options name one file. Empty names are none.
void validate_distinct_outputs(
    std::initializer_list<std::pair<const char*, std::string>> option_and_path);

/// Prints the text if `path` is "-". Else replaces the file, or that to which a link leads; devices
/// and pipes are written. Throws InputError or Failure.
void write_output(const std::string& path, std::string_view text);

}  // namespace trireme::app
