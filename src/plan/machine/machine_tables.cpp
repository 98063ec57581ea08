// SPDX-License-Identifier: Apache-2.0
//
// Declares every table and key of a machine file, once, for reading and for writing.
//
// Each table with figures has the keys source and date, which are required where the table is
// given. The tables of efficiencies have the names of ops: links.node and collectives.all_reduce
// are single tables, efficiency.float32.linear_forward is one of many.
#include "machine_tables.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/optim/rule.hpp"

namespace trireme::plan {
namespace {

using keys::at_least;
using keys::between;
using keys::Field;
using keys::Key;
using keys::NumberRange;
using keys::Visitor;

constexpr double max_count = 1 << 24;
constexpr std::size_t max_points = 64, max_grid_points = 4096;
// A measured rate can exceed the figure that it is a part of: caches are faster than memory, and
// boost clocks exceed the sustained clock. Convolutions by Winograd's algorithm count as direct
// ones, which have up to 4 times as many operations.
constexpr double max_compute = 16, max_bandwidth = 1000;

/// A number that is not written while it is 0, which means unknown.
Field optional_real(double& value, NumberRange range = at_least(0)) {
  return keys::omitted_if_default(value, 0.0, keys::real(value, range));
}

/// Returns an error message unless the text is a date as 2026-11-25 or a month as 2026-11.
std::string date_error(const std::string& date) {
  constexpr std::string_view form = "0000-00-00";
  bool fits = date.size() == 10 || date.size() == 7;
  for (std::size_t i = 0; fits && i < date.size(); ++i)
    fits = form[i] == '0' ? date[i] >= '0' && date[i] <= '9' : date[i] == form[i];
  return fits ? ""
              : fmt::format("{}: must be a date, as \"2026-11-25\" or \"2026-11\"",
                            keys::quoted(date));
}

/// Visits the keys of one table. `given`: the table is in the file, so its required keys must be.
class Table {
 public:
  Table(Visitor& visitor, const std::string& path, bool given)
      : visitor_(visitor), is_required_(given) {
    visitor.table(path.c_str());
  }
  /// Visits source and date. A table without a source is not written.
  Table(Visitor& visitor, const std::string& path, bool given, Origin& origin)
      : Table(visitor, path, given) {
    required("source", "Names the document with its address, or the command that measured.",
             "name the document of the figures with its address, or the command that measured them",
             keys::text(origin.source));
    required("date", "Sets the date of the document or of the measurement.",
             "give the date of the document or of the measurement, as date = \"2026-11-25\"",
             keys::text(origin.date, date_error));
    left_out_ = origin.source.empty();
  }
  /// `advice`: for a file in which the key is missing.
  void required(const char* name, const char* meaning, const char* advice, Field field) {
    visitor_.field({name, meaning, {}, is_required_ ? advice : nullptr},
                   keys::left_out_if(left_out_, std::move(field)));
  }
  void optional(const char* name, const char* meaning, Field field) {
    visitor_.field({name, meaning}, keys::left_out_if(left_out_, std::move(field)));
  }

