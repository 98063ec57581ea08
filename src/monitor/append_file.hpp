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
    go_on,  ///< made where it is missing
    fresh   ///< may not be there
  };
  /// Null where it is there and may not be.
  static std::unique_ptr<AppendFile> open(const std::string& path, Mode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Cuts what stands behind the last newline.
  void cut_torn_line();
  /// With one write (more only where the system takes a part).
  void append(std::string_view bytes);

 private:
  AppendFile(const std::string& path, int descriptor) : path_(path), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

}  // namespace trireme::monitor
