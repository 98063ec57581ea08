// SPDX-License-Identifier: Apache-2.0
//
// The gradient noise scale at 1, 2 and 4 ranks:
// - gradients with a known covariance, put through the reducer, give the exact value;
// - partial gradients of a tensor group are summed before they are measured;
// - the squares of a real model's micro-batches are those of single steps at every layout, no bit
// of
//   the training changes, and planned memory equals used memory;
// - a real model agrees with 1,000 gradients of single micro-batches.

#include "trireme/train/step/noise_scale.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/layout.hpp"
#include "support/mpi.hpp"
#include "support/training.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::train {
namespace {

using parallel::PipelineKind;
using parallel::ShardKind;
using test::Layout;

const comm::Communicator& world() { return test_environment().world(); }

/// Returns the sum of a number over all ranks.
double sum_over_ranks(double mine) {
  std::vector<double> all;
  double sum = 0;
  for (int rank = 0; rank < world().size(); ++rank) {
    std::string bytes(sizeof mine, '\0');
    std::memcpy(bytes.data(), &mine, sizeof mine);
    const std::string sent = world().broadcast(bytes, rank);
    double value = 0;
    std::memcpy(&value, sent.data(), sizeof value);
    sum += value;
  }
  return sum;
}

/// Blocks with several tensors and buckets, and running statistics, which do not count.
parallel::ParameterList make_list() {
  parallel::ParameterList list;
  for (int block = 0; block < 3; ++block) {
    list.begin_block(block);
    const std::string name = std::to_string(block);
    list.declare({.name = name + ".weight", .shape = {17 + 10 * block, 23}});
    list.declare({.name = name + ".mean", .shape = {19}, .role = parallel::Role::statistic});
    list.declare({.name = name + ".bias", .shape = {17 + 10 * block}});
  }
  return list;
}

/// Element i of a tensor's gradient is normal with this mean and standard deviation, for a sample.
double mean_of(std::int64_t i) { return 0.05 * std::sin(static_cast<double>(i)); }
double deviation_of(std::int64_t i) { return 0.3 + 0.2 * std::cos(static_cast<double>(3 * i)); }

TEST(NoiseScale, OfAKnownCovarianceIsExact) {
  constexpr std::int64_t micro_batches = 8, small_batch = 4;
  constexpr int steps = 40;
  const std::int64_t per_rank = micro_batches / world().size();
  for (const ShardKind shard : {ShardKind::none, ShardKind::optimizer}) {
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(std::string(deterministic ? "tree" : "plain") +
                   (shard == ShardKind::none ? "" : ", sharded"));
      comm::Engine engine(comm::Engine::ProgressMode::polled);
      const Device device{};
      const parallel::ParameterList list = make_list();
      const parallel::FlatLayout layout(list, 1024, DType::float32);
      Arena parameters(device, "parameters", 1 << 20), gradients(device, "gradients", 1 << 20),
          workspace(device, "workspace", 1 << 16), library(device, "library", 1 << 16);
      ops::Context context(Stream{device}, workspace, library);
      parallel::ParameterStore store(list, layout, {shard, world(), &engine}, parameters,
                                     gradients);
      parallel::GradientReducer reducer(store, {world(), {}, nullptr}, engine,
                                        {.micro_batches = per_rank,
                                         .deterministic = deterministic,
                                         .measurement = parallel::GradientReducer::Measurement{}},
                                        gradients);
      double norm = 0, trace = 0;
      for (const auto& entry : list.entries()) {
        for (std::int64_t i = 0;
             entry.spec.role == parallel::Role::weight && i < entry.partition.elements(); ++i) {
          norm += mean_of(i) * mean_of(i);
          trace += deviation_of(i) * deviation_of(i);
        }
      }
      // 1. Backward writes the mean gradient of a micro-batch, divided by their number.
      const auto backward = [&](int block, ops::Write write, std::uint64_t micro_batch) {
        for (std::size_t index = 0; index < list.entries().size(); ++index) {
          const auto& entry = list.entries()[index];
          if (entry.block != block) continue;
          const bool statistic = entry.spec.role == parallel::Role::statistic;
          float* to = store.gradient({static_cast<std::int32_t>(index)}).as<float>();
          for (std::int64_t i = 0; i < entry.partition.elements(); ++i) {
            const double noise =
                normal_at(random_key(micro_batch, entry.spec.name), static_cast<std::uint64_t>(i)) /
                std::sqrt(static_cast<double>(small_batch));
            const auto value = static_cast<float>(
                (statistic ? 1000 : mean_of(i) + deviation_of(i) * noise) / micro_batches);
            to[i] = write == ops::Write::assign ? value : to[i] + value;
          }
        }
      };
      // 2. Steps.
      NoiseScaleState state;
      NoiseScale found;
      for (int step = 0; step < steps; ++step) {
        reducer.begin_step(1, true);
        for (std::int64_t m = 0; m < per_rank; ++m) {
          const ops::Write write = reducer.begin_backward(context, 0, 3);
          for (int block = 2; block >= 0; --block) {
            reducer.block_begins(context, block);
            backward(
                block, write,
                static_cast<std::uint64_t>(step * micro_batches + world().rank() * per_rank + m));
            reducer.block_done(context, block);
          }
        }
        const double small = sum_over_ranks(*reducer.finish_measurement(context)) * micro_batches;
        reducer.finish(context);
        double large = 0;
        for (std::size_t index = 0; index < list.entries().size(); ++index) {
          const auto& entry = list.entries()[index];
          const parallel::ParameterShard::OwnedRows& mine =
              store.owned().owned_rows({static_cast<std::int32_t>(index)});
          const std::int64_t elements =
              (mine.row_end - mine.row_begin) * entry.partition.row_elements();
          for (std::int64_t i = 0; entry.spec.role == parallel::Role::weight && i < elements; ++i) {
            const double value = store.flat_gradient().as<float>()[mine.offset + i];
            large += value * value;
          }
        }
        if (shard == ShardKind::optimizer && world().size() > 1) large = sum_over_ranks(large);
        found = add_measurement({small, large}, small_batch, small_batch * micro_batches, state);
      }
      // 3. About 19 steps count in the average, of 8 micro-batches and 1,900 elements. The standard
      //    deviations are about sqrt(2 / (19 * 7 * 1900)) of the trace and, with a norm of 1.5
      //    times its noise, sqrt(4 / 1900 / 19) of the norm: 0.3 % and 1 %.
      EXPECT_NEAR(found.trace, trace, 0.1 * trace);
      EXPECT_NEAR(found.gradient_norm_squared, norm, 0.1 * norm);
      EXPECT_NEAR(found.samples, trace / norm, 0.1 * trace / norm);
    }
  }
}

