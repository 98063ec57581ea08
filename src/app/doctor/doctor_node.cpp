// SPDX-License-Identifier: Apache-2.0
//
// Findings of `trireme doctor` about each node: memory, limits, GPUs, HDF5 and the folder.
//
// Each function looks at one subject of one node. Limits have their reason beside them.
#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "doctor_findings.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Harm = Finding::Harm;
constexpr std::int64_t mib = std::int64_t{1} << 20, gib = std::int64_t{1} << 30;

/// A node, its ranks, and the whole run that it is a part of.
struct CheckedNode {
  const NodeFacts& node;
  std::vector<RankFacts> ranks;
  std::int64_t world_size;
  std::size_t node_count;

  std::int64_t rank_count() const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(ranks.size()));
  }
};

Finding find_in_shared_memory(const CheckedNode& checked) {
  const HostFacts& host = checked.node.host;
  // NCCL takes about 10 MB for each pair of ranks that it connects through /dev/shm, Open MPI 4 MiB
  // for each rank. Containers often have 64 MiB, which a few GPUs exceed.
  constexpr std::int64_t bytes_per_rank = 64 * mib, min_bytes_per_rank = 16 * mib;
  const std::string subject = "shared memory",
                    remedy =
                        "mount -t tmpfs tmpfs /dev/shm; in a container --shm-size=8g "
                        "(docker), --bind /dev/shm (Apptainer)";
  if (!host.has_shared_memory)
    return problem(Harm::start, subject, "/dev/shm is missing or cannot be written",
                   "NCCL and MPI connect the ranks of a node through it", remedy);
  const std::string found =
      fmt::format("/dev/shm: {} free of {}", format_bytes(host.free_shared_memory_bytes),
                  format_bytes(host.shared_memory_bytes));
  const std::string more =
      "if files of dead jobs fill it: rm /dev/shm/nccl-* /dev/shm/vader_*; "
      "else " +
      remedy;
  if (host.free_shared_memory_bytes < min_bytes_per_rank * checked.rank_count())
    return problem(Harm::start, subject, found,
                   "NCCL and MPI may fail to connect the ranks of a node", more);
  if (host.free_shared_memory_bytes < bytes_per_rank * checked.rank_count())
    return warning(Harm::start, subject, found, "NCCL may fail to connect the ranks of a node",
                   more);
  return ok(subject, found);
}

Finding find_in_memory(const CheckedNode& checked) {
  const HostFacts& host = checked.node.host;
  // The program, its libraries and the buffers of MPI take a few hundred MB before any model.
  constexpr std::int64_t min_bytes_per_rank = gib / 2;
  const std::int64_t limit =
      std::min(host.memory_bytes, host.group_memory_bytes.value_or(host.memory_bytes));
  const std::int64_t per_rank = limit / checked.rank_count();
  const std::string found = limit < host.memory_bytes
                                ? fmt::format("{}: the control group permits {} of {}",
                                              format_bytes(per_rank) + " a rank",
                                              format_bytes(limit), format_bytes(host.memory_bytes))
                                : fmt::format("{} a rank", format_bytes(per_rank));
  if (per_rank < min_bytes_per_rank)
    return problem(Harm::loss, "memory", found, "ranks are killed when they allocate the model",
                   "sbatch --mem=0 (all memory of the node), or fewer ranks a node");
  if (limit < host.memory_bytes / 2)
    return warning(Harm::loss, "memory", found,
                   "a rank beyond the limit is killed; trireme check prints the need of a deck",
                   "sbatch --mem=0 (all memory of the node)");
  if (host.available_memory_bytes < host.memory_bytes / 2 && host.available_memory_bytes > 0)
    return warning(Harm::loss, "memory",
                   fmt::format("{} available of {}", format_bytes(host.available_memory_bytes),
                               format_bytes(host.memory_bytes)),
                   "other processes of the node hold the rest",
                   "end them (ps aux --sort=-rss), or request the node with --exclusive");
  return ok("memory", found);
}

