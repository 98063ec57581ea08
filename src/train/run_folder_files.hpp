// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/base/log.hpp"

namespace trireme::train {

/// Checks the names that a run uses in its folder, before anything is written there. The folder and
/// `checkpoints` may be links, other names may not: a link could lead to any file of this user.
/// `tensorboard`: the run writes event files. Throws InputError for a link, and for a file or
/// folder in the place of the other.
void validate_run_folder_files(const std::string& run_folder, bool tensorboard);

/// Renames records that are not regular files, such as pipes, to NAME.damaged with a warning:
/// exit.json, environment.json, metrics.jsonl and others that no start needs. Throws the errors of
/// io::rename_durably().
void rename_other_kinds(const std::string& run_folder, Log& log);

/// Returns whether the exit record of the previous start has the code 0 (done). A record that
/// cannot be read is renamed to exit.json.damaged with a warning.
bool ended_as_done(const std::string& run_folder, Log& log);

}  // namespace trireme::train
