// SPDX-License-Identifier: Apache-2.0
#include "input_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace trireme::fuzz {

InputFolder& InputFolder::of_process() {
  static InputFolder folder;
  return folder;
}

InputFolder::InputFolder() {
  const bool has_memory = std::filesystem::is_directory("/dev/shm");
  path_ = (has_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
          "/trireme_fuzz_XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot create " + path_);
}

InputFolder::~InputFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string InputFolder::write(const std::string& name, const std::string& bytes) const {
  const std::string path = *this / name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  if (!file) throw std::runtime_error("cannot write " + path);
  return path;
}

}  // namespace trireme::fuzz
