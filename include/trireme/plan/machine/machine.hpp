// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::plan {

/// The origin of the figures of one table: a data sheet with its address, or a command that
/// measured them; and the date of the document or of the measurement.
struct Origin {
  std::string source, date;
};

enum class MachineKind : std::uint8_t { gpu, cpu };

/// The device of one rank: a GPU, or the cores of a CPU that run the rank's threads.
struct DeviceFigures {
  Origin origin;
  MachineKind kind = MachineKind::gpu;
  std::int64_t units = 0;    ///< streaming multiprocessors, or cores of the node
  std::int64_t threads = 1;  ///< CPU: threads of the rank that the figures were measured with
  std::int64_t l2_bytes = 0;
  /// CPU: the speed of `threads` threads divided by `threads` times that of one.
  double thread_efficiency = 1;
  double power_limit_watts = 0;
};

/// Dense peak in FLOP/s (2 for each multiply-add) at the sustained clock; 0: unknown.
struct PeakFigures {
  Origin origin;
  double float32 = 0, tfloat32 = 0, bfloat16 = 0, float16 = 0, float8 = 0;
};

/// The memory of the device of one rank.
struct MemoryFigures {
  Origin origin;
  std::int64_t bytes = 0;
  double bytes_per_s = 0;
  /// CPU: the rate of all cores together, which the ranks of a node share; 0: bytes_per_s.
  double node_bytes_per_s = 0;
};

/// Costs that do not depend on the size of an op.
struct OverheadFigures {
  Origin origin;
  double launch_seconds = 0;        ///< gap before each op
  std::int64_t reserved_bytes = 0;  ///< device memory of context, NCCL and libraries
};

/// The loss of a run of several ranks against its parts, which are measured alone on one device.
struct ScalingFigures {
  Origin origin;
  double compute = 1;  ///< part of the speed of products, convolutions and attention that is left
};

struct NodeFigures {
  Origin origin;
  std::int64_t devices = 1;  ///< GPUs; CPU: 1
  std::int64_t nics = 0, cores = 0, memory_bytes = 0;
  double host_copy_bytes_per_s = 0;  ///< between host and one device, in one direction
  double watts = 0;                  ///< of the node under load
};

/// One link of a rank to others, in one direction.
struct LinkFigures {
  Origin origin;
  double latency_seconds = 0;
  double bytes_per_s = 0;  ///< of large messages: of a device inside a node, of a NIC between nodes
  /// Rates of messages by size, as measured; empty: latency and bytes_per_s only.
  std::vector<double> message_bytes, message_bytes_per_s;
  /// The rate at which a rank adds received numbers, in bytes of them; 0: not counted.
  double sum_bytes_per_s = 0;
  /// The rate of sums that the switches add (NVLink SHARP, called NVLS by NCCL), in bytes of the
  /// whole data; 0: they do not add.
  double in_network_bytes_per_s = 0;
};

/// Measured seconds of a collective over groups of a node.
struct CollectiveFigures {
  Origin origin;
  std::vector<double> ranks, bytes;
  std::vector<double> seconds;  ///< for each number of ranks those of all sizes
};

struct FileSystemFigures {
  Origin origin;
  double read_bytes_per_s = 0, write_bytes_per_s = 0;  ///< of a node
};

struct ReliabilityFigures {
  Origin origin;
  double node_mtbf_hours = 0;
  double start_seconds = 0;  ///< from the start of a job to its first step
};

struct PriceFigures {
  Origin origin;
  double gpu_hour_usd = 0;
};

/// The part of the peak and of the memory bandwidth that an op, or a class of ops, reaches. A part
/// of 0 means that the op is not limited by it.
struct Efficiency {
  Origin origin;
  double compute = 0;    ///< of the peak
  double bandwidth = 0;  ///< of the memory bandwidth
  /// Tiles of the result of a matrix product, computed in waves over the units of the device; 0:
  /// no quantization.
  std::int64_t tile_m = 0, tile_n = 0;
  /// Length of the inner dimension at which a product reaches half of its efficiency.
  double half_k = 0;
  /// Shortest inner dimension of a part, if a product with fewer tiles than units is cut along it;
  /// 0: never cut.
  std::int64_t split_k = 0;
  /// Measured parts of the peak on a grid of shapes: m is the slowest, k the fastest.
  std::vector<double> m, n, k, compute_grid;
  /// Measured parts of the memory bandwidth by bytes of an op.
  std::vector<double> bytes, bandwidth_curve;
};

/// The figures of one kind of node, from a machine file. A number of 0 and an empty list mean that
/// the figure is unknown, unless its comment says otherwise.
struct Machine {
  std::string name, description;
  /// Predictions on this machine have been compared with measured steps.
  bool tested = false;
  DeviceFigures device;
  PeakFigures peak;
  MemoryFigures memory;
  OverheadFigures overhead;
  ScalingFigures scaling;
  NodeFigures node;
  LinkFigures node_link, network;  ///< inside a node, and between nodes for each NIC
  /// By name: all_reduce, tree_all_reduce, reduce_scatter, all_gather.
  std::map<std::string, CollectiveFigures, std::less<>> collectives;
  FileSystemFigures file_system;
  ReliabilityFigures reliability;
  PriceFigures price;
  /// By type and op, or class of ops: "float32.linear_forward", "all.product_forward".
  std::map<std::string, Efficiency, std::less<>> efficiency;
};

/// Reads a machine file. `name_or_file`: a path (with a "/" or ending in ".toml"), or the name of a
/// machine that the program knows. Throws InputError if there is none, or with all mistakes of the
/// file, each with its line.
Machine read_machine(const std::string& name_or_file);
/// Reads a machine file from its text; `file` is its name for messages.
Machine parse_machine(const std::string& text, const std::string& file);
/// Returns the machine as TOML text, which parse_machine() reads back to an equal one. Tables
/// without a source are left out.
std::string write_machine(const Machine& machine);

/// A machine that the program knows, with the text of its file in machines/.
struct BuiltInMachine {
  std::string_view name, text;
};
/// Returns all of them by name.
const std::vector<BuiltInMachine>& built_in_machines();

}  // namespace trireme::plan
