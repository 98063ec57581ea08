// `trireme verify`: checks every checksum of a file, or of all *.h5 files of a folder. Exit code 2
// if one is damaged.
#include <filesystem>
#include <memory>
#include <string>

#include "commands.hpp"
#include "stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/data/verify.hpp"

namespace trireme::app {
namespace {

/// Returns "" for an intact file, "no checksums", or the damage and its place. A file that cannot
/// be read counts as damaged, so the remaining files are still checked.
std::string verify_file(const std::string& path) {
  try {
    // Check the seal first: HDF5 then never opens a damaged file.
    const std::string seal = checkpoint::check_seal(path);
    if (!seal.empty() && seal != "no seal") return seal;
    return seal.empty() || kind_of(path) == StoredKind::checkpoint
               ? checkpoint::verify_checkpoint(path)
               : data::verify_shard(path);
  } catch (const InputError& error) {
    const std::string words = error.what();
    return words.starts_with(path + ": ") ? words.substr(path.size() + 2) : words;
  }
}

ExitCode verify_command(const std::string& path) {
  namespace fs = std::filesystem;
  validate(fs::exists(path), "{}: no such file or folder", path);
  std::vector<std::string> files{path};
  if (fs::is_directory(path)) {
    files = h5_files(fs::is_directory(path + "/checkpoints") ? path + "/checkpoints" : path);
    validate(!files.empty(),
             "{}: has no *.h5 files; name a dataset folder, a run folder or one file", path);
  }
  bool damaged = false;
  for (const std::string& file : files) {
    const std::string defect = verify_file(file);
    const bool intact = defect.empty() || defect == "no checksums";
    const std::string result = fmt::format(
        "{}: {}{}\n", file, intact ? "" : "damaged: ", defect.empty() ? "whole" : defect);
    fmt::print(intact ? stdout : stderr, "{}", escape_invalid_utf8(result));
    damaged = damaged || !intact;
  }
  return damaged ? ExitCode::wrong_input : ExitCode::done;
}

}  // namespace

void add_verify(CommandLine& line) {
  Command command = line.add("verify",
                             "Check every checksum of a checkpoint, a shard, a dataset or a run "
                             "folder; exit 2 names the place of the damage");
  const auto path = std::make_shared<std::string>();
  command.option("PATH", *path, "A file, a folder of shards, or a run folder (its checkpoints)")
      .required();
  command.footer("Example:\n  trireme verify runs/fashion/checkpoints/best.h5");
  command.set_single_rank_action([path] { return verify_command(*path); });
}

}  // namespace trireme::app
