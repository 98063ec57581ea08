#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::app {

/// A dataset's folder while it is made: files are written into a folder below it that no other run
/// shares, and appear in their places once all of them are whole. What is not published is removed.
class ShardFolder {
 public:
  /// Collective. Makes the folder; `option` names it in messages. Throws InputError where it cannot
  /// be written in, holds *.h5 files and `overwrite` is not given, or holds some that are no
  /// shards.
  ShardFolder(const comm::Communicator& world, const std::string& option, const std::string& folder,
              bool overwrite);
  ~ShardFolder();
  ShardFolder(const ShardFolder&) = delete;

  const std::string& folder() const { return folder_; }
  /// Where files are made. Folders below it are for this run alone: they are not published.
  const std::filesystem::path& staging() const { return staging_; }
  /// Collective, once every rank is done. The files go into the places of old ones; old shards that
  /// are left over go last.
  void publish();

 private:
  const comm::Communicator& world_;
  std::string folder_;
  std::filesystem::path staging_;
};

}  // namespace trireme::app
