// SPDX-License-Identifier: Apache-2.0
//
// Keeps the selected library algorithms in `<run>/algorithms.txt`, and in a file that runs share.
// The training loop updates them with each checkpoint; a start reads them before the first step.
#include "algorithm_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_lock.hpp"
#include "trireme/monitor/run_folder.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

// A run has hundreds of problems, one line each.
constexpr std::int64_t max_bytes = std::int64_t{16} << 20;
// Another job holds the lock for the time of a small file's read and write.
constexpr double lock_seconds = 5;

/// Returns the table in the text of a file. Throws the errors of `parse` with the path.
ops::AlgorithmTable table_in(const std::string& text, const std::string& path,
                             ops::AlgorithmTable (*parse)(std::string_view)) {
  try {
    return parse(text);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path, error.what()));
  }
}

/// Returns the table of a file that runs share; empty if it is missing or empty.
ops::AlgorithmTable read_shared(const std::string& path) {
  std::error_code error;
  return !fs::exists(path) || fs::file_size(path, error) == 0
             ? ops::AlgorithmTable()
             : table_in(io::read_text_file(path, max_bytes), path,
                        ops::AlgorithmTable::parse_undamaged);
}

/// Returns the path with its links resolved: a rename would replace a link and not its target.
std::string resolve(std::string path) {
  std::error_code error;
  constexpr int max_links = 40;  // of the system
  for (int i = 0; i < max_links && fs::is_symlink(path, error); ++i)
    path = (fs::path(path).parent_path() / fs::read_symlink(path, error)).string();
  const fs::path resolved = fs::weakly_canonical(path, error);
  return error ? path : resolved.string();
}

}  // namespace

std::string AlgorithmFile::shared_path_from_environment() {
  const char* const value = std::getenv(shared_variable);
  return value == nullptr ? "" : value;
}

AlgorithmFile::AlgorithmFile(const comm::Communicator& world, const std::string& run_folder,
                             const std::string& shared_path, ops::AlgorithmTable& known, Log& log)
    : world_(world),
      path_(monitor::RunFolder(run_folder) / io::run_names::algorithms),
      shared_path_(world.rank() == 0 && !shared_path.empty() ? resolve(shared_path) : ""),
      known_(known),
      log_(log) {
  known_.add_missing(read([&] {
    return fs::exists(path_) ? table_in(io::read_own_text_file(path_, max_bytes), path_,
                                        ops::AlgorithmTable::parse)
                             : ops::AlgorithmTable();
  }));
  // Algorithms of the shared file alone are new to algorithms.txt.
  last_known_ = known_;
  if (world_.rank() == 0) log_own_kernels(known_);
  const ops::AlgorithmTable shared =
      read([&] {
        return shared_path_.empty() ? ops::AlgorithmTable() : read_shared(shared_path_);
      }).without_own_kernels();
  known_.add_missing(shared);
  if (shared_path_.empty()) return;
  all_ = known_;
  shared_is_behind_ = shared != known_.without_own_kernels();
  log_.info("{} ({}): the algorithms of {} are known, those of {} are new to this run",
            printable(shared_path_), shared_variable,
            counted(static_cast<std::int64_t>(shared.size()), "problem", "problems"),
            known_.size() - last_known_.size());
}

/// Returns the result of rank 0's read_file() on every rank. Logs its error and returns an empty
/// table then. Collective.
ops::AlgorithmTable AlgorithmFile::read(const std::function<ops::AlgorithmTable()>& read_file) {
  ops::AlgorithmTable table;
  if (world_.rank() == 0) {
    try {
      table = read_file();
    } catch (const std::exception& error) {
      log_.warn("the fastest algorithms are searched again: {}", printable(error.what(), 1000));
    }
  }
  return ops::AlgorithmTable::parse(world_.broadcast(table.to_text(), 0));
}

void AlgorithmFile::log_own_kernels(const ops::AlgorithmTable& known) {
  for (const ops::AlgorithmTable::OwnKernel& own : known.own_kernels()) {
    if (logged_.insert(own.problem).second)
      log_.info("Trireme's own kernel is used: {} ({})", own.problem, own.reason);
  }
}

void AlgorithmFile::update() {
  // 1. Has any rank found a new one? Otherwise the shared file may still lack earlier ones.
  const bool has_new = known_ != last_known_;
  last_known_ = known_;
  if (world_.all_reduce(has_new ? 1 : 0, comm::Reduction::max) == 0) {
    if (shared_is_behind_ && --calls_until_retry_ < 0) add_to_shared();
    return;
  }
  // 2. Collect those of all ranks.
  ops::AlgorithmTable all;
  for (int rank = 0; rank < world_.size(); ++rank)
    all.add_missing(ops::AlgorithmTable::parse(world_.broadcast(known_.to_text(), rank)));
  if (world_.rank() != 0) return;
  log_own_kernels(all);
  all_ = std::move(all);
  // 3. Write both files.
  try {
    io::replace_file(path_, all_.to_text());
  } catch (const std::exception& error) {
    log_.warn("{} was not written, the next start searches the fastest algorithms again: {}",
              io::run_names::algorithms, error.what());
  }
  if (!shared_path_.empty()) add_to_shared();
}

/// Adds the algorithms that the shared file lacks. Other jobs may do the same at the same time.
void AlgorithmFile::add_to_shared() {
  shared_is_behind_ = true;
  constexpr int max_calls = 64;
  calls_until_retry_ = calls_between_retries_ - 1;
  calls_between_retries_ = std::min(2 * calls_between_retries_, max_calls);
  try {
    validate(!fs::exists(shared_path_) || fs::is_regular_file(shared_path_),
             "{}: must be a file, or a name in an existing folder", shared_path_);
    const io::FileLock lock(shared_path_ + ".lock", lock_seconds);
    // Another text, or a file that cannot be read, is not replaced: it may be dear to somebody.
    ops::AlgorithmTable table = read_shared(shared_path_);
    const std::size_t size = table.size();
    table.add_missing(all_.without_own_kernels());
    if (table.size() > size) {
      io::replace_file(shared_path_, table.to_text());
      log_.info("{} ({}): the algorithms of {} were added{}", printable(shared_path_),
                shared_variable,
                counted(static_cast<std::int64_t>(table.size() - size), "problem", "problems"),
                lock.held() ? ""
                            : "; its file system has no locks (flock), so another job may "
                              "overwrite them");
    }
    shared_is_behind_ = false;
    calls_between_retries_ = 1;
  } catch (const std::exception& error) {
    if (!std::exchange(logged_failure_, true))
      log_.warn("{} ({}) was not written, other runs search these algorithms again: {}",
                printable(shared_path_), shared_variable, printable(error.what(), 1000));
  }
}

}  // namespace trireme::train
