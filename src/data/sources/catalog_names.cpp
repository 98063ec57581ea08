// SPDX-License-Identifier: Apache-2.0
#include "catalog_names.hpp"

#include <cerrno>
#include <cstring>

#include <sys/stat.h>

#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"

namespace trireme::data {

std::string extension_of(std::string_view path) {
  const std::string_view file = path.substr(path.rfind('/') + 1);
  const std::size_t dot = file.rfind('.');
  if (dot == std::string_view::npos) return "";
  std::string extension(file.substr(dot + 1));
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

bool is_image_name(std::string_view path) {
  const std::string extension = extension_of(path);
  return extension == "jpg" || extension == "jpeg" || extension == "png";
}

std::string_view stem_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot != std::string_view::npos && dot > path.rfind('/') + 1 ? path.substr(0, dot) : path;
}

std::string_view first_stem_of(std::string_view path) {
  return path.substr(0, path.find('.', path.rfind('/') + 1));
}

std::int64_t FileIdentity::add(const std::string& path) {
  struct stat status{};
  const int error = ::stat(path.c_str(), &status) == 0 ? 0 : errno;
  validate_path(error, "{}: {}", path, std::strerror(error));
  hash_.update(path.c_str(), path.size() + 1);
  for (const std::int64_t number :
       {static_cast<std::int64_t>(status.st_size), static_cast<std::int64_t>(status.st_mtim.tv_sec),
        static_cast<std::int64_t>(status.st_mtim.tv_nsec)})
    hash_.update(&number, sizeof number);
  return status.st_size;
}

}  // namespace trireme::data