 private:
  Visitor& visitor_;
  bool is_required_, left_out_ = false;
};

void visit_machine(Visitor& v, Machine& machine) {
  Table table(v, "machine", true);
  table.required("name", "Sets the name of the kind of node.",
                 "name the kind of node, as name = \"h100\"", keys::text(machine.name));
  table.optional("description", "Describes the node in one line.",
                 keys::optional_text(machine.description));
  table.required("tested",
                 "Says whether predictions on this machine were compared with measured steps.",
                 "write tested = false until predictions are compared with measured steps",
                 keys::flag(machine.tested));
}

void visit_device(Visitor& v, DeviceFigures& device, bool given) {
  Table table(v, "device", given, device.origin);
  table.required("kind", "Selects the kind of device that a rank has: gpu or cpu.",
                 "write kind = \"gpu\" or \"cpu\"",
                 keys::choice<MachineKind>(device.kind,
                                           {{"gpu", MachineKind::gpu}, {"cpu", MachineKind::cpu}}));
  table.required("units", "Sets the streaming multiprocessors of a GPU, or the cores of a node.",
                 "give the streaming multiprocessors of the GPU, or the cores of the node",
                 keys::integer(device.units, between(1, max_count)));
  const bool is_cpu = device.kind == MachineKind::cpu;
  table.optional("threads", "Sets the threads of the rank with which the figures were measured.",
                 keys::left_out_if(!is_cpu, keys::integer(device.threads, between(1, max_count))));
  table.optional("thread_efficiency",
                 "Sets the speed of that many threads, divided by the speed of one and by their "
                 "number.",
                 keys::omitted_if_default(
                     device.thread_efficiency, 1.0,
                     keys::real(device.thread_efficiency, {.min = 0, .max = 4, .min_open = true})));
  table.optional("l2_bytes", "Sets the bytes of the last cache that all units share.",
                 keys::optional_integer(device.l2_bytes, at_least(0)));
  table.optional("power_limit_watts", "Sets the power limit of a device.",
                 optional_real(device.power_limit_watts));
}

void visit_peak(Visitor& v, PeakFigures& peak, bool given) {
  Table table(v, "peak", given, peak.origin);
  const NumberRange range = keys::above(0);
  table.required("float32", "Sets FLOP/s of float32 products without tensor cores.",
                 "give the dense peak in FLOP/s, as float32 = 6.7e13",
                 keys::real(peak.float32, range));
  table.optional("tfloat32", "Sets dense FLOP/s of tfloat32 products.",
                 optional_real(peak.tfloat32));
  table.optional("bfloat16", "Sets dense FLOP/s of bfloat16 products.",
                 optional_real(peak.bfloat16));
  table.optional("float16", "Sets dense FLOP/s of float16 products with float32 sums.",
                 optional_real(peak.float16));
  table.optional("float8", "Sets dense FLOP/s of float8 products.", optional_real(peak.float8));
}

void visit_memory(Visitor& v, MemoryFigures& memory, bool given) {
  Table table(v, "memory", given, memory.origin);
  table.required("bytes", "Sets the bytes of device memory; for a CPU those of the node.",
                 "give the bytes of memory of a device", keys::integer(memory.bytes, at_least(1)));
  table.required("bytes_per_s", "Sets the memory bandwidth of one device or CPU rank.",
                 "give the memory bandwidth in bytes per second, as bytes_per_s = 3.35e12",
                 keys::real(memory.bytes_per_s, keys::above(0)));
  table.optional("node_bytes_per_s",
                 "Sets the memory bandwidth that the CPU ranks of a node share; default: "
                 "bytes_per_s.",
                 optional_real(memory.node_bytes_per_s));
}

void visit_overhead(Visitor& v, OverheadFigures& overhead, bool given) {
  Table table(v, "overhead", given, overhead.origin);
  table.required("launch_seconds", "Sets the gap before each op in seconds.",
                 "give the gap before each op in seconds, as launch_seconds = 2e-6",
                 keys::real(overhead.launch_seconds, between(0, 1)));
  table.optional("reserved_bytes",
                 "Sets the bytes of device memory that context, NCCL and libraries take.",
                 keys::optional_integer(overhead.reserved_bytes, at_least(0)));
}

void visit_scaling(Visitor& v, ScalingFigures& scaling, bool given) {
  Table table(v, "scaling", given, scaling.origin);
  table.required("compute",
                 "Sets the part of the speed of products, convolutions and attention that is left "
                 "in a run of several ranks.",
                 "give the part of the speed that is left in a run of several ranks, as compute = "
                 "0.8; or leave the table out",
                 keys::real(scaling.compute, between(0.01, 1)));
}

void visit_node(Visitor& v, NodeFigures& node, bool given) {
  Table table(v, "node", given, node.origin);
  table.required("devices", "Sets the GPUs of a node; 1 for a CPU.",
                 "give the GPUs of a node, as devices = 8",
                 keys::integer(node.devices, between(1, max_count)));
  table.optional("nics", "Sets the network interfaces of a node that carry training traffic.",
                 keys::optional_integer(node.nics, between(0, max_count)));
  table.optional("cores", "Sets the CPU cores of a node.",
                 keys::optional_integer(node.cores, between(0, max_count)));
  table.optional("memory_bytes", "Sets the bytes of host memory of a node.",
                 keys::optional_integer(node.memory_bytes, at_least(0)));
  table.optional("host_copy_bytes_per_s",
                 "Sets the rate of copies between the host and one device, in one direction.",
                 optional_real(node.host_copy_bytes_per_s));
  table.optional("watts", "Sets the power of a node under load.", optional_real(node.watts));
}

void visit_link(Visitor& v, const char* path, LinkFigures& link, bool given) {
  Table table(v, path, given, link.origin);
  table.required("latency_seconds", "Sets the time of an empty message.",
                 "give the time of an empty message, as latency_seconds = 5e-6",
                 keys::real(link.latency_seconds, between(0, 1)));
  table.required("bytes_per_s", "Sets the rate of large messages in one direction.",
                 "give the rate of large messages in one direction, as bytes_per_s = 4.5e11",
                 keys::real(link.bytes_per_s, keys::above(0)));
  table.optional("message_bytes", "Lists the sizes of the messages of message_bytes_per_s.",
                 keys::numbers(link.message_bytes, keys::above(0), max_points, true));
  table.optional("message_bytes_per_s",
                 "Lists measured rates of messages, with their latency, one for each size.",
                 keys::numbers(link.message_bytes_per_s, keys::above(0), max_points, false));
  table.optional("sum_bytes_per_s", "Sets the rate at which a rank adds received numbers.",
                 optional_real(link.sum_bytes_per_s));
  table.optional("in_network_bytes_per_s",
                 "Sets the rate of sums that switches add, in bytes of the whole data.",
                 optional_real(link.in_network_bytes_per_s));
}

void visit_collective(Visitor& v, const std::string& path, CollectiveFigures& collective,
                      bool given) {
  Table table(v, path, given, collective.origin);
  table.required("ranks", "Lists the numbers of ranks that were measured, all on one node.",
                 "list the numbers of ranks that were measured, as ranks = [2, 4]",
                 keys::numbers(collective.ranks, between(2, max_count), max_points, true));
  table.required("bytes", "Lists the sizes of the whole data that were measured.",
                 "list the sizes of the whole data that were measured",
                 keys::numbers(collective.bytes, keys::above(0), max_points, true));
  table.required("seconds",
                 "Lists measured times: all sizes of the first number of ranks, then of the next.",
                 "list the measured times, those of one number of ranks after the other",
                 keys::numbers(collective.seconds, keys::above(0), max_grid_points, false));
}

void visit_efficiency(Visitor& v, const std::string& path, Efficiency& efficiency, bool given) {
  Table table(v, path, given, efficiency.origin);
  const NumberRange part{.min = 0, .max = max_compute};
  table.optional("compute", "Sets the part of the peak that large problems reach.",
                 optional_real(efficiency.compute, part));
  table.optional("bandwidth", "Sets the part of the memory bandwidth that large problems reach.",
                 optional_real(efficiency.bandwidth, between(0, max_bandwidth)));
  table.optional("tile_m", "Sets the rows of a tile of the result.",
                 keys::optional_integer(efficiency.tile_m, between(0, max_count)));
  table.optional("tile_n", "Sets the columns of a tile of the result.",
                 keys::optional_integer(efficiency.tile_n, between(0, max_count)));
  table.optional("half_k", "Sets the inner dimension at which a product reaches half of compute.",
                 optional_real(efficiency.half_k));
  table.optional("split_k",
                 "Sets the shortest part when a product of few tiles is cut along its inner "
                 "dimension.",
                 keys::optional_integer(efficiency.split_k, between(0, max_count)));
  table.optional("m", "Lists the rows of the results of compute_grid.",
                 keys::numbers(efficiency.m, keys::above(0), max_points, true));
  table.optional("n", "Lists the columns of the results of compute_grid.",
                 keys::numbers(efficiency.n, keys::above(0), max_points, true));
  table.optional("k", "Lists the inner dimensions of compute_grid.",
                 keys::numbers(efficiency.k, keys::above(0), max_points, true));
  table.optional(
      "compute_grid",
      "Lists measured parts of the peak for all m, n and k; k varies fastest, then n.",
      keys::numbers(efficiency.compute_grid, {.min = 0, .max = max_compute, .min_open = true},
                    max_grid_points, false));
  table.optional("bytes", "Lists the bytes of ops of bandwidth_curve.",
                 keys::numbers(efficiency.bytes, keys::above(0), max_points, true));
  table.optional(
      "bandwidth_curve", "Lists measured parts of the memory bandwidth, one for each of bytes.",
      keys::numbers(efficiency.bandwidth_curve, {.min = 0, .max = max_bandwidth, .min_open = true},
                    max_points, false));
}

constexpr const char* types[] = {"all", "float32", "tfloat32", "bfloat16", "float16", "float8"};
constexpr const char* ops_and_classes[] = {
    // Classes, for ops without a table of their own.
    "product_forward", "product_backward", "convolution_forward", "convolution_backward",
    "attention_forward", "attention_backward", "memory_bound",
    // Products, convolutions and attention.
    "linear_forward", "linear_backward_data", "linear_backward_weight",
    "pointwise_convolution_forward", "pointwise_convolution_backward_data",
    "pointwise_convolution_backward_weight", "strided_convolution_forward",
    "strided_convolution_backward_data", "strided_convolution_backward_weight",
    "convolution_backward_data", "convolution_backward_weight",
    // Ops that are limited by memory bandwidth.
    "add", "add_bias", "add_positions", "average_pool_backward", "average_pool_forward",
    "batch_norm_apply", "batch_norm_backward", "batch_norm_inference", "batch_norm_statistics",
    "cast", "cast_tensors", "column_sums", "convolution_statistics_forward", "copy",
    "cross_entropy", "dropout", "dropout_add", "embedding_backward", "embedding_forward", "fill",
    "gather_patches", "gelu_backward", "gelu_forward", "group_norm_backward", "group_norm_forward",
    "layer_scale_backward", "layer_scale_forward", "max_pool_backward", "max_pool_forward",
    "positions_backward", "prepare_images", "relu_backward", "relu_forward", "rotary",
    "row_norm_backward", "row_norm_forward", "row_square_sums", "softmax_gradient",
    "softmax_statistics", "swiglu_backward", "swiglu_forward", "update_ema"};

}  // namespace

const std::vector<std::string>& efficiency_names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const char* type : types)
      for (const char* op : ops_and_classes) names.push_back(fmt::format("{}.{}", type, op));
    for (const char* type : types)
      for (const optim::UpdateRule* rule : optim::rules())
        for (const ops::UpdatePass& pass : {rule->direction, rule->step})
          if (pass.kernel != nullptr) names.push_back(fmt::format("{}.{}", type, pass.op.name));
    return names;
  }();
  return all;
}

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> all{"all_reduce", "tree_all_reduce", "reduce_scatter",
                                            "tree_reduce_scatter", "all_gather"};
  return all;
}

