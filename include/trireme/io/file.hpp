#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::io {

/// Whether another path would do (errno of a call that names one): the user's to mend, where
/// everything else is the machine's.
bool is_path_error(int error);

/// Whether link() failed since the file system has no second names, or no more of them (its errno).
bool links_unsupported(int error);

/// An open file. Reads and writes name their position, so any number of threads may use one at
/// once; short transfers and interruptions are gone on with. Every message names the path.
class File {
 public:
  enum class Mode : std::uint8_t {
    read,
    create,  ///< for writing and reading; what was there is gone
    update   ///< for writing and reading; must be there
  };
  File() = default;
  /// Throws InputError where the path is wrong (missing, not permitted, too long; to read: a
  /// folder, a pipe or a device), Failure otherwise.
  File(const std::string& path, Mode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  std::int64_t size() const;
  /// Throws InputError where the file ends before, Failure where the disk fails.
  void read_at(std::int64_t offset, void* data, std::int64_t bytes) const;
  void write_at(std::int64_t offset, const void* data, std::int64_t bytes) const;
  /// Takes room for so many bytes from the file system and gives it back: finds quotas and limits
  /// that free_bytes does not see. Throws Failure where there is none; silent where the file system
  /// cannot tell.
  void check_free_space(std::int64_t bytes) const;
  /// Until it is on the disk.
  void sync() const;
  /// Closes now and throws Failure where a late write failed (network file systems say it here);
  /// the destructor is silent.
  void close();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A whole file as text. Throws InputError where it is missing or longer than `most_bytes`.
std::string read_text_file(const std::string& path,
                           std::int64_t max_bytes = std::int64_t{64} << 20);

/// A file that is made under a temporary name beside its own and takes that at once: whoever opens
/// `path` finds the old file or the whole new one, also after a loss of power. Whatever library
/// writes it writes to temporary(). Not committed, it is removed by the destructor.
class StagedFile {
 public:
  /// `suffix` of the temporary name; one that several processes do not share where they may write
  /// at once. What was left under it is removed.
  explicit StagedFile(std::string path, const std::string& suffix = default_suffix);
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& temporary() const { return temporary_; }
  /// The temporary file, closed before, is flushed to the disk and renamed, and the folder flushed.
  /// Throws InputError where the path is wrong, Failure otherwise.
  void commit();

  static constexpr const char* default_suffix = ".tmp";

 private:
  std::string path_, temporary_;
  bool committed_ = false;
};

/// All bytes of a file in another one, which is made. Throws InputError where a path is wrong,
/// Failure where there is no room (asked for before) or the disk fails.
void copy_file(const std::string& from, const std::string& to);

/// Replaces a file by this text at once (StagedFile). Throws as commit() does.
void replace_file(const std::string& path, std::string_view text);

/// Flushes an existing file's bytes to the disk.
void sync_file(const std::string& path);

/// Renames within a folder and flushes the folder, so that the new name survives a loss of power.
void rename_durably(const std::string& from, const std::string& to);

/// Flushes a folder's list of names.
void sync_folder(const std::string& folder);

/// Raises this process's limit on open files, as far as it may, so that `files` more can be open. A
/// later open says where that did not do.
void raise_open_file_limit(std::int64_t files);

/// Bytes that this user may still write where `path` (a file or folder that exists) lies.
std::int64_t free_bytes(const std::string& path);

}  // namespace trireme::io