Finding find_in_open_files(const CheckedNode& checked) {
  const HostFacts& host = checked.node.host;
  // MPI and NCCL may hold two connections to each rank; libraries and logs take up to 256 files.
  const std::int64_t needed = 256 + 2 * checked.world_size;
  // Shards stay open as far as the limit permits (io::raise_open_file_limit).
  constexpr std::int64_t comfortable = 4096;
  const std::string found = fmt::format("ulimit -n {}, at most {}", limit_text(host.open_files),
                                        limit_text(host.max_open_files));
  const auto below = [](const std::optional<std::int64_t>& limit, std::int64_t files) {
    return limit && *limit < files;
  };
  const std::string raise =
      "ulimit -n " +
      (host.max_open_files ? std::to_string(*host.max_open_files) : std::string("65536"));
  const std::string administrator =
      "nofile in /etc/security/limits.conf; for Slurm LimitNOFILE of slurmd, or "
      "srun --propagate=NOFILE";
  if (below(host.open_files, needed))
    return problem(Harm::start, "open files",
                   fmt::format("{}; {} ranks need {}", found, checked.world_size, needed),
                   "MPI and NCCL fail to connect ranks: too many open files",
                   below(host.max_open_files, needed) ? administrator : raise);
  if (below(host.max_open_files, comfortable))
    return warning(Harm::speed, "open files", found,
                   "shards of a large dataset are opened and closed again and again",
                   administrator);
  return ok("open files", found);
}

Finding find_in_locked_memory(const CheckedNode& checked) {
  const HostFacts& host = checked.node.host;
  const std::string found = host.locked_memory_bytes
                                ? fmt::format("ulimit -l {} KiB", *host.locked_memory_bytes / 1024)
                                : "unlimited";
  // InfiniBand adapters work on locked memory. 1 GiB is far above the buffers of MPI and NCCL.
  if (host.network_ports == 0 || !host.locked_memory_bytes || *host.locked_memory_bytes >= gib)
    return ok("locked memory", found);
  const std::string hurts = "MPI and NCCL cannot use InfiniBand: they fail, or use slow sockets",
                    remedy =
                        "ulimit -l unlimited; memlock in /etc/security/limits.conf; for "
                        "Slurm LimitMEMLOCK=infinity of slurmd";
  return checked.node_count > 1 ? problem(Harm::start, "locked memory", found, hurts, remedy)
                                : warning(Harm::start, "locked memory", found, hurts, remedy);
}

Finding find_in_core_files(const CheckedNode& checked) {
  const std::optional<std::int64_t>& bytes = checked.node.host.core_file_bytes;
  if (bytes && *bytes == 0) return ok("core files", "off");
  const std::string found = bytes ? format_bytes(*bytes) + " at most" : "unlimited";
  if (bytes && *bytes <= gib) return ok("core files", found);
  return warning(Harm::loss, "core files", found,
                 "a crash writes the memory of each rank to the disk, and may fill it",
                 "ulimit -c 0");
}

