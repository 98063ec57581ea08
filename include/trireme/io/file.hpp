// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::io {

/// Returns whether link() failed because the file system does not support hard links, or no more of
/// them, for its errno.
bool links_unsupported(int error);

/// Size and time of the last change of a file, to find out whether it is still the same.
struct FileStamp {
  std::int64_t bytes = -1, seconds = 0, nanoseconds = 0;
  bool operator==(const FileStamp&) const = default;
};

/// An open file. Reads and writes state their offset, so any number of threads may use one File at
/// once. Interrupted and short transfers are continued. Every error message names the path.
class File {
 public:
  enum class Mode : std::uint8_t {
    read,
    read_own,    ///< reads a file of a run folder; a link is refused too
    create,      ///< for writing and reading; truncates an existing file
    create_new,  ///< for writing and reading; the file must not exist
    update       ///< for writing and reading; the file must exist
  };
  File() = default;
  /// Opens the file. Throws InputError if the path is wrong: missing, not permitted, too long, a
  /// folder, pipe or device (the modes of reading), or a name that exists (mode `create_new`).
  /// Throws Failure for every other error.
  File(const std::string& path, Mode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  /// Returns the number of the open file, which stays owned by this.
  int descriptor() const { return descriptor_; }
  /// Returns the size in bytes.
  std::int64_t size() const { return stamp().bytes; }
  FileStamp stamp() const;
  /// Reads exactly `bytes` bytes. Throws InputError if the file ends earlier, Failure if the disk
  /// fails.
  void read_at(std::int64_t offset, void* data, std::int64_t bytes) const;
  /// Asks the system to read these bytes into the page cache soon. Does not wait; errors are
  /// ignored.
  void read_ahead(std::int64_t offset, std::int64_t bytes) const;
  /// Drops all bytes that are on the disk from the page cache, for measurements.
  void drop_from_page_cache() const;
  /// Writes exactly `bytes` bytes. Throws Failure.
  void write_at(std::int64_t offset, const void* data, std::int64_t bytes) const;
  /// Reserves `bytes` bytes in the file system and releases them, to detect quotas and limits that
  /// free_bytes() does not report. Truncates the file to 0 bytes. Throws Failure if the space is
  /// missing. Does nothing if the file system does not support reservation.
  void check_free_space(std::int64_t bytes) const;
  /// Waits until the data are on the disk (fsync). Throws Failure.
  void sync() const;
  /// Closes the file. Throws Failure if a delayed write failed; network file systems report it
  /// here. The destructor ignores such errors.
  void close();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Returns whether a file can be read and begins with these bytes. Follows links.
bool begins_with(const std::string& path, std::string_view bytes);

/// Returns the whole file as text. Throws InputError if the file is missing or longer than
/// `max_bytes`.
std::string read_text_file(const std::string& path,
                           std::int64_t max_bytes = std::int64_t{64} << 20);
/// The same for a file of a run folder: a link is refused too.
std::string read_own_text_file(const std::string& path, std::int64_t max_bytes);

/// Replaces a file atomically. A writer fills temporary(), and commit() renames it to path().
///
/// A reader that opens path() finds either the old file or the complete new one, even after a loss
/// of power. Any library may write the temporary file. Without commit() the destructor removes it.
class StagedFile {
 public:
  /// `suffix` is appended to `path`. Processes that may write at the same time need different
  /// suffixes. Removes an old temporary file of this name.
  explicit StagedFile(std::string path, const std::string& suffix = default_suffix);
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& temporary() const { return temporary_; }
  /// Flushes the temporary file to the disk, renames it, and flushes the folder. The file must be
  /// closed before. Throws InputError if the path is wrong, Failure otherwise.
  void commit();
  /// Leaves the temporary file where it is: it may be that of another process by now.
  void abandon() { keeps_ = true; }

  static constexpr const char* default_suffix = ".tmp";

 private:
  std::string path_, temporary_;
  bool keeps_ = false;  ///< The destructor removes nothing.
};

/// Returns a suffix of StagedFile that no other process uses, as ".tmp123-89abcdef". Host and
/// process number are not enough: containers may share both. A killed process leaves its temporary
/// file.
std::string unique_suffix();

/// Copies a file in blocks of 1 MiB; an existing `to` is overwritten. Checks the free space first.
/// Throws InputError if a path is wrong, Failure if the space is missing or the disk fails.
void copy_file(const std::string& from, const std::string& to);

/// Gives `to` the group and the permissions of `from`, where this user may set them and `from` is
/// there.
void copy_permissions(const std::string& from, const std::string& to);

/// Writes `text` and replaces the file atomically (StagedFile). The group and the permissions of a
/// file that exists are kept where this user may set them. Throws the errors of
/// StagedFile::commit().
void replace_file(const std::string& path, std::string_view text);

/// Waits until the data of an existing file are on the disk.
void sync_file(const std::string& path);

/// Renames within a folder and flushes the folder, so that the new name survives a loss of power.
/// Throws InputError if a path is wrong, Failure otherwise.
void rename_durably(const std::string& from, const std::string& to);

/// Returns `path` if nothing has this name, else `path`.2, `path`.3 and so on.
std::string free_name(const std::string& path);

/// Behind the name of a file that was set aside because it cannot be read.
inline constexpr const char* damaged_suffix = ".damaged";

/// Renames a file or folder to its name with `suffix`, or with a number behind it (free_name()).
/// Returns the new path. Throws the errors of rename_durably().
std::string rename_aside(const std::string& path, const std::string& suffix);

/// Waits until the names in a folder are on the disk. Throws Failure.
void sync_folder(const std::string& folder);

/// Raises this process's limit on open files, as far as permitted, so that `files` more files can
/// be open. Returns how many may be open, with some left for libraries: at most `files`, at
/// least 1.
std::int64_t raise_open_file_limit(std::int64_t files);

/// Returns the number of bytes that this user may still write on the file system of `path`, an
/// existing file or folder. Throws Failure.
std::int64_t free_bytes(const std::string& path);

}  // namespace trireme::io
