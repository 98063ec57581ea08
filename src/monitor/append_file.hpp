#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::monitor {

/// A file that only grows. Messages name its path; all throw Failure.
class AppendFile {
 public:
  enum class Mode : std::uint8_t {
    append,     ///< made where it is missing
    create_new  ///< may not be there
  };
  /// Null where it is there and may not be.
  static std::unique_ptr<AppendFile> open(const std::string& path, Mode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Cuts what stands behind the last newline.
  void remove_incomplete_line();
  /// With one write (more only where the system takes a part). What the disk does not take, since
  /// it is full or fails, is kept and goes first the next time. Throws where that is more than 4
  /// MiB.
  void append(std::string_view bytes);
  /// Why bytes are kept back; empty where all have arrived.
  const std::string& write_error() const { return write_error_; }

 private:
  AppendFile(const std::string& path, int descriptor) : path_(path), descriptor_(descriptor) {}
  /// How many of the bytes the system took; where not all, `trouble_` says why.
  std::size_t write_some(std::string_view bytes);
  std::string path_, pending_, write_error_;
  int descriptor_;
};

}  // namespace trireme::monitor
