// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shard_command.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/io/new_folders.hpp"

namespace trireme::io {
class FileLock;
}

namespace trireme::app {

/// Name of the list of images that were left out, in the folder of a dataset.
inline constexpr const char* skipped_file_name = "skipped.csv";

/// Checks that a dataset may be made in the folder, which need not exist. `option` names it in
/// messages. Throws InputError if it has *.h5 files that must not be replaced.
void check_target_folder(const std::string& option, const std::string& folder, bool overwrite);

/// Throws InputError if the folder holds another tokenizer.model than `model`, unless `overwrite`.
void check_tokenizer_in_folder(const std::string& option, const std::string& folder,
                               const std::string& model, bool overwrite);

/// The folder of a dataset that is being made. Files are written to a staging folder inside it, and
/// renamed into place once all of them are complete.
///
/// The name of the staging folder is a hash of everything that decides the bytes of the shards, so
/// the same command finds the sealed shards of a run that was killed. A lease in it belongs to one
/// process at a time. The destructor removes unpublished files, and folders that were made for
/// nothing; only a kill leaves them.
class ShardFolder {
 public:
  /// Creates the folder and its staging folder, acquires the lease, and removes the staging folders
  /// of other commands that were killed, each with a line in the log. Collective. `option` names
  /// the folder in messages.
  ///
  /// Throws InputError if the folder cannot be written, has *.h5 files without
  /// `command.overwrite`, has *.h5 files that are not shards, or another process makes shards in
  /// it.
  ShardFolder(const comm::Communicator& world, const ShardCommand& command,
              const std::string& option, const std::string& folder, Log& log);
  ~ShardFolder();
  ShardFolder(const ShardFolder&) = delete;

  const std::string& folder() const { return folder_; }
  /// Returns the staging folder. Only the shards, the tokenizer and the list of skipped
  /// images in it are published.
  const std::filesystem::path& staging() const { return staging_; }
  /// Renames all files into place, then removes old ones that were not replaced. Collective; call
  /// it after every rank has finished writing. Throws Failure if the lease is lost, InputError if
  /// *.h5 files have appeared in the folder.
  void publish();

 private:
  /// The first part of the public constructor: after it the destructor runs, also after an error.
  /// `lock` is empty before, and keeps the folder locked until the lease is acquired.
  ShardFolder(std::unique_ptr<io::FileLock> lock, const comm::Communicator& world,
              const ShardCommand& command, const std::string& option, const std::string& folder,
              Log& log);
  /// Checks the target folder under the lease. On rank 0.
  void check_again() const;

  const comm::Communicator& world_;
  std::string option_, folder_;
  bool overwrite_;
  io::NewFolders new_folders_;  ///< on rank 0
  std::filesystem::path staging_;
  checkpoint::Lease lease_;
  bool is_published_ = false;
};

/// Counts of the shards that a rank has in the staging folder.
struct WrittenShards {
  std::int64_t bytes = 0;
  std::int64_t kept = 0;  ///< sealed shards of a run that was killed

  /// Adds a shard that is in the staging folder with every byte as its seal says, and returns true.
  /// Returns false if the shard must be written. Reads every byte.
  bool keep(const std::filesystem::path& shard);
  /// Sums over the ranks and logs the number of kept shards of the `shards` of `folder`.
  /// Collective.
  void sum_over_ranks(const comm::Communicator& world, const std::string& folder,
                      std::int64_t shards, Log& log);
};

}  // namespace trireme::app
