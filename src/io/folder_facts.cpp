// SPDX-License-Identifier: Apache-2.0
//
// Examines a folder for `trireme doctor`: the kind of file system, locks, an HDF5 file, the speed.
//
// All files are named .trireme-doctor-HOST-PID and are removed. The caller limits the time, since a
// file system may hang.

#include "trireme/io/folder_facts.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5.hpp"

namespace trireme::io {
namespace {

namespace fs = std::filesystem;

struct FileSystem {
  std::int64_t magic;
  const char* name;
};
// From <linux/magic.h>, and from the sources of the parallel file systems.
constexpr std::array<FileSystem, 24> file_systems{
    {{0xEF53, "ext4"},         {0x58465342, "xfs"},     {0x9123683E, "btrfs"},
     {0x2FC12FC1, "zfs"},      {0xF2F52010, "f2fs"},    {0x01021994, "tmpfs"},
     {0x858458F6, "ramfs"},    {0x794C7630, "overlay"}, {0x73717368, "squashfs"},
     {0x9660, "iso9660"},      {0x6969, "nfs"},         {0xFF534D42, "cifs"},
     {0xFE534D42, "smb2"},     {0x01021997, "9p"},      {0x65735546, "fuse"},
     {0x5346414F, "afs"},      {0x0BD00BD0, "lustre"},  {0x47504653, "gpfs"},
     {0x19830326, "beegfs"},   {0x00C36400, "ceph"},    {0xAAD7AAEA, "panfs"},
     {0x20030528, "orangefs"}, {0x01161970, "gfs2"},    {0x7461636F, "ocfs2"}}};

/// A file of a test, removed by the destructor.
class TestFile {
 public:
  TestFile(const std::string& folder, const std::string& purpose)
      : path_(fmt::format("{}/.trireme-doctor-{}-{}{}", folder, host_name(), ::getpid(), purpose)) {
  }
  ~TestFile() { ::unlink(path_.c_str()); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Runs `body` and returns the message of its error without `path`; empty if it throws none.
template <class Body>
std::string error_of(const std::string& path, Body&& body) {
  try {
    body();
    return "";
  } catch (const std::exception& caught) {
    const std::string message = caught.what();
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
  }
}

/// Tries both kinds of lock on a file that exists.
void try_locks(const std::string& path, FolderFacts& facts) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return;  // write_error says more
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) facts.lock_error = std::strerror(errno);
  ::flock(descriptor, LOCK_UN);
  struct flock range{};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_len = 1;
  if (::fcntl(descriptor, F_SETLK, &range) != 0) facts.range_lock_error = std::strerror(errno);
  ::close(descriptor);
}

/// Writes and reads a file in blocks. Random bytes, since some file systems compress.
void measure_speed(const std::string& path, FolderFacts& facts) {
  constexpr std::int64_t block_bytes = std::int64_t{4} << 20;
  std::vector<std::uint64_t> block(block_bytes / sizeof(std::uint64_t));
  std::uint64_t number = 1;
  for (std::uint64_t& word : block)
    word = number = number * 6364136223846793005U + 1442695040888963407U;
  const auto by_blocks = [&](auto&& transfer) {
    for (std::int64_t at = 0; at < facts.test_bytes; at += block_bytes)
      transfer(at, std::min(block_bytes, facts.test_bytes - at));
  };
  double begin = monotonic_seconds();
  {
    File file(path, File::Mode::create);
    by_blocks([&](std::int64_t at, std::int64_t bytes) { file.write_at(at, block.data(), bytes); });
    file.sync();
    file.close();
  }
  facts.write_seconds = monotonic_seconds() - begin;
  const File file(path, File::Mode::read);
  file.drop_from_page_cache();
  begin = monotonic_seconds();
  by_blocks([&](std::int64_t at, std::int64_t bytes) { file.read_at(at, block.data(), bytes); });
  facts.read_seconds = monotonic_seconds() - begin;
}

/// Writes everything that the facts need, in the order of dependence.
void write_files(FolderFacts& facts) {
  const TestFile test(facts.path, "");
  facts.write_error = error_of(test.path(), [&] {
    File file(test.path(), File::Mode::create);
    file.write_at(0, "doctor", 6);
    file.sync();
    file.close();
  });
  if (!facts.write_error.empty()) return;
  try_locks(test.path(), facts);
  const TestFile hdf5(facts.path, ".h5");
  facts.hdf5_error = error_of(hdf5.path(), [&] { Hdf5File::create(hdf5.path(), {}).close(); });
  if (facts.test_bytes == 0 || facts.free_bytes / 2 < facts.test_bytes) return;
  facts.write_error = error_of(test.path(), [&] { measure_speed(test.path(), facts); });
}

}  // namespace

FolderFacts examine_folder(const std::string& folder, std::int64_t test_bytes) {
  FolderFacts facts;
  std::error_code error;
  facts.path = fs::canonical(folder, error).string();
  struct statfs status{};
  facts.is_missing = is_path_error(error.value()) || (!error && !fs::is_directory(facts.path));
  if (error || facts.is_missing || ::statfs(facts.path.c_str(), &status) != 0) {
    facts.path = folder;
    facts.error = error              ? error.message()
                  : facts.is_missing ? "is not a folder"
                                     : std::strerror(errno);
    return facts;
  }
  facts.file_system = file_system_name(static_cast<std::int64_t>(status.f_type) & 0xFFFFFFFF);
  facts.is_in_memory = facts.file_system == "tmpfs" || facts.file_system == "ramfs";
  if (facts.file_system == "lustre") facts.stripes = lustre_stripes(facts.path);
  facts.test_bytes = test_bytes;
  facts.error = error_of(facts.path, [&] { facts.free_bytes = free_bytes(facts.path); });
  if (facts.error.empty()) write_files(facts);
  return facts;
}

std::string file_system_name(std::int64_t magic) {
  const auto known = std::find_if(file_systems.begin(), file_systems.end(),
                                  [&](const FileSystem& one) { return one.magic == magic; });
  return known != file_systems.end() ? known->name : fmt::format("{:#x}", magic);
}

std::optional<int> lustre_stripes(const std::string& folder) {
  std::string quoted = "'";
  for (const char letter : folder) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  const std::string text = run_command("lfs getstripe -d -c " + quoted + "'");
  char* end = nullptr;
  const long count = std::strtol(text.c_str(), &end, 10);
  return end != text.c_str() ? std::optional(static_cast<int>(count)) : std::nullopt;
}

std::string create_marker(const std::string& folder) {
  const std::string path =
      fmt::format("{}/.trireme-doctor-{}-{}.marker", folder, host_name(), ::getpid());
  return error_of(path, [&] { File(path, File::Mode::create).close(); }).empty() ? path : "";
}

bool appears(const std::string& path, double seconds) {
  const double end = monotonic_seconds() + seconds;
  std::error_code ignored;
  while (!fs::exists(path, ignored)) {
    if (monotonic_seconds() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace trireme::io
