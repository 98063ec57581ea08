#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::app {

/// The folder of a dataset that is being made. Files are written to a staging folder inside it, and
/// renamed into place once all of them are complete. The destructor removes unpublished files.
class ShardFolder {
 public:
  /// Creates the folder and its staging folder. Collective. `option` names the folder in messages.
  /// Throws InputError if the folder cannot be written, has *.h5 files and `overwrite` is false, or
  /// has *.h5 files that are not shards.
  ShardFolder(const comm::Communicator& world, const std::string& option, const std::string& folder,
              bool overwrite);
  ~ShardFolder();
  ShardFolder(const ShardFolder&) = delete;

  const std::string& folder() const { return folder_; }
  /// Returns the staging folder. Folders inside it are never published.
  const std::filesystem::path& staging() const { return staging_; }
  /// Renames all files into place, then removes old shards that were not replaced. Collective; call
  /// it after every rank has finished writing.
  void publish();

 private:
  const comm::Communicator& world_;
  std::string folder_;
  std::filesystem::path staging_;
};

}  // namespace trireme::app