/// Sequence parallelism: the gradients of norms cover only a part of the rows on each rank, so that
/// of a micro-batch is their sum. The two or more ranks are one tensor group.
TEST(NoiseScale, PartialGradientsAreSummedOverTheTensorGroup) {
  constexpr std::int64_t micro_batches = 3;
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  const Device device{};
  const parallel::TensorGroup tensor(world(), engine, comm::SumOrder::tree, true);
  parallel::ParameterList list;
  list.begin_block(0);
  list.declare(
      {.name = "norm", .shape = {11}, .partial_gradient = parallel::PartialGradient::of_held_rows});
  list.declare({.name = "linear", .shape = {9, 7}});
  list.declare(
      {.name = "bias", .shape = {5}, .partial_gradient = parallel::PartialGradient::of_held_rows});
  const parallel::FlatLayout layout(list, 1024, DType::float32);
  // Tensor rank 0 counts the replicated tensors, and each rank its part of the linear layer.
  const bool first = world().rank() == 0;
  const std::vector<char> counted{first, 1, first};
  const auto value = [](int rank, std::int64_t micro_batch, std::size_t tensor_index,
                        std::int64_t i) {
    return static_cast<float>(
        normal_at(random_key(static_cast<std::uint64_t>(100 * rank + micro_batch),
                             std::to_string(tensor_index)),
                  static_cast<std::uint64_t>(i)));
  };
  for (const bool deterministic : {false, true}) {
    Arena parameters(device, "parameters", 1 << 16), gradients(device, "gradients", 1 << 16),
        workspace(device, "workspace", 1 << 16), library(device, "library", 1 << 16);
    ops::Context context(Stream{device}, workspace, library);
    parallel::ParameterStore store(list, layout, {}, parameters, gradients);
    parallel::GradientReducer reducer(
        store, {{}, {}, &tensor}, engine,
        {.micro_batches = micro_batches,
         .deterministic = deterministic,
         .measurement = parallel::GradientReducer::Measurement{.counted = counted}},
        gradients);
    reducer.begin_step(1, true);
    double expected = 0;
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      const ops::Write write = reducer.begin_backward(context, 0, 1);
      reducer.block_begins(context, 0);
      for (std::size_t index = 0; index < list.entries().size(); ++index) {
        const Tensor gradient = store.gradient({static_cast<std::int32_t>(index)});
        const bool partial =
            list.entries()[index].spec.partial_gradient != parallel::PartialGradient::no;
        for (std::int64_t i = 0; i < gradient.elements(); ++i) {
          float& to = gradient.as<float>()[i];
          to = (write == ops::Write::assign ? 0 : to) + value(world().rank(), m, index, i);
          double whole = 0;
          for (int rank = 0; rank < world().size(); ++rank)
            whole += partial || rank == world().rank() ? value(rank, m, index, i) : 0;
          if (counted[index] != 0) expected += whole * whole;
        }
      }
      reducer.block_done(context, 0);
    }
    const double found = *reducer.finish_measurement(context);
    reducer.finish(context);
    // Differences of float32 sums of up to 12 numbers.
    EXPECT_NEAR(found, expected, 1e-5 * expected) << (deterministic ? "tree" : "plain");
  }
}

