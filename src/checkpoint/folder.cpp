#include "trireme/checkpoint/folder.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step_", suffix = ".h5";

struct StepFile {
  std::int64_t step = 0;
  fs::path path;
};

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) return std::nullopt;
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size() - suffix.size();
  std::int64_t step = 0;
  const auto [stopped, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stopped != end || step < 0) return std::nullopt;
  return step;
}

/// Newest first.
std::vector<StepFile> step_files(const std::string& folder) {
  std::vector<StepFile> files;
  if (!fs::is_directory(folder)) return files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::optional<std::int64_t> step = step_of(entry.path().filename().string());
    if (step) files.push_back({*step, entry.path()});
  }
  std::sort(files.begin(), files.end(), [](const StepFile& a, const StepFile& b) { return a.step != b.step ? a.step > b.step : a.path > b.path; });
  return files;
}

/// "" for a checkpoint of this step that may be gone on from.
std::string what_is_wrong_with(const std::string& path, std::int64_t step) {
  try {
    const std::string damage = check_seal(path);
    if (!damage.empty() && damage != "no seal") return damage;
    const Contents contents = read_contents(path);
    // A run that went on from it would write files that are older by name than it, and never take them up.
    if (contents.info.step != step) return fmt::format("its name says step {}, its attribute step is {}", step, contents.info.step);
    return contents.tensors.empty() ? "it holds no tensors" : "";
  } catch (const std::exception& error) {  // whatever a damaged file leads to, the next older one may be whole
    return error.what();
  }
}

Choice look_for_newest(const std::string& folder) {
  Choice choice;
  for (const StepFile& file : step_files(folder)) {
    choice.any_file = true;
    const std::string why = what_is_wrong_with(file.path.string(), file.step);
    if (why.empty()) {
      choice.path = file.path.string();
      choice.step = file.step;
      return choice;
    }
    choice.rejected.push_back({file.path.string(), why});
  }
  return choice;
}

std::vector<std::uint8_t> to_bytes(const Choice& choice) {
  nlohmann::json rejected = nlohmann::json::array();
  for (const Rejected& file : choice.rejected) rejected.push_back({file.path, file.why});
  return nlohmann::json::to_cbor(nlohmann::json::array({choice.path, choice.step, rejected, choice.any_file}));
}

Choice choice_of(const std::string& bytes) {
  const nlohmann::json json = nlohmann::json::from_cbor(bytes);
  Choice choice{json[0], json[1], {}, json[3]};
  for (const nlohmann::json& file : json[2]) choice.rejected.push_back({file[0], file[1]});
  return choice;
}

/// A name that is free: the one wanted, or with .2, .3 ... behind it.
fs::path free_name(const fs::path& wanted) {
  fs::path name = wanted;
  for (int i = 2; fs::exists(name); ++i) name = wanted.string() + "." + std::to_string(i);
  return name;
}

/// Rank 0 acts, the others wait for how it went.
template <class Body>
void at_rank_zero(const comm::Communicator& world, Body&& body) {
  comm::together(world, [&] {
    if (world.rank() == 0) body();
  });
}

}  // namespace

std::string step_file_name(std::int64_t step) { return fmt::format("step_{:09}.h5", step); }

Choice find_newest(const comm::Communicator& world, const std::string& folder) {
  std::string bytes;
  at_rank_zero(world, [&] {
    const std::vector<std::uint8_t> found = to_bytes(look_for_newest(folder));
    bytes.assign(found.begin(), found.end());
  });
  return choice_of(world.broadcast(bytes, 0));
}

void set_aside(const comm::Communicator& world, const std::vector<Rejected>& rejected, Log& log) {
  at_rank_zero(world, [&] {
    for (const Rejected& file : rejected) {
      const fs::path aside = free_name(file.path + ".damaged");
      io::rename_durably(file.path, aside.string());
      log.warn("{} is set aside as {}: {}", file.path, aside.filename().string(), file.why);
    }
  });
}

void move_aside(const comm::Communicator& world, const std::string& folder, Log& log) {
  at_rank_zero(world, [&] {
    if (!fs::is_directory(folder)) return;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && (name.ends_with(suffix) || name.find(".h5.damaged") != std::string::npos)) files.push_back(entry.path());
    }
    if (files.empty()) return;
    std::string timestamp = utc_timestamp();
    std::erase_if(timestamp, [](char c) { return c == ':' || c == '-'; });
    const fs::path aside = free_name(fs::path(folder) / ("before-" + timestamp));
    fs::create_directory(aside);
    for (const fs::path& file : files) fs::rename(file, aside / file.filename());
    io::sync_folder(aside.string());
    io::sync_folder(folder);
    log.info("{} checkpoint files of the earlier run are kept in {}", files.size(), aside.string());
  });
}

void rotate(const comm::Communicator& world, const std::string& folder, int keep, const std::string& protect) {
  at_rank_zero(world, [&] {
    const std::string kept_name = fs::path(protect).filename().string();
    std::vector<StepFile> files = step_files(folder);
    std::erase_if(files, [](const StepFile& file) {
      std::error_code ignored;
      return !fs::is_regular_file(file.path, ignored);
    });
    for (std::size_t i = static_cast<std::size_t>(std::max(keep, 0)); i < files.size(); ++i) {
      if (files[i].path.filename() != kept_name) fs::remove(files[i].path);
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::error_code ignored;
      if (entry.is_regular_file(ignored) && entry.path().filename().string().ends_with(".h5.tmp")) fs::remove(entry.path());
    }
  });
}

}  // namespace trireme::checkpoint
