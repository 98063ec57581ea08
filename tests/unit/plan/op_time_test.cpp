// SPDX-License-Identifier: Apache-2.0
//
// Times of ops on hand-computed cases.
#include "trireme/plan/machine/op_time.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

/// A GPU of 4 units with 1e12 FLOP/s in float32, 4e12 in bfloat16 and 1e11 bytes/s.
Machine small_gpu() {
  Machine machine;
  machine.name = "small";
  machine.device.units = 4;
  machine.peak.float32 = 1e12;
  machine.peak.bfloat16 = 4e12;
  machine.memory.bytes_per_s = 1e11;
  machine.overhead.launch_seconds = 1e-6;
  for (const char* name : {"product_forward", "product_backward", "convolution_forward",
                           "convolution_backward", "attention_forward", "attention_backward"}) {
    machine.efficiency[std::string("all.") + name].compute = 0.5;
    machine.efficiency[std::string("all.") + name].bandwidth = 0.8;
  }
  machine.efficiency["all.memory_bound"].bandwidth = 0.8;
  return machine;
}

ops::OpCall product(std::int64_t m, std::int64_t n, std::int64_t k) {
  ops::OpCall call;
  call.op = "linear_forward";
  call.products = 1;
  call.m = m, call.n = n, call.k = k;
  call.flops = 2.0 * static_cast<double>(m * n * k);
  call.bytes = 4.0 * static_cast<double>(m * n + m * k + n * k);
  return call;
}

/// An op without products that moves `bytes`.
ops::OpCall transfer(ops::Op op, double bytes) {
  ops::OpCall call;
  call.op = op;
  call.bytes = bytes;
  return call;
}

TEST(OpTime, TheSlowerOneOfComputeAndMemoryDecides) {
  const Machine machine = small_gpu();
  // 2e9 FLOP at 5e11 FLOP/s are 4 ms; 12 MB at 8e10 bytes/s are 0.15 ms.
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(1000, 1000, 1000)), 4e-3 + 1e-6);
  // An inner dimension of 1: 2e6 FLOP are 4 us; 4.008 MB are 50.1 us.
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(1000, 1000, 1)), 5.01e-5 + 1e-6);
  EXPECT_DOUBLE_EQ(op_seconds(machine, transfer("gelu_forward", 8e9)), 0.1 + 1e-6);
}

TEST(OpTime, SeveralRanksLoseSpeedOfComputeOnly) {
  Machine machine = small_gpu();
  machine.scaling.compute = 0.8;
  const ops::OpCall call = product(1000, 1000, 1000);
  EXPECT_DOUBLE_EQ(op_seconds(machine, call, {.ranks = 1}), 4e-3 + 1e-6);
  EXPECT_DOUBLE_EQ(op_seconds(machine, call, {.ranks = 2}), 5e-3 + 1e-6);
  EXPECT_DOUBLE_EQ(op_seconds(machine, call, {.ranks = 4096}), 5e-3 + 1e-6);
  // Memory bandwidth and the launch gap stay as they are.
  const ops::OpCall copy = transfer("copy", 8e9);
  EXPECT_DOUBLE_EQ(op_seconds(machine, copy, {.ranks = 2}), op_seconds(machine, copy));
}

TEST(OpTime, TypesHaveTheirPeak) {
  const Machine machine = small_gpu();
  ops::OpCall call = product(1000, 1000, 1000);
  call.type = ElementType::bfloat16;
  EXPECT_DOUBLE_EQ(op_seconds(machine, call), 1e-3 + 1e-6);
  // No peak for float16: that of float32.
  call.type = ElementType::float16;
  EXPECT_DOUBLE_EQ(op_seconds(machine, call), 4e-3 + 1e-6);
  call.float8 = true;
  EXPECT_THROW(op_seconds(machine, call), InputError);
}

