#include "stored_file.hpp"

#include <algorithm>
#include <filesystem>

#include "trireme/base/check.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::app {

StoredKind kind_of(const std::string& path) {
  const io::Hdf5File file = io::Hdf5File::open(path);
  validate(file.has_attribute("/", "format"), "{}: has no attribute format; \"trireme-shard\" or \"trireme-checkpoint\" is meant", path);
  const std::string format = file.attribute_string("/", "format");
  if (format == "trireme-shard") return StoredKind::shard;
  validate(format == "trireme-checkpoint", "{}: format is \"{}\", neither \"trireme-shard\" nor \"trireme-checkpoint\"", path, format);
  return StoredKind::checkpoint;
}

std::vector<std::string> h5_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".h5") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_run_folder(const std::string& folder) {
  return std::filesystem::is_directory(folder + "/checkpoints") || std::filesystem::exists(folder + "/metrics.jsonl");
}

}  // namespace trireme::app
