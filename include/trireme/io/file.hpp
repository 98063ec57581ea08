#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::io {

/// An open file. Reads and writes name their position, so any number of threads may use one at once; short transfers and interruptions are
/// gone on with. Every message names the path.
class File {
 public:
  enum class Mode : std::uint8_t {
    read,
    create,  ///< for writing and reading; what was there is gone
    update   ///< for writing and reading; must be there
  };
  File() = default;
  /// Throws InputError where the path is wrong (missing, not permitted, too long; to read: a folder, a pipe or a device), Failure otherwise.
  File(const std::string& path, Mode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  std::int64_t size() const;
  /// Throws InputError where the file ends before, Failure where the disk fails.
  void read_at(std::int64_t offset, void* data, std::int64_t bytes) const;
  void write_at(std::int64_t offset, const void* data, std::int64_t bytes) const;
  /// Until it is on the disk.
  void sync() const;
  /// Closes now and throws Failure where a late write failed (network file systems say it here); the destructor is silent.
  void close();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A whole file as text. Throws InputError where it is missing or longer than `most_bytes`.
std::string read_text_file(const std::string& path, std::int64_t most_bytes = std::int64_t{64} << 20);

/// Replaces a file at once: written under a temporary name beside it, flushed to the disk, renamed, folder flushed. Throws
/// InputError where the path is wrong, Failure otherwise.
void replace_file(const std::string& path, std::string_view text);

/// Flushes an existing file's bytes to the disk.
void sync_file(const std::string& path);

/// Renames within a folder and flushes the folder, so that the new name survives a loss of power.
void rename_durably(const std::string& from, const std::string& to);

/// Flushes a folder's list of names.
void sync_folder(const std::string& folder);

/// Raises this process's limit on open files, as far as it may, so that `files` more can be open. A later open says where that did not do.
void allow_open_files(std::int64_t files);

/// Bytes that this user may still write where `path` (a file or folder that exists) lies.
std::int64_t free_bytes(const std::string& path);

}  // namespace trireme::io
