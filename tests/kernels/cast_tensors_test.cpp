// SPDX-License-Identifier: Apache-2.0
//
// Casts of many tensors at once: the bits of casts one by one, for every pair of types, assigned
// and added, with channels to drop, at any address, and for more tensors than one launch takes.
// Also the gradients in 16 bits that wait for such a cast.

#include "trireme/ops/cast_tensors.hpp"

#include <fmt/format.h>

#include "reference.hpp"
#include "trireme/kernels/cast_tensors.hpp"

namespace trireme::test {
namespace {

using ops::TensorCast;
using ops::Write;

constexpr std::pair<DType, DType> type_pairs[] = {{DType::float32, DType::bfloat16},
                                                  {DType::float32, DType::float16},
                                                  {DType::float32, DType::float32},
                                                  {DType::bfloat16, DType::float32},
                                                  {DType::float16, DType::float32}};

/// Two lists of casts with equal operands and equal old results.
struct TwoLists {
  void add(OpsFixture& f, DType from, const Shape& x_shape, DType to, const Shape& y_shape,
           Write write, std::int64_t first = 0) {
    const std::string name = fmt::format("{}", together.size());
    const auto from_first = [&](const Tensor& all, const Shape& shape) {
      return all.rows(first, first + shape.elements()).reshaped(shape);
    };
    const Tensor x = from_first(f.random(from, {x_shape.elements() + first}, "x" + name), x_shape);
    for (std::vector<TensorCast>* list : {&together, &alone})
      list->push_back(
          {.x = x,
           .y = from_first(f.random(to, {y_shape.elements() + first}, "y" + name), y_shape),
           .write = write});
  }
  std::vector<TensorCast> together, alone;
};

/// Casts one list in one call, the other with `fusions` = false, and compares the results.
void expect_same_results(OpsFixture& f, const TwoLists& lists) {
  ops::Context plain(f.context.stream(), f.workspace, f.library, f.context.target(),
                     {.fusions = false});
  ops::cast_tensors(f.context, lists.together);
  ops::cast_tensors(plain, lists.alone);
  for (std::size_t i = 0; i < lists.alone.size(); ++i)
    expect_same_bytes(lists.together[i].y, lists.alone[i].y, fmt::format("tensor {}", i));
  EXPECT_EQ(f.context.counters().bytes, plain.counters().bytes);
  EXPECT_EQ(f.context.counters().calls, plain.counters().calls);
  EXPECT_EQ(f.workspace.used_bytes(), 0);
}

TEST(CastTensors, HasTheBitsOfCastsOneByOne) {
  OpsFixture f;
  TwoLists lists;
  // Shorter than a pack, one piece of work and the numbers beside it, and several pieces.
  for (const std::int64_t n : {1, 7, 4095, 4096, 4097, 40009}) {
    for (const auto& [from, to] : type_pairs) {
      lists.add(f, from, {n}, to, {n}, Write::assign);
      if (to == DType::float32) lists.add(f, from, {n}, to, {n}, Write::add);
    }
  }
  ASSERT_LE(lists.alone.size(), kernels::max_tensor_casts);
  expect_same_results(f, lists);
}

TEST(CastTensors, BeginsAtAnyAddress) {
  for (const std::int64_t first : {1, 2, 4, 8}) {
    OpsFixture f;
    TwoLists lists;
    for (const auto& [from, to] : type_pairs) {
      lists.add(f, from, {5003}, to, {5003}, Write::assign, first);
      if (to == DType::float32) lists.add(f, from, {5003}, to, {5003}, Write::add, first);
    }
    expect_same_results(f, lists);
  }
}

/// As the gradient of the stem's weight, whose channels are padded.
TEST(CastTensors, DropsFurtherChannels) {
  for (const DType dtype : compute_types) {
    for (const Write write : {Write::assign, Write::add}) {
      OpsFixture f;
      TwoLists lists;
      lists.add(f, dtype, {64, 7, 7, 8}, DType::float32, {64, 7, 7, 3}, write);
      lists.add(f, dtype, {64}, DType::float32, {64}, write);
      lists.add(f, dtype, {5, 3, 3, 8}, DType::float32, {5, 3, 3, 1}, write);
      const Values x = values(lists.alone[0].x), before = values(lists.alone[0].y);
      Values expected(before.size());
      for (std::size_t i = 0; i < before.size(); ++i)
        expected[i] = x[i / 3 * 8 + i % 3] + (write == Write::add ? before[i] : 0);
      expect_same_results(f, lists);
      expect_close(lists.together[0].y, expected, 0, unit_roundoff(DType::float32));
    }
  }
}

TEST(CastTensors, TakesMoreTensorsThanOneLaunch) {
  for (const std::size_t more : {0, 1, 70}) {
    OpsFixture f;
    TwoLists lists;
    for (std::size_t i = 0; i < kernels::max_tensor_casts + more; ++i)
      lists.add(f, DType::bfloat16, {static_cast<std::int64_t>(i % 9)}, DType::float32,
                {static_cast<std::int64_t>(i % 9)}, i % 2 == 0 ? Write::assign : Write::add);
    expect_same_results(f, lists);
  }
}

TEST(CastTensors, AnEmptyListIsNoOp) {
  OpsFixture f;
  ops::cast_tensors(f.context, {});
  EXPECT_EQ(f.context.counters().calls, 0);
}

TEST(NarrowGradients, AreConvertedTogetherAndFreed) {
  OpsFixture real, meta(DeviceKind::meta);
  std::int64_t peaks[2], used[2];
  for (OpsFixture* f : {&real, &meta}) {
    const bool numbers = !f->context.meta();
    Arena memory(f->context.stream().device, "gradients", numbers ? 1 << 20 : 0);
    // Other gradients below are not touched.
    const Tensor below = memory.allocate(DType::float32, {100});
    ops::NarrowGradients narrow(memory);
    narrow.convert(f->context);
    std::vector<const void*> addresses;
    for (int bucket = 0; bucket < 3; ++bucket) {
      std::vector<Tensor> sources, results;
      for (const std::int64_t n : {17, 4096, 300}) {
        const Tensor gradient = narrow.allocate(DType::bfloat16, {n});
        addresses.push_back(gradient.data);
        sources.push_back(
            f->random(DType::bfloat16, {n}, fmt::format("gradient {} of {}", n, bucket)));
        results.push_back(f->make(DType::float32, {n}));
        // The library has written float32 itself: memory without a cast.
        if (n == 300) continue;
        if (numbers) copy_values(sources.back(), gradient);
        narrow.cast_later({.x = gradient, .y = results.back()});
      }
      narrow.convert(f->context);
      EXPECT_EQ(memory.used_bytes(), below.bytes() + 48);  // 400 bytes, rounded up to 64
      if (!numbers) continue;
      for (const int written : {0, 1})
        EXPECT_EQ(values(results[static_cast<std::size_t>(written)]),
                  values(sources[static_cast<std::size_t>(written)]));
      EXPECT_EQ(addresses.back(), addresses[2]) << "the next bucket takes the same memory";
    }
    const std::size_t which = f == &meta;
    peaks[which] = memory.peak_bytes();
    used[which] = memory.used_bytes();
    EXPECT_EQ(f->context.counters().calls, 0) << "the casts belong to ops that were counted";
  }
  EXPECT_EQ(peaks[0], peaks[1]);
  EXPECT_EQ(used[0], used[1]);
}

}  // namespace
}  // namespace trireme::test
