#pragma once

#include <string>
#include <vector>

namespace trireme::app {

enum class StoredKind { checkpoint, shard };

/// What an HDF5 file says it is. Throws InputError where it is neither, or cannot be read.
StoredKind kind_of(const std::string& path);

/// The *.h5 files of a folder, sorted by name (not of the folders below it).
std::vector<std::string> h5_files(const std::string& folder);

/// Checks before any work that a command may write a file: its folder is there, it is none of the
/// `inputs` (which would be destroyed), and nothing is replaced unasked. Throws InputError.
void check_output(const std::string& output, const std::vector<std::string>& inputs,
                  bool overwrite);

/// Whether a folder holds checkpoints: by the name of its first file, or what that says of itself
/// (a damaged one says nothing, the next one counts).
bool holds_checkpoints(const std::string& folder);

/// Whether a folder is that of a run.
bool is_run_folder(const std::string& folder);

}  // namespace trireme::app
