// SPDX-License-Identifier: Apache-2.0
//
// Gathers the facts of `trireme doctor` from all ranks.
//
// 1. Every rank describes itself; local rank 0 of each node also the node and the folder.
// 2. Rank 0 creates a file in the folder, and the other nodes look for it.
// 3. All send their facts to rank 0 as JSON.
// A file system may hang, so the folder is examined in a thread, with a time limit.
#include "doctor_facts.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <thread>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/check.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/train/run/job_time.hpp"

namespace nlohmann {

/// An optional value is null, or the value.
template <class Value>
struct adl_serializer<std::optional<Value>> {
  static void to_json(json& out, const std::optional<Value>& value) {
    out = value ? json(*value) : json();
  }
  static void from_json(const json& in, std::optional<Value>& value) {
    value = in.is_null() ? std::nullopt : std::optional(in.get<Value>());
  }
};

}  // namespace nlohmann

namespace trireme {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostFacts, name, kernel, cores, memory_bytes,
                                   available_memory_bytes, group_memory_bytes, open_files,
                                   max_open_files, locked_memory_bytes, core_file_bytes,
                                   has_shared_memory, shared_memory_bytes, free_shared_memory_bytes,
                                   huge_pages, network_ports, active_network_ports,
                                   has_nvidia_driver)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, name, bus_id, compute_capability, driver, runtime,
                                   memory_bytes, clock_megahertz, max_clock_megahertz,
                                   power_limit_watts, temperature_celsius, utilization_percent)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceFacts, built_with_cuda, no_gpu_reason, error, gpus,
                                   pairs_without_peer_access)
}  // namespace trireme

namespace trireme::io {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FolderFacts, path, error, is_missing, file_system, is_in_memory,
                                   stripes, free_bytes, write_error, lock_error, range_lock_error,
                                   hdf5_error, test_bytes, write_seconds, read_seconds)
}  // namespace trireme::io

namespace trireme::train {
void to_json(nlohmann::json& out, const SoftwareVersions& versions) {
  for (const SoftwareField& field : software_fields()) out[field.key] = versions.*field.value;
}
void from_json(const nlohmann::json& in, SoftwareVersions& versions) {
  for (const SoftwareField& field : software_fields())
    in.at(field.key).get_to(versions.*field.value);
}
}  // namespace trireme::train

namespace trireme::app {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, host, threads, threads_error, cores, physical_cores,
                                   cores_are_known, gpu, visible_gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeFacts, host, processor, versions, devices, folder,
                                   sees_file_of_rank_0, hdf5_locking, batch_cores, cores_per_task)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobFacts, launcher, launched_processes, world_size,
                                   thread_multiple, tasks_of_job, batch_job, seconds_left)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MachineFacts, job, nodes, ranks)