Finding find_in_huge_pages(const CheckedNode& checked) {
  const std::string& setting = checked.node.host.huge_pages;
  if (setting.empty()) return ok("huge pages", "the setting is unknown");
  // Trireme asks for huge pages (madvise) in host blocks of 2 MiB and more.
  if (setting != "never") return ok("huge pages", setting);
  return warning(Harm::speed, "huge pages", "transparent huge pages are off (never)",
                 "training on the CPU: large tensors need many pages of 4 KiB",
                 "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

Finding find_in_network(const CheckedNode& checked) {
  const HostFacts& host = checked.node.host;
  if (host.network_ports == 0) return ok("network", "no InfiniBand or RoCE adapter");
  const std::string found =
      fmt::format("{} of {} active", host.active_network_ports,
                  counted(host.network_ports, "port", "ports of InfiniBand or RoCE"));
  if (host.active_network_ports > 0) return ok("network", found);
  return warning(Harm::speed, "network", found, "MPI and NCCL use slow sockets between nodes",
                 "ibstat; report the node, or leave it out with sbatch --exclude=NODE");
}

Finding find_in_hdf5(const CheckedNode& checked) {
  // Releases before it have known defects with damaged and hostile files (decision page 0011).
  const std::string& version = checked.node.versions.hdf5;
  int major = 0, minor = 0, release = 0;
  std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &release);
  if (std::tuple(major, minor, release) >= std::tuple(1, 14, 6)) return ok("HDF5", version);
  return warning(Harm::none, "HDF5", version + ", older than 1.14.6",
                 "files of others: this version has known defects, so a child process reads them",
                 "build with HDF5 1.14.6 or newer");
}

Finding find_in_locks(const CheckedNode& checked) {
  const io::FolderFacts& folder = checked.node.folder;
  const std::string& setting = checked.node.hdf5_locking;
  const std::string variable =
      "HDF5_USE_FILE_LOCKING" + (setting.empty() ? " is not set" : "=" + setting);
  if (!folder.error.empty() || !folder.write_error.empty())
    return ok("file locks", "not tested, since the folder cannot be written");
  if (!folder.hdf5_error.empty())
    return problem(
        Harm::loss, "file locks",
        fmt::format("an HDF5 file cannot be created: {}{}; {}", folder.hdf5_error,
                    folder.lock_error.empty() ? "" : " (flock: " + folder.lock_error + ")",
                    variable),
        "no checkpoint can be written",
        folder.lock_error.empty() ? "another folder" : "export HDF5_USE_FILE_LOCKING=FALSE");
  if (!folder.range_lock_error.empty() && checked.world_size > 1)
    return warning(Harm::loss, "file locks",
                   fmt::format("fcntl: {}; {}", folder.range_lock_error, variable),
                   "MPI-IO may fail when several ranks write a checkpoint",
                   "mount with locks (Lustre: flock), or another folder");
  return ok("file locks", folder.lock_error.empty()
                              ? "work; " + variable
                              : fmt::format("not supported ({}), and HDF5 does not use them; {}",
                                            folder.lock_error, variable));
}

Finding find_in_folder(const CheckedNode& checked) {
  const io::FolderFacts& folder = checked.node.folder;
  // A checkpoint of ResNet-50 has 0.3 GB, one of a model of 7 billion weights 84 GB.
  constexpr std::int64_t min_bytes = gib, comfortable = 20 * gib;
  const std::string subject = "folder";
  if (!folder.error.empty())
    return problem(Harm::start, subject, fmt::format("{}: {}", folder.path, folder.error),
                   "the run folder cannot be created there",
                   "a folder of a shared file system: trireme doctor --folder $SCRATCH");
  std::string found = fmt::format("{}: {}, {} free", folder.path, folder.file_system,
                                  format_bytes(folder.free_bytes));
  if (!folder.write_error.empty())
    return problem(Harm::start, subject, fmt::format("{}; {}", found, folder.write_error),
                   "train cannot write its run folder there",
                   "another folder for run.folder: trireme doctor --folder $SCRATCH");
  if (checked.node.sees_file_of_rank_0 && !*checked.node.sees_file_of_rank_0)
    return problem(Harm::start, subject, found + ", which is not the folder that rank 0 sees",
                   "all ranks write one checkpoint file, so they need one folder",
                   "a folder of a shared file system: trireme doctor --folder $SCRATCH");
  if (folder.free_bytes < min_bytes)
    return problem(Harm::loss, subject, found, "checkpoints cannot be written",
                   "free some space, or another folder for run.folder");
  if (folder.is_in_memory)
    return warning(Harm::loss, subject, found,
                   "checkpoints take memory of the node, and are lost with it",
                   "a folder on a disk for run.folder");
  if (folder.free_bytes < comfortable)
    return warning(Harm::loss, subject, found,
                   "the disk may be full before the run is done (checkpoint.keep)",
                   "free some space, or another folder for run.folder");
  if (folder.file_system == "lustre") {
    const std::string stripes =
        folder.stripes ? std::to_string(*folder.stripes) : std::string("unknown");
    found += ", stripe count " + stripes;
    if (folder.stripes == 1 && checked.node_count > 1)
      return warning(Harm::speed, subject, found,
                     "checkpoints: all nodes write to one storage server",
                     fmt::format("lfs setstripe -c 8 {}", folder.path));
  }
  return ok(subject, found);
}

Finding find_in_gpus(const CheckedNode& checked) {
  const DeviceFacts& devices = checked.node.devices;
  if (!devices.built_with_cuda) {
    if (!checked.node.host.has_nvidia_driver)
      return ok("GPUs", "none; this program trains on the CPU: " + checked.node.processor);
    return warning(Harm::speed, "GPUs", "this program was built without CUDA, on a node with GPUs",
                   "it trains on the CPU", "build the preset cuda-release");
  }
  if (!devices.error.empty())
    return problem(Harm::start, "GPUs", devices.error, "train cannot use its GPU",
                   "nvidia-smi; report the node, or leave it out with sbatch --exclude=NODE");
  if (devices.gpus.empty())
    return problem(Harm::start, "GPUs", "none: " + devices.no_gpu_reason,
                   "this program computes with a GPU only",
                   "sbatch --gpus-per-node=N, or the program of the preset release");
  const GpuFacts& gpu = devices.gpus.front();
  const auto gpus = static_cast<std::int64_t>(devices.gpus.size()), ranks = checked.rank_count();
  const std::string found =
      fmt::format("{} x {}, {}, driver {}, runtime {}, cuDNN {}, NCCL {}", gpus, gpu.name,
                  format_bytes(gpu.memory_bytes), gpu.driver, gpu.runtime,
                  checked.node.versions.cudnn, checked.node.versions.nccl);
  std::set<std::string> used;
  bool bound = ranks > 1;
  for (const RankFacts& rank : checked.ranks) {
    used.insert(rank.gpu);
    bound &= rank.visible_gpus == 1;
  }
  const auto used_count = static_cast<std::int64_t>(used.size());
  if (bound && used_count > 1)
    return problem(Harm::start, "GPUs", found + "; each rank sees only its own",
                   "NCCL and MPI cannot open another rank's memory",
                   "request GPUs by node (--gpus-per-node), and srun --gpu-bind=none");
  for (const GpuFacts& one : devices.gpus)
    if (one.utilization_percent.value_or(0) > 10)
      return warning(
          Harm::speed, "GPUs",
          fmt::format("{}; {} is {:.0f} % busy", found, one.bus_id, *one.utilization_percent),
          "another process computes on it", "nvidia-smi; end the process");
  if (used_count < ranks && !checked.ranks.empty())
    return warning(
        Harm::speed, "GPUs",
        fmt::format("{}; {} ranks share {}", found, ranks, counted(used_count, "GPU", "GPUs")),
        "messages take the way through host memory and MPI, not NCCL",
        "one rank a GPU: srun --ntasks-per-node=" + std::to_string(gpus));
  if (!devices.pairs_without_peer_access.empty())
    return warning(
        Harm::speed, "GPUs",
        fmt::format("{}; no peer access: {}", found, list_of(devices.pairs_without_peer_access)),
        "sums over these GPUs take the way through host memory",
        "nvidia-smi topo -p2p r; PCI access control (ACS) or a container hides it");
  if (checked.world_size > 1 && gpus > ranks)
    return warning(Harm::speed, "GPUs", fmt::format("{}; {} of them idle", found, gpus - ranks),
                   "a part of the node computes nothing",
                   "one rank a GPU: srun --ntasks-per-node=" + std::to_string(gpus));
  return ok("GPUs", found);
}

/// The speed of the slowest node: all wait for it when a checkpoint is written.
void find_in_speed(const MachineFacts& facts, std::vector<Finding>& findings) {
  const NodeFacts* slowest = nullptr;
  for (const NodeFacts& node : facts.nodes)
    if (node.folder.write_seconds && node.folder.read_seconds &&
        (slowest == nullptr || *node.folder.write_seconds > *slowest->folder.write_seconds))
      slowest = &node;
  if (slowest == nullptr) return;
  const io::FolderFacts& folder = slowest->folder;
  // A checkpoint of 1 GB then takes 20 s.
  constexpr double min_bytes_per_second = 50e6;
  const double bytes = static_cast<double>(folder.test_bytes),
               write = bytes / std::max(*folder.write_seconds, 1e-6),
               read = bytes / std::max(*folder.read_seconds, 1e-6);
  std::string found = fmt::format("writes {:.0f} MB/s, reads {:.0f} MB/s ({} with fsync)",
                                  write / 1e6, read / 1e6, format_bytes(folder.test_bytes));
  if (facts.nodes.size() > 1) found += "; the slowest node at the same time as the others";
  Finding finding =
      write >= min_bytes_per_second && read >= min_bytes_per_second
          ? ok("speed", found)
          : warning(Harm::speed, "speed", found,
                    "checkpoints, and data that are read from there, take long",
                    "another folder, or trireme bench io --folder FOLDER for more figures");
  if (facts.nodes.size() > 1) finding.nodes = {slowest->host.name};
  findings.push_back(std::move(finding));
}

}  // namespace

void find_in_nodes(const MachineFacts& facts, std::vector<Finding>& findings) {
  std::vector<Finding> of_nodes;
  for (const NodeFacts& node : facts.nodes) {
    CheckedNode checked{
        node, {}, static_cast<std::int64_t>(facts.job.world_size), facts.nodes.size()};
    for (const RankFacts& rank : facts.ranks)
      if (rank.host == node.host.name) checked.ranks.push_back(rank);
    for (const auto& look :
         {find_in_gpus, find_in_shared_memory, find_in_memory, find_in_open_files,
          find_in_locked_memory, find_in_core_files, find_in_huge_pages, find_in_network,
          find_in_hdf5, find_in_locks, find_in_folder}) {
      of_nodes.push_back(look(checked));
      of_nodes.back().nodes = {node.host.name};
    }
  }
  append_joined(std::move(of_nodes), facts.nodes.size(), findings);
  find_in_speed(facts, findings);
}

}  // namespace trireme::app
