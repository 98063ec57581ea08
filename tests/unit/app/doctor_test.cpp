// SPDX-License-Identifier: Apache-2.0
//
// Findings of `trireme doctor` for machines that do not exist: each test changes one fact of a
// sound machine of two nodes with eight cores and four ranks.

#include "app/doctor/doctor_findings.hpp"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace trireme::app {
namespace {

using testing::HasSubstr;

using Status = Finding::Status;
constexpr std::int64_t gib = std::int64_t{1} << 30;

NodeFacts sound_node(const std::string& name) {
  NodeFacts node;
  node.host.name = name;
  node.host.kernel = "6.1.0";
  node.host.cores = 8;
  node.host.memory_bytes = 64 * gib;
  node.host.available_memory_bytes = 60 * gib;
  node.host.open_files = node.host.max_open_files = 65536;
  node.host.core_file_bytes = 0;
  node.host.has_shared_memory = true;
  node.host.shared_memory_bytes = node.host.free_shared_memory_bytes = 32 * gib;
  node.host.huge_pages = "madvise";
  node.versions.mpi = "Open MPI v4.1.4";
  node.versions.hdf5 = "1.14.6";
  node.folder.path = "/scratch";
  node.folder.file_system = "lustre";
  node.folder.stripes = 8;
  node.folder.free_bytes = 1000 * gib;
  node.folder.test_bytes = 64 << 20;
  node.folder.write_seconds = node.folder.read_seconds = 0.1;
  node.sees_file_of_rank_0 = true;
  return node;
}

/// Four ranks of two threads: two on each node, each on four cores of its own.
MachineFacts sound_machine() {
  MachineFacts machine;
  machine.job.launcher = "srun with PMIx";
  machine.job.launched_processes = machine.job.world_size = 4;
  machine.job.batch_job = "Slurm job 7";
  machine.job.seconds_left = 7200;
  for (const char* name : {"n1", "n2"}) {
    machine.nodes.push_back(sound_node(name));
    for (const int first : {0, 4}) {
      RankFacts rank;
      rank.host = name;
      rank.threads = 2;
      rank.cores.resize(4);
      std::iota(rank.cores.begin(), rank.cores.end(), first);
      rank.physical_cores = rank.cores;
      machine.ranks.push_back(rank);
    }
  }
  return machine;
}

/// Returns the findings that are not ok, after `change` was made to the sound machine.
std::vector<Finding> found(const std::function<void(MachineFacts&)>& change) {
  MachineFacts machine = sound_machine();
  change(machine);
  std::vector<Finding> findings = find(machine);
  std::erase_if(findings, [](const Finding& finding) { return finding.status == Status::ok; });
  return findings;
}

/// Checks that the change is the only finding, with these parts, and that it names harm and remedy.
void expect_one(const std::function<void(MachineFacts&)>& change, Status status,
                const std::string& subject, const std::string& part, const std::string& remedy,
                const std::vector<std::string>& nodes = {}) {
  const std::vector<Finding> findings = found(change);
  ASSERT_EQ(findings.size(), 1U) << subject << ": " << part;
  const Finding& finding = findings.front();
  EXPECT_EQ(finding.status, status) << finding.found;
  EXPECT_EQ(finding.subject, subject);
  EXPECT_THAT(finding.found, HasSubstr(part));
  EXPECT_FALSE(finding.hurts.empty()) << finding.found;
  EXPECT_THAT(finding.remedy, HasSubstr(remedy));
  EXPECT_EQ(finding.nodes, nodes) << finding.found;
}

TEST(Doctor, ASoundMachineHasNoProblem) {
  EXPECT_TRUE(found([](MachineFacts&) {}).empty());
  for (const Finding& finding : find(sound_machine())) {
    EXPECT_TRUE(finding.nodes.empty() || finding.subject == "speed") << finding.subject;
    EXPECT_FALSE(finding.found.empty()) << finding.subject;
  }
}

TEST(Doctor, ProcessesThatMpiDoesNotConnect) {
  expect_one(
      [](MachineFacts& machine) {
        machine.job.world_size = 1;
        machine.nodes.pop_back();
        machine.ranks.resize(1);
      },
      Status::problem, "launcher", "srun started 4 processes, but MPI sees a world of 1",
      "srun --mpi=pmix");
  expect_one(
      [](MachineFacts& machine) {
        machine.job.launcher = "none";
        machine.job.world_size = machine.job.launched_processes = 1;
        machine.job.tasks_of_job = 4;
        machine.nodes.pop_back();
        machine.ranks.resize(1);
      },
      Status::warning, "launcher", "this job has 4 tasks", "srun trireme doctor");
  expect_one([](MachineFacts& machine) { machine.job.thread_multiple = false; }, Status::warning,
             "MPI threads", "MPI_THREAD_MULTIPLE", "MPICH_MAX_THREAD_SAFETY");
}

TEST(Doctor, RanksOnOneCore) {
  // The second node's ranks share core 0.
  expect_one(
      [](MachineFacts& machine) {
        for (const std::size_t rank : {2U, 3U})
          machine.ranks[rank].cores = machine.ranks[rank].physical_cores = {0};
      },
      Status::problem, "cores", "ranks 2, 3 have 4 threads on core 0", "srun --cpus-per-task=4",
      {"n2"});
  // One rank has one core to itself, and one thread.
  expect_one(
      [](MachineFacts& machine) {
        machine.ranks[0].threads = 1;
        machine.ranks[0].cores = machine.ranks[0].physical_cores = {3};
        machine.nodes[0].cores_per_task = 4;
      },
      Status::problem, "cores", "rank 0 may use core 3 only, of 4 cores a rank",
      "SRUN_CPUS_PER_TASK=4", {"n1"});
  // A job that asked for one core a rank has what it asked for.
  EXPECT_TRUE(found([](MachineFacts& machine) {
                for (std::size_t rank = 0; rank < 4; ++rank) {
                  machine.ranks[rank].threads = 1;
                  machine.ranks[rank].cores =
                      machine.ranks[rank].physical_cores = {static_cast<int>(rank % 2)};
                }
                for (NodeFacts& node : machine.nodes) node.batch_cores = 2;
              }).empty());
}

TEST(Doctor, MoreThreadsThanCores) {
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  // Unbound ranks with as many threads as the node has cores: the default of OpenMP.
  expect_one(
      [&](MachineFacts& machine) {
        for (RankFacts& rank : machine.ranks) {
          rank.threads = 8;
          rank.cores = rank.physical_cores = all;
        }
      },
      Status::problem, "cores", "ranks 0, 1 have 16 threads on cores 0-7", "OMP_NUM_THREADS=4");
  // Sets that overlap: no two ranks have too many threads, but all together have.
  expect_one(
      [](MachineFacts& machine) {
        machine.ranks.push_back(machine.ranks[0]);
        machine.job.world_size = machine.job.launched_processes = 5;
        machine.ranks[0].cores = {0, 1};
        machine.ranks[1].cores = {1, 2};
        machine.ranks[4].cores = {0, 2};
        for (const std::size_t rank : {0U, 1U, 4U})
          machine.ranks[rank].physical_cores = machine.ranks[rank].cores;
      },
      Status::problem, "cores", "ranks 0, 1, 4 have 6 threads on cores 0-2", "OMP_NUM_THREADS=1",
      {"n1"});
  // Two hardware threads of each core: ranks with cores of their own share physical ones.
  expect_one(
      [](MachineFacts& machine) {
        for (RankFacts& rank : machine.ranks) {
          rank.threads = 4;
          rank.physical_cores = {0, 1, 2, 3};
        }
      },
      Status::warning, "cores", "ranks 0, 1 have 8 threads on 4 physical cores",
      "--hint=nomultithread");
  expect_one(
      [](MachineFacts& machine) { machine.ranks[1].threads_error = "OMP_NUM_THREADS = \"x\" ..."; },
      Status::problem, "threads", "rank 1: OMP_NUM_THREADS", "OMP_NUM_THREADS=1");
  EXPECT_TRUE(found([](MachineFacts& machine) {
                for (RankFacts& rank : machine.ranks) {
                  rank.cores_are_known = false;
                  rank.cores = {0};
                }
              }).empty())
      << "the cores are not known, so nothing is said about them";
}

TEST(Doctor, SharedMemory) {
  expect_one([](MachineFacts& machine) { machine.nodes[1].host.has_shared_memory = false; },
             Status::problem, "shared memory", "/dev/shm is missing", "mount -t tmpfs", {"n2"});
}

TEST(Doctor, SharedMemoryOfAContainer) {
  const auto all_have = [](std::int64_t bytes) {
    return [bytes](MachineFacts& machine) {
      for (NodeFacts& node : machine.nodes)
        node.host.shared_memory_bytes = node.host.free_shared_memory_bytes = bytes;
    };
  };
  const std::int64_t mib = 1 << 20;
  expect_one(all_have(16 * mib), Status::problem, "shared memory", "16.0 MiB", "--shm-size");
  expect_one(all_have(64 * mib), Status::warning, "shared memory", "64.0 MiB", "--shm-size");
  EXPECT_TRUE(found(all_have(128 * mib)).empty());
}

TEST(Doctor, Limits) {
  const auto hosts = [](const std::function<void(HostFacts&)>& change) {
    return [change](MachineFacts& machine) {
      for (NodeFacts& node : machine.nodes) change(node.host);
    };
  };
  expect_one(hosts([](HostFacts& host) { host.open_files = 128; }), Status::problem, "open files",
             "ulimit -n 128, at most 65536; 4 ranks need 264", "ulimit -n 65536");
  expect_one(hosts([](HostFacts& host) { host.open_files = host.max_open_files = 128; }),
             Status::problem, "open files", "ulimit -n 128, at most 128", "limits.conf");
  expect_one(hosts([](HostFacts& host) { host.open_files = host.max_open_files = 1024; }),
             Status::warning, "open files", "1024", "limits.conf");
  EXPECT_TRUE(found(hosts([](HostFacts& host) {
                host.open_files = host.max_open_files = std::nullopt;
              })).empty());
  // Locked memory matters to InfiniBand only.
  EXPECT_TRUE(found(hosts([](HostFacts& host) { host.locked_memory_bytes = 65536; })).empty());
  expect_one(hosts([](HostFacts& host) {
               host.locked_memory_bytes = 65536;
               host.network_ports = host.active_network_ports = 1;
             }),
             Status::problem, "locked memory", "ulimit -l 64 KiB", "ulimit -l unlimited");
  expect_one(hosts([](HostFacts& host) { host.network_ports = 2; }), Status::warning, "network",
             "0 of 2 ports", "ibstat");
  expect_one(hosts([](HostFacts& host) { host.core_file_bytes = std::nullopt; }), Status::warning,
             "core files", "unlimited", "ulimit -c 0");
  expect_one(hosts([](HostFacts& host) { host.huge_pages = "never"; }), Status::warning,
             "huge pages", "never", "echo madvise");
  expect_one(hosts([](HostFacts& host) { host.group_memory_bytes = gib / 2; }), Status::problem,
             "memory", "512.0 MiB of 64.0 GiB", "--mem=0");
  expect_one(hosts([](HostFacts& host) { host.group_memory_bytes = 16 * gib; }), Status::warning,
             "memory", "16.0 GiB of 64.0 GiB", "--mem=0");
  expect_one(hosts([](HostFacts& host) { host.available_memory_bytes = 8 * gib; }), Status::warning,
             "memory", "8.0 GiB available of 64.0 GiB", "--exclusive");
}

TEST(Doctor, TheFolder) {
  const auto folders = [](const std::function<void(io::FolderFacts&)>& change) {
    return [change](MachineFacts& machine) {
      for (NodeFacts& node : machine.nodes) change(node.folder);
    };
  };
  expect_one(folders([](io::FolderFacts& folder) { folder.write_error = "Read-only"; }),
             Status::problem, "folder", "/scratch: lustre, 1000.0 GiB free; Read-only",
             "run.folder");
  expect_one(
      [](MachineFacts& machine) {
        machine.nodes[1].folder = {};
        machine.nodes[1].folder.error = "is not a folder";
      },
      Status::problem, "folder", "is not a folder", "--folder", {"n2"});
  expect_one([](MachineFacts& machine) { machine.nodes[1].sees_file_of_rank_0 = false; },
             Status::problem, "folder", "not the folder that rank 0 sees", "shared file system",
             {"n2"});
  expect_one(folders([](io::FolderFacts& folder) { folder.free_bytes = 1000; }), Status::problem,
             "folder", "1000 bytes free", "free some space");
  expect_one(folders([](io::FolderFacts& folder) { folder.free_bytes = 5 * gib; }), Status::warning,
             "folder", "5.0 GiB free", "free some space");
  expect_one(folders([](io::FolderFacts& folder) {
               folder.is_in_memory = true;
               folder.file_system = "tmpfs";
             }),
             Status::warning, "folder", "tmpfs", "on a disk");
  expect_one(folders([](io::FolderFacts& folder) { folder.stripes = 1; }), Status::warning,
             "folder", "stripe count 1", "lfs setstripe -c 8 /scratch");
  expect_one([](MachineFacts& machine) { machine.nodes[1].folder.write_seconds = 6.7; },
             Status::warning, "speed", "writes 10 MB/s, reads 671 MB/s", "bench io", {"n2"});
  // Locks: HDF5 with and without them.
  expect_one(folders([](io::FolderFacts& folder) {
               folder.lock_error = "No locks available";
               folder.hdf5_error = "unable to lock file";
             }),
             Status::problem, "file locks", "unable to lock file (flock: No locks available)",
             "export HDF5_USE_FILE_LOCKING=FALSE");
  EXPECT_TRUE(
      found(folders([](io::FolderFacts& folder) { folder.lock_error = "No locks"; })).empty())
      << "HDF5 works without locks";
  expect_one(folders([](io::FolderFacts& folder) { folder.range_lock_error = "Not implemented"; }),
             Status::warning, "file locks", "fcntl: Not implemented", "flock");
}

TEST(Doctor, TimeLeft) {
  const auto left = [](std::optional<double> seconds) {
    return [seconds](MachineFacts& machine) { machine.job.seconds_left = seconds; };
  };
  expect_one(left(200), Status::problem, "time", "Slurm job 7: 3:20 left", "--time");
  expect_one(left(600), Status::warning, "time", "10:00 left", "--time");
  expect_one(left(std::nullopt), Status::warning, "time", "does not report", "run.walltime");
  EXPECT_TRUE(found([](MachineFacts& machine) {
                machine.job.batch_job.clear();
                machine.job.seconds_left.reset();
              }).empty());
}

TEST(Doctor, Hdf5OlderThan1_14_6) {
  const auto version = [](const std::string& text) {
    return [text](MachineFacts& machine) {
      for (NodeFacts& node : machine.nodes) node.versions.hdf5 = text;
    };
  };
  expect_one(version("1.10.8"), Status::warning, "HDF5", "1.10.8", "1.14.6");
  expect_one(version("1.14.5"), Status::warning, "HDF5", "1.14.5", "1.14.6");
  EXPECT_TRUE(found(version("2.0.0")).empty());
  EXPECT_TRUE(found(version("1.14.10")).empty());
}

/// Gives each rank of the sound machine a GPU of its own.
void add_gpus(MachineFacts& machine) {
  for (NodeFacts& node : machine.nodes) {
    node.devices.built_with_cuda = true;
    for (const char* bus : {"0000:19:00.0", "0000:3b:00.0"}) {
      GpuFacts gpu;
      gpu.name = "NVIDIA H200";
      gpu.bus_id = bus;
      gpu.driver = "580.65.06 (CUDA 13.0)";
      gpu.memory_bytes = 140 * gib;
      gpu.max_clock_megahertz = 1980;
      node.devices.gpus.push_back(gpu);
    }
  }
  for (std::size_t rank = 0; rank < 4; ++rank) {
    machine.ranks[rank].visible_gpus = 2;
    machine.ranks[rank].threads = 1;
    machine.ranks[rank].gpu = std::to_string(rank % 2) + " on " + machine.ranks[rank].host;
  }
}

TEST(Doctor, Gpus) {
  const auto with_gpus = [](const std::function<void(MachineFacts&)>& change) {
    return [change](MachineFacts& machine) {
      add_gpus(machine);
      change(machine);
    };
  };
  EXPECT_TRUE(found(with_gpus([](MachineFacts&) {})).empty());
  expect_one(with_gpus([](MachineFacts& machine) {
               for (RankFacts& rank : machine.ranks) rank.visible_gpus = 1;
             }),
             Status::problem, "GPUs", "each rank sees only its own", "--gpu-bind=none");
  expect_one(with_gpus([](MachineFacts& machine) {
               for (RankFacts& rank : machine.ranks) rank.gpu = "0 on " + rank.host;
             }),
             Status::warning, "GPUs", "2 ranks share 1 GPU", "--ntasks-per-node=2");
  expect_one(with_gpus([](MachineFacts& machine) {
               machine.nodes[1].devices.pairs_without_peer_access = {"cuda:0 and cuda:1"};
             }),
             Status::warning, "GPUs", "no peer access: cuda:0 and cuda:1", "topo", {"n2"});
  expect_one(with_gpus([](MachineFacts& machine) {
               machine.nodes[0].devices.gpus[1].utilization_percent = 97;
             }),
             Status::warning, "GPUs", "0000:3b:00.0 is 97 % busy", "nvidia-smi", {"n1"});
  expect_one(with_gpus([](MachineFacts& machine) {
               machine.nodes[0].devices.error = "CUDA: unknown error";
             }),
             Status::problem, "GPUs", "CUDA: unknown error", "--exclude", {"n1"});
  expect_one(with_gpus([](MachineFacts& machine) {
               for (RankFacts& rank : machine.ranks) {
                 rank.cores.resize(1);
                 rank.physical_cores.resize(1);
               }
               for (NodeFacts& node : machine.nodes) node.batch_cores = 2;
             }),
             Status::warning, "cores", "2 cores of 8", "--cpus-per-task=4");
  expect_one(
      [](MachineFacts& machine) {
        for (NodeFacts& node : machine.nodes) {
          node.devices.built_with_cuda = true;
          node.devices.no_gpu_reason = "no NVIDIA driver";
        }
      },
      Status::problem, "GPUs", "none: no NVIDIA driver", "--gpus-per-node");
  expect_one(
      [](MachineFacts& machine) {
        for (NodeFacts& node : machine.nodes) node.host.has_nvidia_driver = true;
      },
      Status::warning, "GPUs", "without CUDA", "cuda-release");
}

TEST(Doctor, NodesThatDifferAreNamed) {
  const auto with_third = [](const std::function<void(NodeFacts&)>& change) {
    return [change](MachineFacts& machine) {
      machine.nodes.push_back(sound_node("n3"));
      machine.ranks.push_back(machine.ranks.back());
      machine.ranks.back().host = "n3";
      machine.job.world_size = machine.job.launched_processes = 5;
      change(machine.nodes[1]);
    };
  };
  EXPECT_TRUE(found(with_third([](NodeFacts&) {})).empty());
  expect_one(with_third([](NodeFacts& node) { node.versions.mpi = "Open MPI v5.0.7"; }),
             Status::problem, "differences",
             "versions of MPI: Open MPI v4.1.4 on 2 nodes; Open MPI v5.0.7 on n2", "modules",
             {"n2"});
  expect_one(
      with_third([](NodeFacts& node) { node.host.max_open_files = node.host.open_files = 4096; }),
      Status::warning, "differences", "ulimit -n: 65536 on 2 nodes; 4096 on n2", "--propagate",
      {"n2"});
  expect_one(with_third([](NodeFacts& node) { node.host.cores = 16; }), Status::warning,
             "differences", "cores: 8 on 2 nodes; 16 on n2", "--exclude", {"n2"});
  EXPECT_TRUE(found(with_third([](NodeFacts& node) {
                node.host.memory_bytes += gib / 100;
                node.host.available_memory_bytes -= gib;
              })).empty())
      << "equal nodes differ by that much";
}

TEST(Doctor, ClocksAndDriversThatDifferAreNamed) {
  const auto gpus = [](const std::function<void(GpuFacts&)>& change) {
    return [change](MachineFacts& machine) {
      add_gpus(machine);
      change(machine.nodes[1].devices.gpus[1]);
    };
  };
  expect_one(gpus([](GpuFacts& gpu) { gpu.max_clock_megahertz = 1200; }), Status::warning,
             "differences", "highest clocks: 1980 MHz on n1; 1980 MHz, 1200 MHz on n2", "--exclude",
             {"n2"});
  expect_one(gpus([](GpuFacts& gpu) { gpu.driver = "570.1"; }), Status::warning, "differences",
             "drivers: 580.65.06 (CUDA 13.0) on n1; 580.65.06 (CUDA 13.0), 570.1 on n2",
             "--exclude", {"n2"});
}

TEST(Doctor, TheMostHarmfulIsFirst) {
  const std::vector<Finding> findings = found([](MachineFacts& machine) {
    for (NodeFacts& node : machine.nodes) {
      node.versions.hdf5 = "1.10.8";        // a warning that hurts nothing
      node.host.huge_pages = "never";       // a warning about speed
      node.folder.free_bytes = 1000;        // a problem that loses work
      node.host.has_shared_memory = false;  // a problem at the start
    }
    machine.ranks[0].threads = 9;  // a problem of speed
  });
  std::vector<std::string> subjects;
  for (const Finding& finding : findings) subjects.push_back(finding.subject);
  EXPECT_EQ(subjects,
            (std::vector<std::string>{"shared memory", "folder", "cores", "huge pages", "HDF5"}));
}

TEST(Doctor, ManyNodesAreListedInPart) {
  EXPECT_EQ(list_of({"a", "b"}), "a, b");
  EXPECT_EQ(list_of({"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}),
            "1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}

}  // namespace
}  // namespace trireme::app