TEST(OpTime, WholeWavesOfWholeTilesAreComputed) {
  Machine machine = small_gpu();
  Efficiency& e = machine.efficiency["all.product_forward"];
  e.bandwidth = 0;
  e.tile_m = e.tile_n = 100;
  // 4 tiles on 4 units: one full wave of useful work.
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(200, 200, 1000)), 8e7 / 5e11 + 1e-6);
  // 5 tiles: two waves, so the time of 8 tiles.
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(500, 100, 1000)), 8 * 2e7 / 5e11 + 1e-6);
  // 201 rows: 3 x 2 tiles in two waves.
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(201, 200, 1000)), 8 * 2e7 / 5e11 + 1e-6);
  // One tile: a quarter of the units works, unless the product is cut along k.
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(100, 100, 1000)), 4 * 2e7 / 5e11 + 1e-6);
  e.split_k = 500;
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(100, 100, 1000)), 2 * 2e7 / 5e11 + 1e-6);
  e.split_k = 250;
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(100, 100, 1000)), 2e7 / 5e11 + 1e-6);
  e.half_k = 1000;
  EXPECT_DOUBLE_EQ(op_seconds(machine, product(100, 100, 1000)), 2 * 2e7 / 5e11 + 1e-6);
}

TEST(OpTime, GridsAndCurvesAreInterpolatedInLogarithms) {
  Machine machine = small_gpu();
  Efficiency grid;
  grid.m = {100, 10000};
  grid.n = {10};
  grid.k = {10, 1000};
  grid.compute_grid = {0.1, 0.2, 0.4, 0.8};
  machine.efficiency["float32.linear_forward"] = grid;
  const auto part = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const ops::OpCall call = product(m, n, k);
    return call.flops / (op_seconds(machine, call) - 1e-6) / 1e12;
  };
  EXPECT_NEAR(part(100, 10, 10), 0.1, 1e-9);
  EXPECT_NEAR(part(1000, 10, 10), 0.2, 1e-9);                    // sqrt(0.1 * 0.4)
  EXPECT_NEAR(part(1000, 10, 100), std::sqrt(0.2 * 0.4), 1e-9);  // the middle of all four
  EXPECT_NEAR(part(1000000, 7, 5000), 0.8, 1e-9);                // outside: the corner
  machine.efficiency["all.copy"].bytes = {1e3, 1e5};
  machine.efficiency["all.copy"].bandwidth_curve = {4, 1};
  EXPECT_NEAR(op_seconds(machine, transfer("copy", 1e4)), 1e4 / 2e11 + 1e-6, 1e-15);
}

TEST(OpTime, OpsTakeTheirOwnTableThenThatOfTheirClass) {
  Machine machine = small_gpu();
  const auto table = [&](const ops::OpCall& call) { return &efficiency_of(machine, call); };
  const auto named = [&](const char* name) { return &machine.efficiency.at(name); };
  ops::OpCall call = product(8, 8, 8);
  EXPECT_EQ(table(call), named("all.product_forward"));
  call.op = "linear_backward_weight";
  EXPECT_EQ(table(call), named("all.product_backward"));
  call.op = "attention_backward";
  EXPECT_EQ(table(call), named("all.attention_backward"));
  machine.efficiency["all.linear_forward"].compute = 0.5;
  machine.efficiency["bfloat16.linear_forward"].compute = 0.5;
  call.op = "linear_gelu_forward";
  EXPECT_EQ(table(call), named("all.linear_forward"));
  call.type = ElementType::bfloat16;
  EXPECT_EQ(table(call), named("bfloat16.linear_forward"));
  // The part of a fused op that has no products.
  EXPECT_EQ(table(transfer("linear_gelu_forward", 8)), named("all.memory_bound"));
}

