// SPDX-License-Identifier: Apache-2.0
//
// Turns exceptions of the standard library into errors of the program. Called where exceptions end
// or are recorded: main(), the commands that use MPI, comm::together(), and train().

#include "trireme/base/error.hpp"

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <sys/resource.h>

#include "trireme/base/check.hpp"

namespace trireme {
namespace {

/// Returns a limit of this process as ulimit prints it, in units of `unit` bytes or processes.
std::string limit_text(int resource, rlim_t unit) {
  rlimit limit{};
  if (::getrlimit(static_cast<decltype(RLIMIT_NPROC)>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / unit);
}

/// Returns the number of threads of this process; 0 if it is unknown.
std::int64_t count_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 0 : std::distance(begin(tasks), end(tasks));
}

}  // namespace

void throw_input_error(fmt::string_view format, fmt::format_args args) {
  throw InputError(fmt::vformat(format, args));
}

void throw_failure(fmt::string_view format, fmt::format_args args) {
  throw Failure(fmt::vformat(format, args));
}

std::string thread_error_text(const std::string& reason) {
  return fmt::format(
      "a thread cannot be started: {}; this process has {} threads, and its limits are ulimit -u "
      "{} (threads of this user) and ulimit -v {} (KiB of addresses); raise them, or use fewer "
      "threads: OMP_NUM_THREADS, data.workers, fewer ranks a node",
      reason, count_threads(), limit_text(RLIMIT_NPROC, 1), limit_text(RLIMIT_AS, 1024));
}

bool is_path_error(int error) {
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == EISDIR ||
         error == ELOOP || error == ENAMETOOLONG || error == EPERM || error == EROFS ||
         error == ENXIO;
}

Error to_error(const std::exception& caught) {
  if (const auto* known = dynamic_cast<const Error*>(&caught)) return *known;
  const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&caught);
  const auto* system = dynamic_cast<const std::system_error*>(&caught);
  if (file == nullptr && system != nullptr &&
      system->code() == std::errc::resource_unavailable_try_again)
    return Failure(thread_error_text(caught.what()));
  // The text of the library names the operation too, which two paths, or none, need.
  if (file != nullptr && is_path_error(file->code().value()) && !file->path1().empty() &&
      file->path2().empty())
    return InputError(fmt::format("{}: {}", file->path1().string(), file->code().message()));
  return Failure(caught.what());
}

}  // namespace trireme
