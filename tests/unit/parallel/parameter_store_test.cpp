// SPDX-License-Identifier: Apache-2.0
//
// ParameterStore on one rank: initial values, working weights in bfloat16, joined views, gradient
// buffers, and the same bytes on meta and on an emulated device.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/reference.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::parallel {
namespace {

ParameterList convolution_and_norm() {
  ParameterList list;
  list.begin_block(0);
  list.declare({.name = "conv.weight",
                .shape = {4, 3, 3, 3},
                .initializer = {Initializer::Kind::normal, 0.1},
                .inner = InnerOrder::channels_last});
  list.declare({.name = "bn.weight",
                .shape = {5},
                .initializer = {Initializer::Kind::constant, 1},
                .compute_copy = false});
  list.declare({.name = "bn.running_var",
                .shape = {5},
                .initializer = {Initializer::Kind::constant, 1},
                .role = Role::statistic,
                .compute_copy = false});
  list.begin_block(1);
  list.declare(
      {.name = "fc.weight", .shape = {7, 9}, .initializer = {Initializer::Kind::uniform, 0.3}});
  list.declare({.name = "gate.weight",
                .shape = {2, 9},
                .initializer = {Initializer::Kind::uniform, 0.3},
                .joined = true});
  list.declare({.name = "fc.bias",
                .shape = {7},
                .initializer = {Initializer::Kind::normal, 0.3},
                .compute_copy = false});
  list.declare({.name = "gate.bias",
                .shape = {2},
                .initializer = {Initializer::Kind::normal, 0.3},
                .compute_copy = false,
                .joined = true});
  return list;
}

struct StoreFixture {
  explicit StoreFixture(DType compute, DeviceKind kind = DeviceKind::cpu,
                        ParameterList parameter_list = convolution_and_norm())
      : list(std::move(parameter_list)),
        layout(list, 1 << 20, compute),
        parameters({kind, 0}, "parameters", 1 << 16),
        gradients({kind, 0}, "gradients", 1 << 16),
        workspace({kind, 0}, "workspace", 1 << 10),
        library({kind, 0}, "library", 1 << 10),
        context(test::test_stream(kind), workspace, library),
        store(list, layout, {}, parameters, gradients) {}
  ParameterList list;
  FlatLayout layout;
  Arena parameters, gradients, workspace, library;
  ops::Context context;
  ParameterStore store;
};

float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

TEST(ParameterStore, InitializesEveryTensorAndNothingElse) {
  StoreFixture stored(DType::float32);
  stored.store.initialize(stored.context, 11);
  std::vector<float> expected(static_cast<std::size_t>(stored.layout.elements()), 0.0f);
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(stored.list.entries().size());
       ++index) {
    const TensorPartition& part = stored.list.partition({index});
    initialize_rows(stored.list[{index}], part, 11, 0, part.rows(),
                    expected.data() + stored.layout.tensor({index}).offset);
    EXPECT_EQ(stored.store.master({index}).shape, part.memory_shape());
    EXPECT_EQ(stored.store.weight({index}).data, stored.store.master({index}).data);
  }
  const float* flat = stored.store.flat_master().as<float>();
  EXPECT_EQ(std::vector<float>(flat, flat + stored.layout.elements()), expected);
  EXPECT_FALSE(stored.store.flat_working().defined());
}

TEST(ParameterStore, EveryDeviceStartsWithTheSameBits) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    StoreFixture cpu(compute), emulated(compute, DeviceKind::emulated);
    for (StoreFixture* stored : {&cpu, &emulated}) stored->store.initialize(stored->context, 11);
    EXPECT_EQ(test::bytes_of(emulated.store.flat_master()),
              test::bytes_of(cpu.store.flat_master()));
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(cpu.list.entries().size());
         ++index) {
      EXPECT_EQ(test::bytes_of(emulated.store.weight({index})),
                test::bytes_of(cpu.store.weight({index})))
          << cpu.list[{index}].name;
    }
  }
}

TEST(ParameterStore, WorkingWeightIsTheNearestBfloat16) {
  StoreFixture stored(DType::bfloat16);
  stored.store.initialize(stored.context, 11);
  const Tensor weight = stored.store.weight({3}), master = stored.store.master({3});
  ASSERT_EQ(weight.dtype, DType::bfloat16);
  for (std::int64_t i = 0; i < weight.elements(); ++i) {
    const float exact = master.as<float>()[i];
    const std::uint16_t bits = weight.as<std::uint16_t>()[i];
    const float error = std::abs(from_bfloat16(bits) - exact);
    for (const int step : {-1, 1})
      EXPECT_LE(error, std::abs(from_bfloat16(static_cast<std::uint16_t>(bits + step)) - exact))
          << exact;
  }
  const Tensor norm = stored.store.weight({1}), norm_master = stored.store.master({1});
  ASSERT_EQ(norm.dtype, DType::float32) << "no compute copy";
  for (std::int64_t i = 0; i < norm.elements(); ++i)
    EXPECT_EQ(norm.as<float>()[i], norm_master.as<float>()[i]);
}

