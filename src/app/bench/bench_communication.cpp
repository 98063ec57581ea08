// SPDX-License-Identifier: Apache-2.0
//
// `trireme bench comm`: times of messages and collective operations over sizes, by the engine that
// training uses.
//
// The figures of a machine file are those of ranks on one node: the link of two ranks, the
// collectives of all ranks, and the memory bandwidth that the ranks share. With several nodes the
// link between the first two nodes is measured.
#include <algorithm>
#include <functional>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "bench_machine.hpp"
#include "machine_update.hpp"
#include "op_cases.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

constexpr std::int64_t sizes[] = {1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25};

class CommunicationBenchmark {
 public:
  CommunicationBenchmark(const comm::Environment& environment, const BenchMachineOptions& options)
      : world_(environment.world()),
        options_(options),
        engine_(train::choose_progress_mode(environment)),
        data_(static_cast<std::size_t>(sizes[std::size(sizes) - 1]) / sizeof(float)),
        scratch_(data_.size()),
        result_(data_.size()) {}

  /// Returns the time of `run` on the slowest rank: the lower quartile of the rounds.
  double seconds_of(const std::function<void()>& run) {
    const auto measure = [&](int times) {
      world_.barrier();
      const double start = monotonic_seconds();
      for (int i = 0; i < times; ++i) run();
      double seconds = (monotonic_seconds() - start) / times;
      world_.all_reduce(std::span(&seconds, 1), comm::Reduction::max);
      return seconds;
    };
    measure(1);
    const int times =
        std::clamp(static_cast<int>(options_.seconds / std::max(measure(2), 1e-7)), 1, 10000);
    std::vector<double> seconds;
    for (int round = 0; round < options_.rounds; ++round) seconds.push_back(measure(times));
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 4];
  }

  /// Returns half of a round trip between rank 0 and `partner`.
  double message(std::int64_t bytes, int partner) {
    const std::span<std::byte> all = std::as_writable_bytes(std::span(data_));
    const auto part = all.first(static_cast<std::size_t>(bytes));
    return seconds_of([&] {
             if (world_.rank() == 0) {
               engine_.wait(engine_.send(world_, part, partner, 1, "bench"));
               engine_.wait(engine_.receive(world_, part, partner, 1, "bench"));
             } else if (world_.rank() == partner) {
               engine_.wait(engine_.receive(world_, part, 0, 1, "bench"));
               engine_.wait(engine_.send(world_, part, 0, 1, "bench"));
             }
           }) /
           2;
  }
  /// Returns the time of a collective of a machine file.
  double collective(const std::string& name, std::int64_t bytes) {
    const comm::SumOrder order =
        name.starts_with("tree") ? comm::SumOrder::tree : comm::SumOrder::library;
    const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(float));
    float* scratch = order == comm::SumOrder::tree ? scratch_.data() : nullptr;
    const auto bounds_of = [&](std::int64_t whole) {
      std::vector<std::int64_t> bounds;
      for (int rank = 0; rank <= world_.size(); ++rank)
        bounds.push_back(whole * rank / world_.size());
      return bounds;
    };
    const std::vector<std::int64_t> elements = bounds_of(count), offsets = bounds_of(bytes);
    return seconds_of([&] {
      // Sums of zeros: repeated sums of other numbers would overflow.
      if (name.ends_with("all_reduce"))
        engine_.wait(engine_.all_reduce(world_, data_.data(), scratch, count, order, "bench"));
      else if (name.ends_with("reduce_scatter"))
        engine_.wait(engine_.reduce_scatter(world_, data_.data(), scratch, elements, result_.data(),
                                            order, "bench"));
      else
        engine_.wait(engine_.all_gather(world_, std::as_writable_bytes(std::span(data_)).data(),
                                        offsets, "bench"));
    });
  }
  /// Returns the memory bandwidth of all ranks together.
  double memory_bandwidth() {
    world_.barrier();
    const OpTiming copy = time_op(copy_case(std::int64_t{1} << 24), options_.rounds, 0.1);
    double rate = copy.call.bytes / copy.seconds;
    world_.all_reduce(std::span(&rate, 1), comm::Reduction::sum);
    return rate;
  }

 private:
  const comm::Communicator& world_;
  const BenchMachineOptions& options_;
  comm::Engine engine_;
  std::vector<float> data_, scratch_, result_;
};

