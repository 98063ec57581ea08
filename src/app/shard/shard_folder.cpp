// SPDX-License-Identifier: Apache-2.0
//
// ShardFolder: makes a dataset in a staging folder and publishes it file by file with renames.
//
//   first `shard`, killed                  the same command again
//   .making-HASH/run.lock  (lease)         finds .making-HASH, takes its lease over
//   .making-HASH/shard_00000.h5 (sealed)   keeps it: the seal matches every byte
//   .making-HASH/shard_00001.h5.tmp123     writes it again
//   killed                                 publishes all shards, removes .making-HASH
//
// Another command has another hash. It removes .making-HASH if its lease can be taken over, and is
// refused if the lease is held.
//
// If several commands start at once, one wins: each locks the folder until it has a lease, and
// looks for other leases before. File systems without locks may refuse all of them. The folder is
// checked again under the lease, since another command may have filled it meanwhile.
#include "shard_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <vector>

#include <sys/stat.h>

#include "app/files/stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_lock.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/run_names.hpp"
#include "trireme/io/seal.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

/// Returns the *.h5 files of a folder; empty if it cannot be read.
std::vector<fs::path> shards_in(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (data::is_shard_name(entry->path())) found.push_back(entry->path());
  }
  return found;
}

/// Returns whether a file is a Trireme shard.
bool is_shard(const fs::path& path) {
  try {
    return kind_of(io::index_hdf5(path.string())) == StoredKind::shard;
  } catch (const InputError&) {
    return false;
  }
}

/// Adds a text and its end to a hash.
void add(io::Xxh3& hash, const std::string& text) { hash.update(text.c_str(), text.size() + 1); }

/// Adds the absolute path of a file, its size and its time of change to a hash.
void add_file(io::Xxh3& hash, const std::string& path) {
  std::error_code ignored;
  add(hash, fs::weakly_canonical(path, ignored).string());
  struct stat status{};
  // A missing file is refused by its reader.
  if (::stat(path.c_str(), &status) != 0) return;
  add(hash, fmt::format("{} {} {}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
}

/// Returns the files that a command reads, without the tokenizer and the file of classes.
std::vector<std::string> source_files(const ShardCommand& command) {
  std::vector<std::string> files = command.sources;
  if (!command.labels.empty()) files.push_back(command.labels);
  files.insert(files.end(), command.further_files.begin(), command.further_files.end());
  return files;
}

/// Throws InputError if publishing would replace or remove a file that the command reads. Its
/// tokenizer may be that of the folder: the copy that replaces it has the same bytes.
void check_sources_are_kept(const ShardCommand& command, const std::string& option,
                            const std::string& folder) {
  std::vector<std::string> inputs = source_files(command);
  inputs.insert(inputs.end(), command.classes.begin(), command.classes.end());  // may be a file
  std::vector<fs::path> outputs = shards_in(folder);
  for (const char* name : {data::tokenizer_file_name, skipped_file_name})
    outputs.push_back(fs::path(folder) / name);
  for (const fs::path& output : outputs) {
    const std::string input = input_of_same_file(output.string(), inputs);
    validate(input.empty(), "{} {}: {} would replace the input file {}; name another folder",
             option, folder, output.filename().string(), input);
  }
}

/// Returns the path of the staging folder. Its name is a hash of what decides the bytes of the
/// shards: version of the program, options, and the sources. The number of ranks is not part of it.
std::string staging_path(const ShardCommand& command, const std::string& option,
                         const std::string& folder) {
  io::Xxh3 hash;
  add(hash, train::software_versions().program);
  add(hash, option);
  add(hash, command.format);
  add(hash, fmt::format("{} {} {} {} {} {} {}", command.shards, command.train_tokenizer,
                        command.vocabulary, command.hold_out, command.shuffle,
                        command.source_identity, command.quality));
  for (const std::string& text :
       {command.range, command.type, command.tokenizer, command.resize, command.encode,
        command.on_error, command.labels, command.image, command.field, command.end_of_text})
    add(hash, text);
  add(hash, std::to_string(command.classes.size()));
  for (const std::string& name : command.classes) add(hash, name);
  for (const std::string& source : command.sources) add_file(hash, source);
  for (const std::string& file : {command.tokenizer, command.labels})
    if (!file.empty()) add_file(hash, file);
  for (const std::string& file : command.further_files) add_file(hash, file);
  if (command.classes.size() == 1) add_file(hash, command.classes[0]);  // may be a file
  return fmt::format("{}/{}{:016x}", folder, data::staging_prefix, hash.digest());
}

checkpoint::Lease lease_of(const comm::Communicator& world, const std::string& staging, Log& log) {
  return {world, staging, log, {}, {"dataset folder", "name another folder"}};
}

/// Removes a staging folder whose lease this process holds, the lease at last: no other process
/// uses the folder before it is empty. Ignores errors.
void remove_staging(const fs::path& staging, checkpoint::Lease& lease) {
  std::error_code error;
  for (fs::directory_iterator entry(staging, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->path().filename().string().starts_with(io::run_names::lease))
      fs::remove_all(entry->path(), ignored);
  }
  try {
    lease.release();
  } catch (const std::exception&) {
    // The next `shard` finds that this process has exited.
  }
  fs::remove(staging, error);
}

/// Removes the staging folders of other commands that were killed. Throws InputError if one of them
/// is in use.
void remove_others(const std::string& folder, const fs::path& own, Log& log) {
  std::vector<fs::path> others;
  std::error_code error;  // the folder may have been removed meanwhile
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(data::staging_prefix) && name != own.filename() &&
        entry->is_directory(ignored))
      others.push_back(entry->path());
  }
  for (const fs::path& path : others) {
    try {
      checkpoint::Lease lease = lease_of(comm::Communicator(), path.string(), log);
      remove_staging(path, lease);
    } catch (const Error&) {
      std::error_code ignored;
      if (fs::exists(path, ignored)) throw;
      continue;  // its command has ended
    }
    log.info("{}: removed; another `shard` command was killed and left it", path.string());
  }
}