namespace {

using nlohmann::json;

// Limit for all tests of a folder. 64 MiB take 13 s at 5 MB/s.
constexpr std::chrono::seconds folder_patience(60);
// A name that a node looks up for the first time comes from the server, so it is there at once.
// Some seconds more are for servers that are busy.
constexpr double marker_patience = 5;  // seconds

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number_variable(const char* name) { return std::atoi(variable(name).c_str()); }

RankFacts examine_rank(const comm::Environment& environment) {
  RankFacts rank;
  rank.host = environment.host();
  rank.cores = allowed_cores();
  for (const int core : rank.cores) rank.physical_cores.push_back(physical_core_of(core));
  rank.visible_gpus = cuda_device_count();
  try {
    if (rank.visible_gpus > 0) rank.gpu = identity_of(choose_cuda_device(environment.local_rank()));
  } catch (const Failure&) {
    rank.gpu = "";  // examine_devices() reports the device.
  }
  try {
    rank.threads = rank.gpu.empty() ? KokkosScope::default_threads() : 1;
  } catch (const InputError& error) {
    rank.threads_error = error.what();
  }
  // OpenMP bound the main thread before main() began.
  std::string binding = variable("OMP_PROC_BIND");
  for (char& letter : binding) letter = static_cast<char>(std::tolower(letter));
  const bool is_bound =
      (!binding.empty() && binding != "false") || !variable("GOMP_CPU_AFFINITY").empty();
  rank.cores_are_known =
      !is_bound || static_cast<int>(rank.cores.size()) >= std::max(2, rank.threads);
  return rank;
}

/// Examines the folder within the time limit. A thread that hangs stays behind; the process ends
/// without waiting for it.
io::FolderFacts examine_folder_in_time(const DoctorOptions& options) {
  const auto result = std::make_shared<std::promise<io::FolderFacts>>();
  std::future<io::FolderFacts> facts = result->get_future();
  std::thread([result, options] {
    try {
      result->set_value(
          io::examine_folder(options.folder, static_cast<std::int64_t>(options.bytes)));
    } catch (...) {
      result->set_exception(std::current_exception());
    }
  }).detach();
  if (facts.wait_for(folder_patience) == std::future_status::ready) return facts.get();
  io::FolderFacts late;
  late.path = options.folder;
  late.error = fmt::format("the file system does not finish within {} s", folder_patience.count());
  return late;
}

NodeFacts examine_node(const DoctorOptions& options) {
  NodeFacts node;
  node.host = examine_host();
  node.processor = host_processor();
  node.versions = train::software_versions();
  node.devices = examine_devices();
  node.hdf5_locking = variable("HDF5_USE_FILE_LOCKING");
  node.batch_cores = number_variable("SLURM_CPUS_ON_NODE");
  node.cores_per_task = number_variable("SLURM_CPUS_PER_TASK");
  node.folder = examine_folder_in_time(options);
  return node;
}

JobFacts examine_job(const comm::Environment& environment) {
  JobFacts job;
  job.launcher = environment.launcher();
  job.launched_processes = environment.launched_processes();
  job.world_size = environment.world().size();
  job.thread_multiple = environment.thread_multiple();
  job.tasks_of_job = number_variable("SLURM_NTASKS");
  if (const std::vector<BatchJob> jobs = batch_jobs(); !jobs.empty())
    job.batch_job = jobs.front().title();
  if (const std::optional<train::JobTime> time = train::query_job_time()) {
    job.batch_job = time->source;
    job.seconds_left = time->seconds_left;
  }
  return job;
}

/// Lets every node look for a file that rank 0 creates in the folder. `node`: null on ranks that
/// examine none. Collective.
void look_for_file_of_rank_0(const comm::Communicator& world, NodeFacts* node) {
  const auto is_usable = [node] {
    return node != nullptr && node->folder.error.empty() && node->folder.write_error.empty();
  };
  std::string path;
  if (world.rank() == 0 && is_usable()) path = io::create_marker(node->folder.path);
  const std::string wanted = world.broadcast(path, 0);
  if (!wanted.empty() && is_usable())
    node->sees_file_of_rank_0 = io::appears(wanted, marker_patience);
  world.barrier();
  if (!path.empty()) ::unlink(path.c_str());
}

/// Throws InputError if no node has the folder: then the command line is wrong.
void validate_folder(const std::string& folder, const std::vector<NodeFacts>& nodes) {
  const bool is_missing = std::all_of(nodes.begin(), nodes.end(),
                                      [](const NodeFacts& node) { return node.folder.is_missing; });
  validate(!is_missing, "--folder {}: {}; name an existing folder on the file system of the run",
           folder, nodes.front().folder.error);
}

}  // namespace

MachineFacts examine_machine(const comm::Environment& environment, const DoctorOptions& options) {
  const comm::Communicator& world = environment.world();
  json mine;
  std::optional<NodeFacts> node;
  comm::together(world, [&] {
    mine["rank"] = examine_rank(environment);
    if (environment.local_rank() == 0) node = examine_node(options);
  });
  look_for_file_of_rank_0(world, node ? &*node : nullptr);
  mine["node"] = node;
  // Names of files and of hosts may have bytes that are not UTF-8.
  const std::vector<std::string> all =
      world.all_gather(mine.dump(-1, ' ', false, json::error_handler_t::replace));
  MachineFacts facts;
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    facts.job = examine_job(environment);
    for (const std::string& text : all) {
      const json one = json::parse(text);
      facts.ranks.push_back(one.at("rank").get<RankFacts>());
      if (!one.at("node").is_null()) facts.nodes.push_back(one.at("node").get<NodeFacts>());
    }
    validate_folder(options.folder, facts.nodes);
  });
  return facts;
}

std::string to_json(const MachineFacts& facts) {
  return json(facts).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace trireme::app
