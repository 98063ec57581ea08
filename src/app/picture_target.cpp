// The files that pictures may be written to. An argument in the wrong place must not cost a deck or
// a shard, so only files that do not exist, and pictures, are replaced.
#include "picture_target.hpp"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "trireme/base/check.hpp"

namespace trireme::app {

void validate_picture_target(const char* option, const std::string& path, PictureFormat format) {
  namespace fs = std::filesystem;
  const bool png = format == PictureFormat::png;
  const std::string signature = png ? "\x89PNG\r\n\x1a\n" : "<svg ";
  validate(!path.empty(), "{0} needs the name of a file, as in {0} {1}", option,
           png ? "sheet.png" : "plot.svg");
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (!fs::exists(status)) {
    validate_output_folder(option, path);
    return;
  }
  std::string start(signature.size(), '\0');
  const bool is_picture = fs::is_regular_file(status) &&
                          std::ifstream(path, std::ios::binary)
                              .read(start.data(), static_cast<std::streamsize>(start.size())) &&
                          start == signature;
  validate(is_picture, "{} {}: exists and is no {} file, so it is not replaced; name another file",
           option, path, png ? "PNG" : "SVG");
}

void validate_output_folder(const char* option, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty() || path == "-") return;
  std::error_code ignored;
  const fs::path folder = fs::absolute(path, ignored).parent_path();
  validate(fs::is_directory(folder, ignored),
           "{} {}: there is no folder {}; make it, or name a file in another one", option, path,
           folder.string());
  validate(fs::path(path).has_filename() && !fs::is_directory(path, ignored),
           "{} {}: is a folder; name a file in it", option, path);
}

}  // namespace trireme::app
