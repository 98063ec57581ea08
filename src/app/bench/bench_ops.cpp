// SPDX-License-Identifier: Apache-2.0
//
// `trireme bench gemm`, `conv` and `ops`: times of single ops over fixed grids of shapes, as parts
// of the machine's peak and memory bandwidth. `ops --sizes`: times of ops of given sizes on a
// device, as parts of a copy. `step`: times of fixed sequences, beside their prediction.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "bench_machine.hpp"
#include "machine_update.hpp"
#include "op_cases.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/plan/machine/op_time.hpp"

namespace trireme::app {
namespace {

using Shape3 = std::array<std::int64_t, 3>;

/// Returns the time of an op without the gap before it. Of ops that are hardly longer than the gap
/// at least a third remains, as the gap is itself measured.
double work_seconds(const plan::Machine& machine, double seconds) {
  return std::max(seconds - machine.overhead.launch_seconds, seconds / 3);
}

const char* type_name(DType type) {
  return type == DType::bfloat16 ? "bfloat16" : type == DType::float16 ? "float16" : "float32";
}

/// Returns the peak of a type, 0 while it is unknown.
double& peak_of(plan::Machine& machine, DType type) {
  return type == DType::bfloat16  ? machine.peak.bfloat16
         : type == DType::float16 ? machine.peak.float16
                                  : machine.peak.float32;
}

/// A grid of measured calls of one op, in any order.
class Grid {
 public:
  void add(const OpTiming& timing) {
    const ops::OpCall& c = timing.call;
    points_[{c.m, c.n, c.k}] = timing;
  }
  /// Returns the table. All combinations of the m, n and k of its points must be there.
  plan::Efficiency table(const plan::Machine& machine, double peak, plan::Origin origin) const {
    std::array<std::vector<double>, 3> axes;
    for (const auto& [shape, timing] : points_)
      for (std::size_t axis = 0; axis < 3; ++axis)
        axes[axis].push_back(static_cast<double>(shape[axis]));
    for (auto& axis : axes) {
      std::sort(axis.begin(), axis.end());
      axis.erase(std::unique(axis.begin(), axis.end()), axis.end());
    }
    plan::Efficiency e;
    e.origin = std::move(origin);
    for (const auto& [shape, timing] : points_)  // in the order of m, n, k
      e.compute_grid.push_back(timing.call.flops / work_seconds(machine, timing.seconds) / peak);
    TRIREME_EXPECT(e.compute_grid.size() == axes[0].size() * axes[1].size() * axes[2].size());
    e.m = axes[0], e.n = axes[1], e.k = axes[2];
    return e;
  }
  /// Returns the highest rate in FLOP/s.
  double max_rate() const {
    double most = 0;
    for (const auto& [shape, timing] : points_)
      most = std::max(most, timing.call.flops / timing.seconds);
    return most;
  }

 private:
  std::map<Shape3, OpTiming> points_;
};

void print_head() { fmt::print("{:<52} {:>11} {:>9} {:>8}\n", "op", "us", "GFLOP/s", "GB/s"); }
void print_row(const std::string& name, const OpTiming& timing) {
  fmt::print("{:<52} {:>11.1f} {:>9.1f} {:>8.2f}\n", name, timing.seconds * 1e6,
             timing.call.flops / timing.seconds * 1e-9, timing.call.bytes / timing.seconds * 1e-9);
}

/// Measures grids of ops and stores their tables.
class OpBenchmark {
 public:
  OpBenchmark(MachineUpdate& update, std::string subject, const BenchMachineOptions& options)
      : update_(update), options_(options), origin_(MachineUpdate::origin(subject)) {
    print_head();
  }