void visit(Visitor& v, Machine& machine, const HasTable& has_table) {
  visit_machine(v, machine);
  visit_device(v, machine.device, has_table("device"));
  visit_peak(v, machine.peak, has_table("peak"));
  visit_memory(v, machine.memory, has_table("memory"));
  visit_overhead(v, machine.overhead, has_table("overhead"));
  visit_scaling(v, machine.scaling, has_table("scaling"));
  visit_node(v, machine.node, has_table("node"));
  v.table("links");
  visit_link(v, "links.node", machine.node_link, has_table("links.node"));
  visit_link(v, "links.network", machine.network, has_table("links.network"));
  v.table("collectives");
  for (const std::string& name : collective_names()) {
    const std::string path = "collectives." + name;
    CollectiveFigures none;
    const bool given = has_table(path);
    visit_collective(v, path, given ? machine.collectives[name] : none, given);
  }
  {
    Table table(v, "file_system", has_table("file_system"), machine.file_system.origin);
    table.optional("read_bytes_per_s", "Sets the rate at which a node reads files.",
                   optional_real(machine.file_system.read_bytes_per_s));
    table.optional("write_bytes_per_s", "Sets the rate at which a node writes files.",
                   optional_real(machine.file_system.write_bytes_per_s));
  }
  {
    Table table(v, "reliability", has_table("reliability"), machine.reliability.origin);
    table.required("node_mtbf_hours", "Sets the mean time between failures of one node.",
                   "give the mean time between failures of one node in hours",
                   keys::real(machine.reliability.node_mtbf_hours, keys::above(0)));
    table.optional("start_seconds", "Sets the time from the start of a job to its first step.",
                   optional_real(machine.reliability.start_seconds));
  }
  {
    Table table(v, "price", has_table("price"), machine.price.origin);
    table.required("gpu_hour_usd", "Sets the price of a device and hour in US dollars.",
                   "give the price of a device and hour in US dollars",
                   keys::real(machine.price.gpu_hour_usd, keys::above(0)));
  }
  v.table("efficiency");
  for (const char* type : types) v.table(fmt::format("efficiency.{}", type).c_str());
  for (const std::string& name : efficiency_names()) {
    const std::string path = "efficiency." + name;
    Efficiency none;
    const bool given = has_table(path);
    visit_efficiency(v, path, given ? machine.efficiency[name] : none, given);
  }
}

}  // namespace trireme::plan
