#include "trireme/io/new_folders.hpp"

#include <system_error>

namespace trireme::io {

namespace fs = std::filesystem;

NewFolders::NewFolders(const std::string& folder) {
  std::error_code error;
  // A link to nothing exists: it is the user's.
  for (fs::path path = fs::path(folder).lexically_normal();
       !path.empty() && path != path.parent_path() && !fs::exists(fs::symlink_status(path, error));
       path = path.parent_path())
    missing_.push_back(path);
}

NewFolders::~NewFolders() {
  std::error_code ignored;
  for (const fs::path& path : missing_) fs::remove(path, ignored);  // fails if it has files
}

}  // namespace trireme::io