  void products() {
    // Rows of a micro-batch; widths of layers.
    constexpr std::int64_t rows[] = {32, 256, 2048}, widths[] = {32, 128, 512, 2048};
    measure("", [&](LayerPass pass, const auto& take) {
      for (const std::int64_t row : rows)
        for (const std::int64_t in : widths)
          for (const std::int64_t out : widths)
            take(linear_case(options_.type, pass, row, in, out));
    });
  }
  void convolutions() {
    require_peak();
    // The first layer has 3 channels. The rate depends much on the number of channels, which a
    // vector of the processor should divide.
    constexpr std::int64_t in_channels[] = {3, 16, 32, 64, 128, 256},
                           channels[] = {16, 32, 64, 128, 256},
                           pointwise[] = {32, 64, 128, 256, 512};
    measure_convolutions("", in_channels, channels, 3, 1);
    // Strides, which have another algorithm where those without one use Winograd's.
    measure_convolutions("strided_", channels, channels, 3, 2);
    measure_convolutions("pointwise_", pointwise, pointwise, 1, 1);
  }
  void attention() {
    require_peak();
    for (const bool forward : {true, false}) {
      Grid grid;
      const char* name = forward ? "attention_forward" : "attention_backward";
      for (const std::int64_t context : {64, 256, 1024})
        for (const std::int64_t width : {32, 64, 128}) {
          const OpCase one =
              attention_case(options_.type, forward, 2048 / context, 4, context, width);
          OpTiming timing = time_op(one, options_.rounds, options_.seconds);
          print_row(fmt::format("{} {}", name, one.name), timing);
          // The grid has the two axes context and width; m and n are both the context.
          timing.call.n = 1;
          grid.add(timing);
        }
      store(name, grid);
      store_class(fmt::format("all.{}", name), grid);
    }
  }
  void memory_bound() {
    struct Points {
      std::map<double, double> parts;  // by bytes
    };
    std::map<std::string, Points> all;
    plan::Machine& machine = update_.machine();
    for (const std::int64_t elements : {1 << 12, 1 << 16, 1 << 20, 1 << 24})
      for (const OpCase& one : memory_bound_cases(options_.type, elements)) {
        const OpTiming timing = time_op(one, options_.rounds, options_.seconds);
        print_row(fmt::format("{} {}", one.name, elements), timing);
        all[one.name].parts[timing.call.bytes] =
            timing.call.bytes / work_seconds(machine, timing.seconds) / machine.memory.bytes_per_s;
      }
    for (const auto& [name, points] : all) {
      plan::Efficiency e;
      e.origin = origin_;
      for (const auto& [bytes, part] : points.parts) {
        e.bytes.push_back(bytes);
        e.bandwidth_curve.push_back(part);
      }
      machine.efficiency[fmt::format("{}.{}", type_name(options_.type), name)] = e;
      // Ops without a table of their own are taken as additions.
      if (name == "add") machine.efficiency["all.memory_bound"] = e;
    }
  }

 private:
  /// Sets a peak that is unknown to the rate of a large product. Only products set it: convolutions
  /// by Winograd's algorithm count as direct ones, and so exceed it.
  void require_peak() {
    double& peak = peak_of(update_.machine(), options_.type);
    if (peak > 0) return;
    const OpCase product = linear_case(options_.type, LayerPass::forward, 2048, 2048, 2048);
    const OpTiming timing = time_op(product, options_.rounds, options_.seconds);
    print_row(fmt::format("linear_forward {}", product.name), timing);
    peak = timing.call.flops / timing.seconds;
  }
  /// Measures the cases of each pass: for_each(pass, take) calls take(case). `form`: in front of
  /// the names of the ops; the class is that of the ops without one.
  template <class ForEach>
  void measure(std::string_view form, const ForEach& for_each) {
    for (const LayerPass pass :
         {LayerPass::forward, LayerPass::backward_data, LayerPass::backward_weight}) {
      Grid grid;
      ops::OpCall call;
      for_each(pass, [&](const OpCase& one) {
        const OpTiming timing = time_op(one, options_.rounds, options_.seconds);
        call = timing.call;
        print_row(fmt::format("{}{} {}", form, call.op.name, one.name), timing);
        grid.add(timing);
      });
      store(fmt::format("{}{}", form, call.op.name), grid);
      if (form.empty() && pass != LayerPass::backward_weight)
        store_class(fmt::format("all.{}", plan::class_of(call)), grid);
    }
  }
  /// Measures the passes of convolutions on batches of images, for all pairs of channels.
  void measure_convolutions(std::string_view form, std::span<const std::int64_t> in_channels,
                            std::span<const std::int64_t> out_channels, std::int64_t kernel,
                            std::int64_t stride) {
    // Winograd's algorithm has too few tiles on those of 4 x 4 pixels.
    constexpr std::pair<std::int64_t, std::int64_t> images[] = {{32, 4}, {16, 8}, {16, 32}};
    measure(form, [&](LayerPass pass, const auto& take) {
      for (const auto& [batch, side] : images)
        for (const std::int64_t in : in_channels)
          for (const std::int64_t out : out_channels)
            take(convolution_case(options_.type, pass, batch, side, in, out, kernel, stride));
    });
  }
  void store(const std::string& name, const Grid& grid) {
    plan::Machine& machine = update_.machine();
    double& peak = peak_of(machine, options_.type);
    if (peak == 0) peak = grid.max_rate();  // of products; the others require the peak
    machine.efficiency[fmt::format("{}.{}", type_name(options_.type), name)] =
        grid.table(machine, peak, origin_);
  }
  /// The class takes the best part of the peak.
  void store_class(const std::string& name, const Grid& grid) {
    plan::Efficiency& e = update_.machine().efficiency[name];
    e = {};
    e.origin = origin_;
    e.compute = grid.max_rate() / peak_of(update_.machine(), options_.type);
  }