TEST(OpTime, KernelsOfOnePixelAndStridesHaveTheirOwnTables) {
  Machine machine = small_gpu();
  for (const char* pass : {"forward", "backward_data", "backward_weight"})
    for (const char* form : {"pointwise_", "strided_", ""})
      machine.efficiency[std::string("all.") + form + "convolution_" + pass].compute = 0.5;
  // 10 images of `side` pixels, 32 to 64 channels. Returns whether the call has a table of this
  // form.
  const auto is_form = [&](const char* form, ops::Op op, std::int64_t kernel, std::int64_t stride,
                           std::int64_t side, bool addend) {
    const std::int64_t image = 10 * side * side, result = (side + stride - 1) / stride,
                       pixels = 10 * result * result, patch = 32 * kernel * kernel;
    ops::OpCall call;
    call.op = op;
    call.flops = 1;
    const bool data = op.pass == ops::ProductPass::backward_data,
               weight = op.pass == ops::ProductPass::backward_weight;
    call.m = weight ? 64 : pixels;
    call.n = data || weight ? patch : 64;
    call.k = data ? 64 : weight ? pixels : patch;
    call.bytes =
        4.0 * static_cast<double>(image * 32 * (data && addend ? 2 : 1) + pixels * 64 + patch * 64);
    return &efficiency_of(machine, call) ==
           &machine.efficiency.at(fmt::format("all.{}{}", form, op.name));
  };
  for (const ops::Op pass : {ops::Op("convolution_forward"), ops::Op("convolution_backward_data"),
                             ops::Op("convolution_backward_weight")})
    for (const bool addend : {false, true})
      for (const std::int64_t side : {2, 3, 5, 7, 8, 28, 56}) {
        EXPECT_TRUE(is_form("pointwise_", pass, 1, 1, side, addend)) << pass.name << side;
        EXPECT_TRUE(is_form("pointwise_", pass, 1, 2, side, addend)) << pass.name << side;
        EXPECT_TRUE(is_form("strided_", pass, 3, 2, side, addend)) << pass.name << side;
        EXPECT_TRUE(is_form("", pass, 3, 1, side, addend)) << pass.name << side;
        EXPECT_TRUE(is_form("", pass, 7, 2, side, addend)) << pass.name << side;
      }
}

TEST(OpTime, RanksOfACpuShareCoresAndMemory) {
  Machine machine = small_gpu();
  machine.device.kind = MachineKind::cpu;
  machine.device.threads = 4;
  machine.device.thread_efficiency = 0.7;
  machine.device.l2_bytes = 1000000;
  machine.memory.node_bytes_per_s = 1.5e11;
  machine.overhead.launch_seconds = 0;
  const ops::OpCall call = product(1000, 1000, 1000);
  const double alone = op_seconds(machine, call);
  // One thread has an efficiency of 1, two of 0.9, four of 0.7.
  EXPECT_DOUBLE_EQ(op_seconds(machine, call, {.threads = 1}), alone * 2.8);
  EXPECT_NEAR(op_seconds(machine, call, {.threads = 2}), alone * 2.8 / 1.8, 1e-12);
  // 4 ranks of 4 threads on 4 cores.
  EXPECT_DOUBLE_EQ(op_seconds(machine, call, {.ranks_on_node = 4}), alone * 4);
  // Two ranks of two threads: each could read 1e11 * 1.8 / 2.8 bytes/s, 1.5e11 in all.
  const RankShare half{.threads = 2, .ranks_on_node = 2};
  EXPECT_NEAR(op_seconds(machine, transfer("add", 8e9), half), 8e9 / (0.8 * 1e11 * 1.8 / 2.8),
              1e-9);
  machine.memory.node_bytes_per_s = 1e11;
  EXPECT_NEAR(op_seconds(machine, transfer("add", 8e9), half), 8e9 / (0.8 * 1e11 / 2), 1e-9);
  // In the cache they do not share it.
  EXPECT_NEAR(op_seconds(machine, transfer("add", 8e5), half), 8e5 / (0.8 * 1e11 * 1.8 / 2.8),
              1e-12);
}

}  // namespace
}  // namespace trireme::plan
