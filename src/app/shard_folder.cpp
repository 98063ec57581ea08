// ShardFolder: makes a dataset in a staging folder and publishes it file by file with renames.
#include "shard_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <stdlib.h>

#include "stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

/// Returns the *.h5 files of a folder; empty if it cannot be read.
std::vector<fs::path> shards_in(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".h5") found.push_back(entry->path());
  }
  return found;
}

/// Returns whether a file is a Trireme shard.
bool is_shard(const fs::path& path) {
  try {
    return kind_of(path.string()) == StoredKind::shard;
  } catch (const InputError&) {
    return false;
  }
}

/// Creates the folder and a staging folder in it, and returns the path of the latter. Throws
/// InputError if *.h5 files must not be replaced.
std::string prepare(const std::string& option, const std::string& folder, bool overwrite) {
  std::error_code error;
  fs::create_directories(folder, error);
  validate(fs::is_directory(folder), "{} {}: the folder cannot be created: {}", option, folder,
           error.message());
  const std::vector<fs::path> existing = shards_in(folder);
  for (const fs::path& file : existing) {
    validate(is_shard(file),
             "{} {}: {} exists and is not a shard, so it is not replaced; name another folder",
             option, folder, file.filename().string());
  }
  validate(existing.empty() || overwrite,
           "{} {}: has {} *.h5 files already; remove them, name another folder, or use --overwrite",
           option, folder, existing.size());
  std::string staging = folder + "/.making-XXXXXX";
  const bool made = ::mkdtemp(staging.data()) != nullptr;
  const int reason = errno;
  const bool wrong_path = !made && (reason == EACCES || reason == EROFS || reason == ENAMETOOLONG);
  validate(!wrong_path, "{} {}: cannot be written in: {}", option, folder, std::strerror(reason));
  ensure(made, "{}: cannot be made: {}", staging, std::strerror(reason));
  return staging;
}

}  // namespace

ShardFolder::ShardFolder(const comm::Communicator& world, const std::string& option,
                         const std::string& folder, bool overwrite)
    : world_(world), folder_(folder) {
  std::string staging;
  comm::together(world, [&] {
    if (world.rank() == 0) staging = prepare(option, folder, overwrite);
  });
  staging_ = world.broadcast(staging, 0);
}

ShardFolder::~ShardFolder() {
  std::error_code ignored;
  if (world_.rank() == 0) fs::remove_all(staging_, ignored);
}

void ShardFolder::publish() {
  comm::together(world_, [&] {
    if (world_.rank() != 0) return;
    // Rename each new file into place, then remove old shards that no new file has replaced.
    std::vector<fs::path> old = shards_in(folder_), made;
    for (const fs::directory_entry& entry : fs::directory_iterator(staging_))
      if (entry.is_regular_file()) made.push_back(entry.path());
    std::sort(made.begin(), made.end());
    for (const fs::path& file : made) {
      const fs::path place = fs::path(folder_) / file.filename();
      fs::rename(file, place);
      std::erase_if(old,
                    [&](const fs::path& other) { return other.filename() == place.filename(); });
    }
    for (const fs::path& file : old)
      if (is_shard(file)) fs::remove(file);
    fs::remove_all(staging_);
    io::sync_folder(folder_);
  });
}

}  // namespace trireme::app
