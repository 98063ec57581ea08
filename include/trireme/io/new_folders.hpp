// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace trireme::io {

/// Makes folders, and at its end removes those that it made and that are empty, unless keep() was
/// called: a command that fails leaves no folders that it made for nothing.
class NewFolders {
 public:
  NewFolders() = default;
  ~NewFolders() { remove_empty(); }
  NewFolders(NewFolders&&) = default;

  /// Makes the folder and those above it that are missing. Returns the error of the system; none if
  /// the folder exists.
  std::error_code create(const std::string& folder);
  /// Makes one folder and returns whether it did. Returns false without an error if it exists.
  bool create_one(const std::filesystem::path& folder, std::error_code& error);
  /// Removes the folders that are empty now, the innermost first. Ignores errors.
  void remove_empty() const;
  /// Keeps the folders: the command succeeds.
  void keep() { folders_.clear(); }

 private:
  std::vector<std::filesystem::path> folders_;  ///< the outermost first
};

}  // namespace trireme::io
