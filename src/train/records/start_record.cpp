// SPDX-License-Identifier: Apache-2.0
//
// Records each start in the run folder: its deck, and its software and hardware.
#include "start_record.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/io/file.hpp"
#include "trireme/monitor/environment_json.hpp"
#include "trireme/train/records/software_versions.hpp"
#include "trireme/train/run/job_time.hpp"

namespace trireme::train {
namespace {

/// Returns whether two paths are regular files of the same bytes.
bool have_same_text(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code error;
  return std::filesystem::is_regular_file(other, error) &&
         std::filesystem::file_size(one, error) == std::filesystem::file_size(other, error) &&
         !error && io::read_text_file(one.string()) == io::read_text_file(other.string());
}

/// Writes the deck to decks/NNNN.toml, with the number after the largest one there, and to
/// deck.toml. Returns the numbered name, as in "decks/0003.toml". A deck.toml that no start has
/// written is kept: users put the deck of a run there, and give it to `trireme train`.
std::string write_deck(const monitor::RunFolder& run_folder, const std::string& text, Log& log) {
  const std::string folder = run_folder / io::run_names::decks,
                    deck = run_folder / io::run_names::deck;
  std::error_code ignored;  // replace_file() reports a folder that is missing.
  std::filesystem::create_directory(folder, ignored);
  std::int64_t last = 0;
  bool is_recorded = !std::filesystem::exists(deck, ignored);
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = file.path().stem().string();
    std::int64_t number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    last = std::max(last, number);
    is_recorded = is_recorded || have_same_text(deck, file.path());
  }
  if (!is_recorded) {
    // A copy: a chain of jobs may name the file, which must be there at any time.
    const std::string kept = io::free_name(deck + ".given");
    io::copy_file(deck, kept);
    log.info("{}: was written by no start of this run; it is replaced, and kept as {}", deck, kept);
  }
  const std::string name = fmt::format("{}/{:04}.toml", io::run_names::decks, last + 1);
  io::replace_file(run_folder / name, text);
  io::replace_file(deck, text);
  return name;
}

/// Returns the kind of start that environment.json names.
const char* kind_of_start(const RestoredRun& restored, const RestartPolicy& policy) {
  if (restored.path.empty()) return "fresh";
  if (restored.from_own_folder) return "resume";
  return policy.weights_only ? "weights" : "file";
}

}  // namespace

void record_start(const Run& run, const TrainRequest& request, const RestoredRun& restored,
                  const std::vector<std::string>& hosts, const comm::Environment& environment,
                  Log& log) {
  const comm::Communicator& world = environment.world();
  DeviceDescription device;
  comm::together(world, [&] { device = describe_device(run.device); });
  const std::vector<std::string> devices = world.all_gather(to_string(device));
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    monitor::EnvironmentEntry entry;
    entry.time = utc_timestamp();
    entry.command = request.command;
    const monitor::RunFolder folder = run.folder();
    entry.deck = write_deck(folder, run.deck_text, log);
    entry.restart = kind_of_start(restored, request.restart);
    entry.checkpoint = restored.path;
    const SoftwareVersions versions = software_versions();
    for (const SoftwareField& field : software_fields())
      entry.software.emplace_back(field.key, versions.*field.value);
    entry.driver = device.driver;
    for (const std::string& line : to_lines(versions)) log.info("{}", line);
    if (const std::vector<BatchJob> jobs = batch_jobs(); !jobs.empty())
      entry.job = jobs.front().text();
    entry.device = to_string(device);
    entry.layout = fmt::format("data {} x tensor {} x pipeline {}", run.mesh.shape.data,
                               run.mesh.shape.tensor, run.mesh.shape.pipeline);
    entry.seed = std::to_string(run.deck.run.seed);
    entry.hosts = hosts;
    entry.devices = devices;
    monitor::append_environment(folder, entry, log);
  });
}

std::optional<JobEnergy> previous_job_energy(const monitor::RunFolder& folder,
                                             const std::string& job) {
  try {
    const std::vector<std::string> jobs = folder.read_jobs();
    if (jobs.empty() || jobs.back() == job) return std::nullopt;
    const std::optional<BatchJob> previous = BatchJob::parse(jobs.back());
    if (!previous) return std::nullopt;
    if (const auto joules = query_job_energy(*previous)) return JobEnergy{jobs.back(), *joules};
  } catch (const std::exception&) {
    // A damaged record is set aside when this start is recorded; energy stops no run.
  }
  return std::nullopt;
}

}  // namespace trireme::train
