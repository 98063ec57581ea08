#include "trireme/base/open_file.hpp"

#include <sys/stat.h>

namespace trireme {

bool names_open_file(const std::string& path, int descriptor) {
  struct stat named{}, open{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

}  // namespace trireme