  MachineUpdate& update_;
  const BenchMachineOptions& options_;
  plan::Origin origin_;
};

/// The ops of a transformer block: rows of tokens, forward and backward, without bias.
std::vector<OpCase> transformer_block(DType type, std::int64_t batch, std::int64_t context,
                                      std::int64_t width) {
  const std::int64_t rows = batch * context, heads = width / 64;
  std::vector<OpCase> ops;
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    for (const LayerPass pass :
         {LayerPass::forward, LayerPass::backward_data, LayerPass::backward_weight})
      ops.push_back(linear_case(type, pass, rows, in, out));
  };
  linear(width, 3 * width);
  for (const bool forward : {true, false})
    ops.push_back(attention_case(type, forward, batch, heads, context, 64));
  linear(width, width);
  linear(width, 4 * width);
  linear(4 * width, width);
  for (const OpCase& one : memory_bound_cases(type, rows * width))
    if (one.name.starts_with("row_norm") || one.name == "add") ops.insert(ops.end(), 2, one);
  for (const OpCase& one : memory_bound_cases(type, 4 * rows * width))
    if (one.name.starts_with("gelu")) ops.push_back(one);
  for (const OpCase& one : memory_bound_cases(type, 12 * width * width))
    if (one.name == "update_adamw") ops.push_back(one);
  return ops;
}

/// The ops of a residual block of two convolutions, forward and backward.
std::vector<OpCase> residual_block(DType type, std::int64_t batch, std::int64_t side,
                                   std::int64_t channels) {
  std::vector<OpCase> ops;
  const std::int64_t elements = batch * side * side * channels;
  for (int layer = 0; layer < 2; ++layer) {
    for (const LayerPass pass :
         {LayerPass::forward, LayerPass::backward_data, LayerPass::backward_weight})
      ops.push_back(convolution_case(type, pass, batch, side, channels, channels, 3));
    for (const OpCase& one : memory_bound_cases(type, elements))
      if (one.name.starts_with("batch_norm")) ops.push_back(one);
  }
  for (const OpCase& one : memory_bound_cases(type, 18 * channels * channels))
    if (one.name == "update_sgd") ops.push_back(one);
  return ops;
}

/// Returns the size that --sizes names.
OpSize parse_op_size(const std::string& word) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  const std::size_t cross = std::min(word.find('x'), word.size());
  const auto rows = parse_integer(word.substr(0, cross)),
             columns = parse_integer(word.substr(std::min(cross + 1, word.size())));
  validate(rows && columns && *rows > 0 && *columns > 0 && *rows <= most / *columns,
           "--sizes {}: is not ROWSxCOLUMNS of at most 2^31 numbers, as in 32768x768",
           printable(word));
  return {*rows, *columns};
}

/// Returns the ops on numbers of this size that have one of the names; without names all. Throws
/// InputError for a name that no op has.
std::vector<OpCase> chosen_ops(const std::vector<std::string>& names, DType type,
                               const OpSize& size) {
  std::vector<OpCase> all = memory_bound_cases(type, size), chosen;
  if (names.empty()) return all;
  for (const std::string& name : names) {
    const auto has_name = [&](const OpCase& one) { return one.name == name; };
    const auto found = std::find_if(all.begin(), all.end(), has_name);
    if (found != all.end()) {
      chosen.push_back(*found);
      continue;
    }
    std::vector<std::string> known;
    for (const OpCase& one : all) known.push_back(one.name);
    throw InputError(fmt::format("--op {}: is no op on numbers of {}x{}; those are {}",
                                 printable(name), size.rows, size.columns, fmt::join(known, ", ")));
  }
  return chosen;
}

