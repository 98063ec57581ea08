// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::app {

/// The kind of an HDF5 file, from its attribute `format`.
enum class StoredKind { checkpoint, shard, predictions };

/// Returns whether an HDF5 file is of this program, from its attributes `format` and `version` and
/// the names in it; also where `format` is damaged.
bool is_ours(const io::Hdf5Index& file);
/// Returns the kind of an HDF5 file. Throws InputError if it is none of them.
StoredKind kind_of(const io::Hdf5Index& file);

/// Returns the *.h5 names of a folder, sorted; not of its subfolders, and none that begins with a
/// dot. They may be no regular files.
/// Throws InputError if the folder cannot be listed.
std::vector<std::string> h5_files(const std::string& folder);

/// Returns the input that is the same file as `output`, also through links and hard links; empty if
/// there is none. No command may replace or remove such a file, whatever its options.
std::string input_of_same_file(const std::string& output, const std::vector<std::string>& inputs);

/// Checks an output path before a command starts its work, and returns the file that it replaces:
/// the path, or that to which it links. Throws InputError if its folder is missing or cannot be
/// written, it is one of `inputs` or a link to nothing, or it exists and `overwrite` is false.
std::string check_output(const std::string& output, const std::vector<std::string>& inputs,
                         bool overwrite);

/// Returns whether a *.h5 file of a folder has the name of a checkpoint of a run. The names count
/// even if the files are damaged.
bool has_checkpoint_names(const std::string& folder);

/// Returns whether the first readable *.h5 file of a folder is a checkpoint, whatever its name.
bool holds_checkpoint(const std::string& folder);

}  // namespace trireme::app