/// Stores the times of a number of ranks in the table of a collective.
void store(plan::CollectiveFigures& figures, int ranks, const std::vector<double>& seconds) {
  const std::vector<double> bytes(std::begin(sizes), std::end(sizes));
  if (figures.bytes != bytes) figures = {figures.origin, {}, bytes, {}};
  const auto at = std::lower_bound(figures.ranks.begin(), figures.ranks.end(), ranks);
  const auto row = (at - figures.ranks.begin()) * static_cast<std::ptrdiff_t>(bytes.size());
  const auto first = figures.seconds.begin() + row;
  if (at != figures.ranks.end() && *at == ranks) {
    std::copy(seconds.begin(), seconds.end(), first);
  } else {
    figures.ranks.insert(at, ranks);
    figures.seconds.insert(first, seconds.begin(), seconds.end());
  }
}

}  // namespace

void bench_communication(const comm::Environment& environment, const BenchMachineOptions& options) {
  const comm::Communicator& world = environment.world();
  const bool writes = world.rank() == 0, one_node = environment.local_size() == world.size();
  validate(world.size() > 1,
           "bench comm: needs several ranks, as in mpirun -n 2 trireme bench comm");
  CommunicationBenchmark benchmark(environment, options);
  const KokkosScope kokkos;
  std::optional<MachineUpdate> update;
  comm::together(world, [&] {
    if (writes) update.emplace(options.machine_out);
  });
  const plan::Origin origin = MachineUpdate::origin(fmt::format("comm, {} ranks", world.size()));
  if (writes) fmt::print("{:<22} {:>10} {:>11} {:>10}\n", "operation", "bytes", "us", "MB/s");
  const auto print = [&](const std::string& name, std::int64_t bytes, double seconds) {
    if (writes)
      fmt::print("{:<22} {:>10} {:>11.1f} {:>10.1f}\n", name, bytes, seconds * 1e6,
                 static_cast<double>(bytes) / seconds * 1e-6);
  };
  // 1. Messages, between nodes if there are several: ranks of a node are neighbors.
  plan::LinkFigures link;
  link.origin = origin;
  link.latency_seconds = benchmark.message(8, one_node ? 1 : environment.local_size());
  for (const std::int64_t bytes : sizes) {
    const double seconds = benchmark.message(bytes, one_node ? 1 : environment.local_size());
    print("message", bytes, seconds);
    link.message_bytes.push_back(static_cast<double>(bytes));
    link.message_bytes_per_s.push_back(static_cast<double>(bytes) / seconds);
  }
  link.bytes_per_s = link.message_bytes_per_s.back();
  if (update && (world.size() == 2 || !one_node || update->machine().node_link.bytes_per_s == 0))
    (one_node ? update->machine().node_link : update->machine().network) = link;
  // 2. Collectives of one node, and its memory.
  for (const char* name :
       {"all_reduce", "tree_all_reduce", "reduce_scatter", "tree_reduce_scatter", "all_gather"}) {
    std::vector<double> seconds;
    for (const std::int64_t bytes : sizes) {
      seconds.push_back(benchmark.collective(name, bytes));
      print(name, bytes, seconds.back());
    }
    if (!update || !one_node) continue;
    plan::CollectiveFigures& figures = update->machine().collectives[name];
    figures.origin = origin;
    store(figures, world.size(), seconds);
  }
  const double memory = benchmark.memory_bandwidth();
  if (writes) fmt::print("memory of all ranks: {:.1f} GB/s\n", memory * 1e-9);
  if (update) {
    // Ranks that share cores would count the bandwidth of a core several times.
    if (one_node && world.size() * KokkosScope::threads() <= available_cores())
      update->machine().memory.node_bytes_per_s = memory;
    update->write();
  }
  world.barrier();
}

}  // namespace trireme::app