/// Creates the staging folder, which may exist. Returns false if the folder around it is missing:
/// another command that failed has removed the folder that it made. Throws InputError or Failure.
bool create_staging(const std::string& option, const std::string& folder,
                    const std::string& staging) {
  const bool made = ::mkdir(staging.c_str(), 0777) == 0 || errno == EEXIST;
  const int reason = errno;
  if (!made && reason == ENOENT) return false;
  validate_path(made ? 0 : reason, "{} {}: cannot be written in: {}", option, folder,
                std::strerror(reason));
  return true;
}

/// Creates the folder and the staging folder in it; both may exist. Returns the lock of the folder.
/// Throws InputError if another command makes shards in the folder.
std::unique_ptr<io::FileLock> create_folders(const std::string& option, const std::string& folder,
                                             const std::string& staging,
                                             io::NewFolders& new_folders, Log& log) {
  constexpr int max_attempts = 100;
  constexpr double max_wait_seconds = 30;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    const std::error_code error = new_folders.create(folder);
    validate_path(error.value(), "{} {}: the folder cannot be created: {}", option, folder,
                  error.message());
    // Without it the leases alone are safe, but may refuse both of two commands.
    std::unique_ptr<io::FileLock> lock = io::try_to_lock_folder(folder, max_wait_seconds);
    std::error_code ignored;
    if (!fs::exists(folder, ignored)) continue;
    remove_others(folder, staging, log);
    if (create_staging(option, folder, staging)) return lock;
  }
  throw Failure(fmt::format("{} {}: another command keeps removing the folder", option, folder));
}

/// Acquires the lease. Creates the staging folder again if another process, which made the same
/// shards, has ended and removed it. After an error removes the staging folder, if it is empty.
/// Collective.
checkpoint::Lease acquire(const comm::Communicator& world, const std::string& option,
                          const std::string& folder, const std::string& staging, Log& log) {
  constexpr int max_attempts = 10;
  for (int attempt = 1;; ++attempt) {
    std::exception_ptr failed;
    bool is_common = world.size() == 1;
    try {
      return lease_of(world, staging, log);
    } catch (const Error& error) {
      failed = std::current_exception();
      is_common = is_common || error.thrown_on_all_ranks();
    }
    std::error_code ignored;
    std::int64_t is_gone = world.rank() == 0 && !fs::exists(staging, ignored) ? 1 : 0;
    if (is_common) is_gone = world.all_reduce(is_gone, comm::Reduction::sum);
    if (!is_common || is_gone == 0 || attempt == max_attempts) {
      if (world.rank() == 0) fs::remove(staging, ignored);
      std::rethrow_exception(failed);
    }
    comm::together(world, [&] {
      if (world.rank() != 0) return;
      ensure(create_staging(option, folder, staging),
             "{} {}: another command has removed the folder", option, folder);
    });
  }
}

/// Checks and creates the folders, locks the outer one, and returns the path of the staging folder.
/// Collective.
std::string prepare(const comm::Communicator& world, const ShardCommand& command,
                    const std::string& option, const std::string& folder,
                    io::NewFolders& new_folders, std::unique_ptr<io::FileLock>& lock, Log& log) {
  std::string staging;
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    check_target_folder(option, folder, command.overwrite);
    check_sources_are_kept(command, option, folder);
    staging = staging_path(command, option, folder);
    const std::string unfinished = data::unfinished_staging(folder);
    validate(unfinished.empty() || command.overwrite || unfinished == staging,
             "{} {}: another `shard` command moves its shards into the folder now, or was killed "
             "while it did; wait for it, start that command again, or use --overwrite",
             option, folder);
    lock = create_folders(option, folder, staging, new_folders, log);
  });
  return world.broadcast(staging, 0);
}

}  // namespace