/// Returns the device that --device names. Throws Failure if the program has none.
Device device_named(const std::string& word) {
  if (word == "cpu" || (word.empty() && !built_with_cuda())) return {};
  std::string why;
  ensure(cuda_device_count(&why) > 0, "bench ops: no CUDA device: {}", why);
  return choose_cuda_device(0);
}

}  // namespace

void bench_op_sizes(const BenchMachineOptions& options) {
  std::vector<std::pair<OpSize, std::vector<OpCase>>> parts;
  for (const std::string& word : options.sizes) {
    const OpSize size = parse_op_size(word);
    parts.emplace_back(size, chosen_ops(options.ops, options.type, size));
  }
  const Device device = device_named(options.device);
  const KokkosScope kokkos(0, device);
  if (!options.json)
    fmt::print("{:<24} {:>10} {:>8} {:>11} {:>9} {:>8}\n", "op", "rows", "columns", "us", "GB/s",
               "of copy");
  const auto measure = [&](const OpCase& one) {
    return time_op(one, options.rounds, options.seconds, device);
  };
  const auto rate_of = [](const OpTiming& timing) { return timing.call.bytes / timing.seconds; };
  for (const auto& [size, ops] : parts) {
    double copied = 0;
    for (const OpCase& one : ops) {
      const OpTiming timing = measure(one);
      const double rate = rate_of(timing);
      // After an op, so that a profiler sees the kernels of a single op first.
      if (copied == 0) copied = rate_of(measure(copy_case(size.rows * size.columns)));
      if (options.json) {
        const nlohmann::ordered_json row{{"op", one.name},
                                         {"rows", size.rows},
                                         {"columns", size.columns},
                                         {"bytes", timing.call.bytes},
                                         {"seconds", timing.seconds},
                                         {"gb_per_s", rate * 1e-9},
                                         {"of_copy", rate / copied}};
        fmt::print("{}\n", row.dump());
      } else {
        fmt::print("{:<24} {:>10} {:>8} {:>11.1f} {:>9.2f} {:>8.2f}\n", one.name, size.rows,
                   size.columns, timing.seconds * 1e6, rate * 1e-9, rate / copied);
      }
      std::fflush(stdout);
    }
  }
}

void bench_ops(const std::string& subject, const BenchMachineOptions& options) {
  const KokkosScope kokkos;
  MachineUpdate update(options.machine_out);
  OpBenchmark benchmark(update, subject, options);
  if (subject == "gemm") benchmark.products();
  if (subject == "conv") benchmark.convolutions();
  if (subject == "ops") {
    benchmark.attention();
    benchmark.memory_bound();
  }
  update.write();
}

void bench_step(const BenchMachineOptions& options) {
  validate(!options.machine.empty(),
           "bench step: compares with predictions; name a machine, as in --machine cluster.toml");
  const plan::Machine machine = plan::read_machine(options.machine);
  const KokkosScope kokkos;
  const plan::RankShare share{.threads = KokkosScope::threads()};
  struct Sequence {
    std::string name;
    std::vector<OpCase> ops;
  };
  const DType type = options.type;
  const std::vector<Sequence> sequences{
      {"transformer block, 4 x 64 tokens, width 128", transformer_block(type, 4, 64, 128)},
      {"transformer block, 4 x 256 tokens, width 384", transformer_block(type, 4, 256, 384)},
      {"residual block, 32 images of 16 x 16, 32 channels", residual_block(type, 32, 16, 32)},
      {"residual block, 64 images of 8 x 8, 128 channels", residual_block(type, 64, 8, 128)}};
  fmt::print("{:<52} {:>11} {:>12} {:>8}\n", "sequence", "measured ms", "predicted ms", "error");
  for (const Sequence& sequence : sequences) {
    const SequenceTiming timing =
        time_sequence(sequence.ops, options.rounds, std::max(0.2, options.seconds));
    double predicted = 0;
    for (const ops::OpCall& call : timing.calls)
      predicted += plan::op_seconds(machine, call, share);
    fmt::print("{:<52} {:>11.3f} {:>12.3f} {:>+7.1f}%\n", sequence.name, timing.seconds * 1e3,
               predicted * 1e3, (predicted / timing.seconds - 1) * 100);
  }
}

}  // namespace trireme::app
