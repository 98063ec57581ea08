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
#include "trireme/io/seal.hpp"

namespace trireme::app {
namespace {

/// The result of the checks of one file: the text that `verify` prints, and whether the file is
/// damaged.
struct Verdict {
  std::string text;
  bool damaged = false;
};

/// Returns the verdict for a file. Its result is "" for an intact file, "no seal", "no checksums",
/// or the damage and its place.
Verdict verdict_of(const std::string& result) {
  if (result.empty()) return {"whole"};
  if (result == "no seal")
    return {
        "no seal: the checksums are right; changes of attributes, class names and datasets "
        "without checksums are not found"};
  if (result == "no checksums")
    return {
        "no checksums: the file can be read; changes of its values, attributes and class names "
        "are not found"};
  return {"damaged: " + result, true};
}

/// Checks one file. A file that cannot be read counts as damaged, so the remaining files are still
/// checked.
std::string verify_file(const std::string& path) {
  try {
    // Check the seal first: HDF5 then never opens a damaged file.
    const std::string seal = io::check_seal(path);
    if (io::is_damage(seal)) return seal;
    io::Hdf5Index file = io::index_hdf5(path);
    return io::with_seal(seal, kind_of(file) == StoredKind::checkpoint
                                   ? checkpoint::verify_values(io::Hdf5Reader(std::move(file)))
                                   : data::verify_shard(std::move(file)));
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
    const Verdict verdict = verdict_of(verify_file(file));
    fmt::print(verdict.damaged ? stderr : stdout, "{}\n",
               escape_invalid_utf8(fmt::format("{}: {}", file, verdict.text)));
    damaged = damaged || verdict.damaged;
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