std::vector<Layout> layouts() {
  switch (world().size()) {
    case 1: return {{"one", {}}, {"recompute", {}, ShardKind::none, false, 1}};
    case 2:
      return {{"data", {2, 1, 1}},
              {"optimizer", {2, 1, 1}, ShardKind::optimizer},
              {"tensor", {1, 2, 1}},
              {"sequence", {1, 2, 1}, ShardKind::none, true, 2},
              {"pipeline", {1, 1, 2}},
              {"gpipe", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::gpipe},
              {"interleaved", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::interleaved, 2}};
    default:
      return {{"one micro-batch a rank", {4, 1, 1}},
              {"data tensor", {2, 2, 1}, ShardKind::optimizer, true},
              {"data pipeline", {2, 1, 2}, ShardKind::optimizer},
              {"tensor pipeline", {1, 2, 2}, ShardKind::none, true},
              {"pipeline", {1, 1, 4}}};
  }
}

/// Returns the options of a layout; those of 4 replicas have one micro-batch a rank.
ReplicaOptions options_of(const Layout& layout, bool deterministic) {
  ReplicaOptions options = test::small_gpt(4, layout);
  options.deterministic = deterministic;
  if (layout.mesh.data == 4) {
    options.accumulation = 1;
    options.global = 4 * options.micro;
  }
  return options;
}

/// Returns the squared norm of the gradient of one micro-batch, from a step of its own.
double square_alone(std::int64_t micro_batch) {
  static test::ReplicaFixture* const fixture = [] {
    ReplicaOptions options = test::small_gpt(4, Layout{"one", {}});
    options.accumulation = 1;
    options.global = options.micro;
    return new test::ReplicaFixture(options);
  }();
  static std::vector<double> squares;
  while (static_cast<std::int64_t>(squares.size()) <= micro_batch) {
    const double norm = fixture->step(0, static_cast<std::int64_t>(squares.size()));
    squares.push_back(norm * norm);
  }
  return squares[static_cast<std::size_t>(micro_batch)];
}

/// Returns the device of the plain order: small models on a CPU add in tree order.
Device device_of(bool deterministic) {
  return {deterministic ? DeviceKind::cpu : DeviceKind::emulated, 0};
}

/// Calls test(mesh, options, device) for each layout, in plain order and in tree order.
template <class Test>
void for_each_layout(Test&& test) {
  for (const Layout& layout : layouts()) {
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(std::string(layout.name) + (deterministic ? ", tree" : ", plain"));
      const parallel::Mesh mesh(layout.mesh, world());
      test(mesh, options_of(layout, deterministic), device_of(deterministic));
    }
  }
}

TEST(NoiseScale, MicroBatchesHaveTheSquaresOfStepsOfTheirOwn) {
  for_each_layout([](const parallel::Mesh& mesh, ReplicaOptions options, Device device) {
    options.noise_scale = true;
    test::ReplicaFixture fixture(options, 1, mesh, device);
    fixture.measures_noise = true;
    fixture.gradients(mesh.coordinates.data_rank * options.accumulation);
    const std::int64_t count = options.accumulation * mesh.shape.data;
    double expected = 0;
    for (std::int64_t m = 0; m < count; ++m) expected += square_alone(m);
    const auto n = static_cast<double>(count);
    // Float32 sums in another order, and differences of sums.
    EXPECT_NEAR(n * n * sum_over_ranks(fixture.gradient_squares), expected, 1e-4 * expected);
  });
}

