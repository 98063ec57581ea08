// SPDX-License-Identifier: Apache-2.0
//
// The time of one op from a machine's figures.
//
// op_seconds(): find the table of efficiencies; scale peak and bandwidth to the rank's share of the
// machine; the slower one of compute and memory decides; add the launch gap. What a run of several
// ranks loses is charged here, in the compute time of each op, and nowhere else.
#include "trireme/plan/machine/op_time.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "interpolate.hpp"
#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

/// Returns the name of the type in which the products of a call are computed.
std::string_view type_of(const ops::OpCall& call, const RankShare& share) {
  if (call.float8) return "float8";
  switch (call.type) {
    case ElementType::bfloat16: return "bfloat16";
    case ElementType::float16: return "float16";
    case ElementType::float32: break;
  }
  return share.tfloat32 ? "tfloat32" : "float32";
}

/// Returns the peak in FLOP/s. A type without a peak of its own has that of float32, except float8.
double peak_of(const Machine& machine, const ops::OpCall& call, const RankShare& share) {
  const std::string_view type = type_of(call, share);
  const PeakFigures& peak = machine.peak;
  double own = peak.float32;
  if (type == "float8") own = peak.float8;
  if (type == "bfloat16") own = peak.bfloat16;
  if (type == "float16") own = peak.float16;
  if (type == "tfloat32") own = peak.tfloat32;
  validate(own > 0 || type != "float8" || machine.device.kind == MachineKind::cpu,
           "machine {}: has no peak for float8 ([peak] float8); use precision.compute = "
           "\"bfloat16\"",
           machine.name);
  return own > 0 ? own : peak.float32;
}

/// Returns the beginning of the name of a table for convolutions of this form, by the size of the
/// im2col matrix relative to the image. The size of the image is what the other two tensors leave
/// of the bytes. It may include an addend of the same size, which halves the ratio:
///
///   1x1, any stride   up to 1      "pointwise_"
///   3x3, stride 2     9/8 to 9/4   "strided_"; up to 4 (images of 3x3) for odd sizes above 1
///   3x3, stride 1     9/2 to 9     ""
///   7x7, stride 2     49/8 or more ""
std::string_view convolution_form(const ops::OpCall& call) {
  if (call.op.kind != ops::ProductKind::convolution || call.m == 0) return "";
  const auto m = static_cast<double>(call.m), n = static_cast<double>(call.n),
             k = static_cast<double>(call.k);
  const double size = call.type == ElementType::float32 ? 4 : 2;
  double columns = m * k, others = (n * k + m * n) * size;
  if (call.op.pass == ops::ProductPass::backward_data)
    columns = m * n, others = (m * k + n * k) * size;
  // The gradient of the weight is float32.
  if (call.op.pass == ops::ProductPass::backward_weight)
    columns = n * k, others = m * k * size + m * n * 4;
  const double image = (call.bytes - others) / size;
  return columns < 1.06 * image ? "pointwise_" : columns < 4.2 * image ? "strided_" : "";
}

/// Returns the part of the work in whole waves of whole tiles that the product needs.
double quantization(const Machine& machine, const Efficiency& e, const ops::OpCall& call) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t units = std::max<std::int64_t>(1, machine.device.units),
                     tiles = std::max<std::int64_t>(1, call.products) * up(call.m, e.tile_m) *
                             up(call.n, e.tile_n);
  // A product of few tiles is cut along its inner dimension, so that more units have work.
  std::int64_t parts = 1;
  if (e.split_k > 0 && tiles < units)
    parts = std::max<std::int64_t>(1, std::min(units / tiles, call.k / e.split_k));
  const double waves = static_cast<double>(up(tiles * parts, units));
  const double work = static_cast<double>(std::max<std::int64_t>(1, call.products)) *
                      static_cast<double>(call.m) * static_cast<double>(call.n);
  return work / (waves * static_cast<double>(units) * static_cast<double>(e.tile_m * e.tile_n) /
                 static_cast<double>(parts));
}

double grid_value(const Efficiency& e, const ops::OpCall& call) {
  const Position at[3] = {position_of(static_cast<double>(call.m), e.m),
                          position_of(static_cast<double>(call.n), e.n),
                          position_of(static_cast<double>(call.k), e.k)};
  double logarithm = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    std::size_t index[3];
    for (int axis = 0; axis < 3; ++axis) {
      const bool upper = (corner >> axis & 1) != 0;
      weight *= upper ? at[axis].part : 1 - at[axis].part;
      index[axis] = at[axis].low + (upper ? 1 : 0);
    }
    if (weight == 0) continue;
    logarithm +=
        weight *
        std::log(e.compute_grid[(index[0] * e.n.size() + index[1]) * e.k.size() + index[2]]);
  }
  return std::exp(logarithm);
}

