// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/new_folders.hpp"

#include <unistd.h>

namespace trireme::io {

namespace fs = std::filesystem;

std::error_code NewFolders::create(const std::string& folder) {
  std::error_code error;
  fs::path path;
  for (const fs::path& part : fs::path(folder)) {
    path /= part;
    create_one(path, error);
    if (error) return error;
  }
  return error;
}

bool NewFolders::create_one(const fs::path& folder, std::error_code& error) {
  // First, since some file systems refuse to make a folder that exists with another error.
  if (fs::is_directory(folder, error)) return false;
  const bool made = fs::create_directory(folder, error);
  if (made) folders_.push_back(folder);
  if (error == std::errc::file_exists) error = std::make_error_code(std::errc::not_a_directory);
  return made;
}

void NewFolders::remove_empty() const {
  // Not fs::remove(), which also removes files and links of these names.
  for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder)
    ::rmdir(folder->c_str());
}

}  // namespace trireme::io