TEST(NoiseScale, ChangesNoBitOfTheTraining) {
  for_each_layout([](const parallel::Mesh& mesh, ReplicaOptions options, Device device) {
    const test::TrainingResult plain = test::train_three_steps(options, mesh, device);
    options.noise_scale = true;
    test::ReplicaFixture fixture(options, 1, mesh, device);
    std::vector<double> norms;
    for (std::int64_t step = 0; step < 3; ++step) {
      fixture.measures_noise = step != 1;
      norms.push_back(fixture.step(
          0.01, (step * mesh.shape.data + mesh.coordinates.data_rank) * options.accumulation));
    }
    fixture.engine.quiesce();
    std::vector<float> master;
    test::append_values(fixture.replica, fixture.store().flat_master(), master);
    EXPECT_EQ(norms, plain.norms);
    test::expect_same_bits(master, plain.master);
  });
}

TEST(NoiseScale, ItsBuffersAreInThePlan) {
  for_each_layout([](const parallel::Mesh& mesh, ReplicaOptions options, Device device) {
    options.noise_scale = true;
    test::ReplicaFixture fixture(options, 1, mesh, device);
    fixture.measures_noise = true;
    for (int step = 0; step < 2; ++step)
      fixture.step(1e-3, mesh.coordinates.data_rank * options.accumulation);
    fixture.evaluate(fixture.batch(0));
    fixture.engine.quiesce();
    EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
  });
}

TEST(NoiseScale, OfARealModelAgreesWithAThousandSingleGradients) {
  constexpr std::int64_t single = 1000, micro_batches = 8;
  // 1. The gradients of single micro-batches, and the mean and variance of all of them.
  ReplicaOptions options = test::small_gpt(1);
  options.optimizer.rule = &optim::rule("sgd");
  options.model.as<model::TransformerOptions>().dropout = 0;
  options.bucket_bytes = 8192;
  std::vector<std::int64_t> order(single);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  test::ReplicaFixture alone(options);
  std::vector<double> sums;
  double squares = 0;
  for (const std::int64_t micro_batch : order) {
    alone.gradients(micro_batch);
    const Tensor& gradient = alone.store().flat_gradient();
    sums.resize(static_cast<std::size_t>(gradient.elements()));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const double value = gradient.as<float>()[i];
      sums[i] += value;
      squares += value * value;
    }
  }
  double mean_square = 0;
  for (const double sum : sums) mean_square += sum / single * (sum / single);
  const auto small_batch = static_cast<double>(options.micro);
  const double variance = (squares - single * mean_square) / (single - 1),
               trace = small_batch * variance, norm = mean_square - variance / single;

  // 2. Steps of 8 micro-batches over the same 1,000, measured.
  options.accumulation = micro_batches / world().size();
  options.global = micro_batches * options.micro;
  options.noise_scale = true;
  const parallel::Mesh mesh({world().size(), 1, 1}, world());
  test::ReplicaFixture fixture(options, 1, mesh);
  double norm_sum = 0, trace_sum = 0;
  for (std::int64_t step = 0; step < single / micro_batches; ++step) {
    fixture.replica.begin_step(true);
    train::PipelineStage& stage = fixture.replica.stage();
    for (const parallel::PipelineAction& action : stage.schedule()) {
      if (action.forward) {
        const std::int64_t at = step * micro_batches +
                                mesh.coordinates.data_rank * options.accumulation +
                                action.micro_batch;
        const data::MicroBatch batch = fixture.batch(order[static_cast<std::size_t>(at)]);
        stage.forward(action, &batch);
      } else {
        stage.backward(action);
      }
    }
    const double sum =
        sum_over_ranks(*fixture.reducer().finish_measurement(fixture.replica.context()));
    fixture.reducer().finish(fixture.replica.context());
    const double grad_norm = fixture.optimizer().step(fixture.replica.context(), 0, true).grad_norm;
    fixture.store().start_gather(fixture.replica.context());
    NoiseScaleState one_step;
    const NoiseScale found =
        add_measurement({.small = micro_batches * sum, .large = grad_norm * grad_norm},
                        options.micro, options.global, one_step);
    norm_sum += found.gradient_norm_squared;
    trace_sum += found.trace;
  }
  // 3. Both are unbiased estimates from the same 1,000 gradients. They differ by the variance
  //    between the steps, to which 124 differences contribute: sqrt(2 / 124) of |g|^2 / 8.
  const double steps = single / micro_batches;
  EXPECT_NEAR(trace_sum / steps, trace, 0.1 * trace);
  EXPECT_NEAR(norm_sum / steps, norm, 0.1 * norm);
  EXPECT_NEAR(trace_sum / norm_sum, trace / norm, 0.1 * trace / norm);
}

}  // namespace
}  // namespace trireme::train