void check_target_folder(const std::string& option, const std::string& folder, bool overwrite) {
  reject_address(fmt::format("{} {}", option, folder), folder);
  const std::vector<fs::path> existing = shards_in(folder);
  for (const fs::path& file : existing) {
    validate(is_shard(file),
             "{} {}: {} exists and is not a shard, so it is not replaced; name another folder",
             option, folder, file.filename().string());
  }
  validate(existing.empty() || overwrite || !data::unfinished_staging(folder).empty(),
           "{} {}: has {} *.h5 files already; remove them, name another folder, or use --overwrite",
           option, folder, existing.size());
}

void check_tokenizer_in_folder(const std::string& option, const std::string& folder,
                               const std::string& model, bool overwrite) {
  const std::string path = (fs::path(folder) / data::tokenizer_file_name).string();
  // A killed command has moved its own tokenizer here.
  if (overwrite || !fs::exists(path) || !data::unfinished_staging(folder).empty()) return;
  const bool same = fs::is_regular_file(path) && fs::file_size(path) == model.size() &&
                    io::read_text_file(path, static_cast<std::int64_t>(model.size())) == model;
  validate(same,
           "{} {}: holds another {}, which is not replaced; name another folder, or use "
           "--overwrite",
           option, folder, data::tokenizer_file_name);
}

ShardFolder::ShardFolder(std::unique_ptr<io::FileLock> lock, const comm::Communicator& world,
                         const ShardCommand& command, const std::string& option,
                         const std::string& folder, Log& log)
    : world_(world),
      option_(option),
      folder_(folder),
      overwrite_(command.overwrite),
      staging_(prepare(world, command, option, folder, new_folders_, lock, log)),
      lease_(acquire(world, option, folder, staging_.string(), log)) {}

ShardFolder::ShardFolder(const comm::Communicator& world, const ShardCommand& command,
                         const std::string& option, const std::string& folder, Log& log)
    : ShardFolder(nullptr, world, command, option, folder, log) {
  comm::together(world_, [&] {
    if (world_.rank() != 0) return;
    remove_others(folder_, staging_, log);
    check_again();
  });
}

ShardFolder::~ShardFolder() {
  // Another process that has taken the lease over makes its shards in the same folder.
  if (world_.rank() == 0 && !is_published_ && lease_.confirm()) remove_staging(staging_, lease_);
}

void ShardFolder::check_again() const {
  // With --overwrite the check opens every shard, and the files may be replaced anyway.
  if (!overwrite_) check_target_folder(option_, folder_, false);
}

void ShardFolder::publish() {
  comm::together(world_, [&] {
    if (world_.rank() != 0) return;
    lease_.check();
    check_again();
    // Rename each new file into place, then remove old shards that no new file has replaced. Until
    // then nobody reads the folder; after a kill the same command makes what is missing.
    io::replace_file((staging_ / data::publishing_name).string(), "");
    std::vector<fs::path> old = shards_in(folder_), made = shards_in(staging_.string());
    const bool replaces = !old.empty();
    const fs::path tokenizer = staging_ / data::tokenizer_file_name,
                   skipped = staging_ / skipped_file_name;
    // A tokenizer of the replaced shards would pass for that of tokens which have none.
    const bool is_stale = replaces && !fs::exists(tokenizer);
    for (const fs::path& beside : {tokenizer, skipped})
      if (fs::exists(beside)) made.push_back(beside);
    std::sort(made.begin(), made.end());
    for (const fs::path& file : made) {
      const fs::path place = fs::path(folder_) / file.filename();
      fs::rename(file, place);
      std::erase_if(old,
                    [&](const fs::path& other) { return other.filename() == place.filename(); });
    }
    for (const fs::path& file : old)
      if (is_shard(file)) fs::remove(file);
    if (is_stale) fs::remove(fs::path(folder_) / data::tokenizer_file_name);
    is_published_ = true;
    remove_staging(staging_, lease_);
    new_folders_.keep();
    io::sync_folder(folder_);
  });
}

bool WrittenShards::keep(const fs::path& shard) {
  if (!fs::is_regular_file(shard) || !io::check_seal(shard.string()).empty()) return false;
  bytes += static_cast<std::int64_t>(fs::file_size(shard));
  ++kept;
  return true;
}

void WrittenShards::sum_over_ranks(const comm::Communicator& world, const std::string& folder,
                                   std::int64_t shards, Log& log) {
  bytes = world.all_reduce(bytes, comm::Reduction::sum);
  kept = world.all_reduce(kept, comm::Reduction::sum);
  if (kept > 0)
    log.info("{}: {} of {} shards kept from the same command, which was killed", folder, kept,
             shards);
}

}  // namespace trireme::app
