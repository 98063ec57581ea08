// Turns exceptions of the standard library into errors of the program. Called where exceptions end
// or are recorded: main(), the commands that use MPI, comm::together(), and train().

#include "trireme/base/error.hpp"

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

namespace trireme {

bool is_path_error(int error) {
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == EISDIR ||
         error == ELOOP || error == ENAMETOOLONG || error == EROFS || error == ENXIO;
}

Error to_error(const std::exception& caught) {
  if (const auto* known = dynamic_cast<const Error*>(&caught)) return *known;
  const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&caught);
  // The text of the library names the operation too, which two paths, or none, need.
  if (file != nullptr && is_path_error(file->code().value()) && !file->path1().empty() &&
      file->path2().empty())
    return InputError(fmt::format("{}: {}", file->path1().string(), file->code().message()));
  return Failure(caught.what());
}

}  // namespace trireme
