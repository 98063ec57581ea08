#include "trireme/io/new_folders.hpp"

#include <system_error>

namespace trireme::io {

NewFolders::NewFolders(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
       !path.empty() && path != path.parent_path() && !std::filesystem::exists(path, error);
       path = path.parent_path())
    missing_.push_back(path);
}

NewFolders::~NewFolders() {
  std::error_code ignored;
  for (const std::filesystem::path& path : missing_)
    std::filesystem::remove(path, ignored);  // fails if it has files
}

}  // namespace trireme::io