TEST(ParameterStore, RoundsTiesToEvenAndKeepsNaN) {
  StoreFixture stored(DType::bfloat16);
  float* master = stored.store.master({3}).as<float>();
  master[0] = 1.0f + 0x1p-8f;      // halfway between 1 and 1 + 2^-7: rounds to the even one
  master[1] = 1.0f + 3 * 0x1p-8f;  // halfway above an odd one: rounds up
  master[2] = std::numeric_limits<float>::infinity();
  // A NaN whose upper 16 bits alone would be infinity.
  master[3] = std::bit_cast<float>(0x7F800001u);
  master[4] = -0.0f;
  const std::uint64_t version = stored.store.version();
  stored.store.refresh_working(stored.context);
  const std::uint16_t* copy = stored.store.weight({3}).as<std::uint16_t>();
  EXPECT_EQ(from_bfloat16(copy[0]), 1.0f);
  EXPECT_EQ(from_bfloat16(copy[1]), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isinf(from_bfloat16(copy[2])));
  EXPECT_TRUE(std::isnan(from_bfloat16(copy[3])));
  EXPECT_TRUE(std::signbit(from_bfloat16(copy[4])));
  EXPECT_GT(stored.store.version(), version) << "prepared forms must be made anew";
}

TEST(ParameterStore, UpdatesDoNotChangeTheVersionsOfFrozenWeights) {
  ParameterList list = convolution_and_norm();
  const ParameterId frozen{0}, trained{3};
  list.freeze(frozen);
  StoreFixture stored(DType::bfloat16, DeviceKind::cpu, std::move(list));
  const std::uint64_t before = stored.store.version(frozen),
                      before_trained = stored.store.version(trained);
  stored.store.weights_changed();
  EXPECT_EQ(stored.store.version(frozen), before);
  EXPECT_GT(stored.store.version(trained), before_trained);
  stored.store.refresh_working(stored.context);
  EXPECT_GT(stored.store.version(frozen), before) << "a restart reads frozen weights, too";
}

TEST(ParameterStore, InitializationAndRefreshMakeTheSameWorkingWeights) {
  StoreFixture stored(DType::bfloat16);
  stored.store.initialize(stored.context, 11);
  const Tensor working = stored.store.flat_working();
  const std::vector<std::uint8_t> first(working.as<std::uint8_t>(),
                                        working.as<std::uint8_t>() + working.elements());
  std::fill_n(working.as<std::uint8_t>(), working.elements(), std::uint8_t{0});
  stored.store.refresh_working(stored.context);
  EXPECT_EQ(std::vector<std::uint8_t>(working.as<std::uint8_t>(),
                                      working.as<std::uint8_t>() + working.elements()),
            first);
}

TEST(ParameterStore, JoinedParametersAreOneView) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    StoreFixture stored(compute);
    const ParameterId matrix{3}, vector{5};
    EXPECT_EQ(stored.store.weight(matrix, 2).shape, (Shape{9, 9}));
    EXPECT_EQ(stored.store.weight(vector, 2).shape, (Shape{9}));
    EXPECT_EQ(stored.store.gradient(matrix, 2).shape, (Shape{9, 9}));
    EXPECT_EQ(stored.store.weight(matrix, 2).rows(7, 9).data, stored.store.weight({4}).data);
    EXPECT_EQ(stored.store.weight(vector, 2).rows(7, 9).data, stored.store.weight({6}).data);
    EXPECT_EQ(stored.store.gradient(matrix, 2).rows(7, 9).data, stored.store.gradient({4}).data);
  }
}

TEST(ParameterStore, GradientRefersToTheBufferThatWasSet) {
  StoreFixture stored(DType::float32);
  const FlatLayout::FlatTensor& slot = stored.layout.tensor({0});
  const FlatLayout::Bucket& bucket = stored.layout.buckets()[static_cast<std::size_t>(slot.bucket)];
  const Tensor own = stored.store.bucket_gradient(slot.bucket),
               other = stored.gradients.allocate(DType::float32, {bucket.elements()});
  EXPECT_EQ(stored.store.gradient({0}).as<float>(),
            stored.store.flat_gradient().as<float>() + slot.offset);
  stored.store.set_bucket_gradient(slot.bucket, other);
  EXPECT_EQ(stored.store.gradient({0}).as<float>(),
            other.as<float>() + (slot.offset - bucket.begin));
  stored.store.set_bucket_gradient(slot.bucket, own);
  EXPECT_EQ(stored.store.gradient({0}).as<float>(),
            stored.store.flat_gradient().as<float>() + slot.offset);
}

TEST(ParameterStore, MetaTakesTheSameBytesAndTouchesNothing) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    StoreFixture real(compute), planned(compute, DeviceKind::meta);
    planned.store.initialize(planned.context, 1);
    planned.store.refresh_working(planned.context);
    EXPECT_EQ(planned.parameters.peak_bytes(), real.parameters.peak_bytes());
    EXPECT_EQ(planned.gradients.peak_bytes(), real.gradients.peak_bytes());
    EXPECT_EQ(planned.store.weight({0}).data, nullptr);
    EXPECT_EQ(planned.store.weight({0}).shape, real.store.weight({0}).shape);
  }
}

}  // namespace
}  // namespace trireme::parallel
