// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::fuzz {

/// A folder in memory for the files of one process. Removed when the process ends regularly.
class InputFolder {
 public:
  /// Returns the folder of this process.
  static InputFolder& of_process();

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file, if it exists again, and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;

 private:
  InputFolder();
  ~InputFolder();
  std::string path_;
};

}  // namespace trireme::fuzz