/// Returns the part of the peak that a call reaches; 0: it is not limited by computation.
double compute_part(const Machine& machine, const Efficiency& e, const ops::OpCall& call) {
  if (!e.compute_grid.empty() && call.m > 0) return grid_value(e, call);
  double part = e.compute;
  if (call.m == 0) return part;
  if (e.tile_m > 0) part *= quantization(machine, e, call);
  if (e.half_k > 0) part *= static_cast<double>(call.k) / (static_cast<double>(call.k) + e.half_k);
  return part;
}

/// Returns the part of the memory bandwidth that a call reaches; 0: it is not limited by memory.
double bandwidth_part(const Efficiency& e, const ops::OpCall& call) {
  return e.bytes.empty() ? e.bandwidth : interpolate(call.bytes, e.bytes, e.bandwidth_curve);
}

/// Returns the speed of a CPU rank relative to one with the threads of the measurement and the node
/// for itself; 1 for a GPU.
double speed_of_share(const Machine& machine, const RankShare& share) {
  const DeviceFigures& device = machine.device;
  if (device.kind != MachineKind::cpu) return 1;
  const auto measured = static_cast<double>(device.threads);
  const auto threads = static_cast<double>(share.threads > 0 ? share.threads : device.threads);
  // Efficiency of threads, linear from 1 of a single one to the measured one.
  const auto efficiency = [&](double count) {
    if (measured <= 1) return 1.0;
    return std::max(0.05, 1 + (device.thread_efficiency - 1) * (count - 1) / (measured - 1));
  };
  const double wanted =
                   threads * static_cast<double>(std::max<std::int64_t>(1, share.ranks_on_node)),
               cores = static_cast<double>(device.units);
  return threads * efficiency(threads) / (measured * efficiency(measured)) *
         std::min(1.0, cores / wanted);
}

}  // namespace

std::string class_of(const ops::OpCall& call) {
  if (call.flops == 0) return "memory_bound";
  static constexpr std::string_view kinds[] = {"product", "convolution", "attention"};
  return fmt::format("{}_{}", kinds[static_cast<std::size_t>(call.op.kind)],
                     call.op.pass == ops::ProductPass::forward ? "forward" : "backward");
}

const Efficiency& efficiency_of(const Machine& machine, const ops::OpCall& call,
                                const RankShare& share) {
  const std::string_view type = type_of(call, share),
                         op = call.flops > 0 && !call.op.unfused.empty() ? call.op.unfused
                                                                         : call.op.name;
  std::vector<std::string> names;
  if (const std::string_view form = convolution_form(call); !form.empty())
    names.push_back(fmt::format("{}{}", form, op));
  names.emplace_back(op);
  names.push_back(class_of(call));
  for (const std::string& name : names)
    for (const std::string_view types : {type, std::string_view("all")})
      if (const auto found = machine.efficiency.find(fmt::format("{}.{}", types, name));
          found != machine.efficiency.end())
        return found->second;
  throw Failure(
      fmt::format("machine {}: has no table [efficiency.all.{}]", machine.name, names.back()));
}

double op_seconds(const Machine& machine, const ops::OpCall& call, const RankShare& share) {
  const Efficiency& efficiency = efficiency_of(machine, call, share);
  const double speed = speed_of_share(machine, share);
  double seconds = 0;
  if (const double part = compute_part(machine, efficiency, call); call.flops > 0 && part > 0) {
    const double scaling = share.ranks > 1 ? machine.scaling.compute : 1;
    seconds = call.flops / (peak_of(machine, call, share) * part * speed * scaling);
  }
  if (const double part = bandwidth_part(efficiency, call); call.bytes > 0 && part > 0) {
    double rate = machine.memory.bytes_per_s * part * speed;
    const double node = machine.memory.node_bytes_per_s > 0 ? machine.memory.node_bytes_per_s
                                                            : machine.memory.bytes_per_s;
    const bool in_cache = call.bytes < static_cast<double>(machine.device.l2_bytes);
    if (machine.device.kind == MachineKind::cpu && share.ranks_on_node > 1 && !in_cache)
      rate = std::min(rate, node * part / static_cast<double>(share.ranks_on_node));
    seconds = std::max(seconds, call.bytes / rate);
  }
  return seconds + machine.overhead.launch_seconds;
}

}  // namespace trireme::plan
