#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::io {

/// Notes which parts of a path do not exist, and removes those that are empty at its end: a command
/// that fails leaves no folders that it made for nothing.
class NewFolders {
 public:
  /// `folder` may be empty: nothing is noted.
  explicit NewFolders(const std::string& folder);
  ~NewFolders();
  NewFolders(NewFolders&&) = default;

 private:
  std::vector<std::filesystem::path> missing_;  ///< the innermost first
};

}  // namespace trireme::io
