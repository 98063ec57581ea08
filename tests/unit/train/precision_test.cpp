#include <string>

#include <gtest/gtest.h>

#include "trireme/train/run.hpp"

namespace trireme::train {
namespace {

deck::Deck computing_in(ComputePrecision precision) {
  deck::Deck deck;
  deck.precision.compute = precision;
  return deck;
}

TEST(Precision, Tfloat32IsRefusedWhereThereIsNoGpu) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::emulated}) {
    std::string message;
    try {
      validate_precision(computing_in(ComputePrecision::tfloat32), kind);
    } catch (const InputError& error) {
      message = error.what();
    }
    EXPECT_TRUE(message.starts_with("precision.compute = \"tfloat32\"")) << message;
    EXPECT_NE(message.find("use \"float32\""), std::string::npos) << message;
  }
  EXPECT_NO_THROW(validate_precision(computing_in(ComputePrecision::tfloat32), DeviceKind::cuda));
  for (const ComputePrecision precision : {ComputePrecision::float32, ComputePrecision::bfloat16, ComputePrecision::float16}) {
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::emulated, DeviceKind::cuda}) EXPECT_NO_THROW(validate_precision(computing_in(precision), kind));
  }
}

TEST(Precision, Tfloat32HasTensorsOfFloat32) {
  const auto options = [](ComputePrecision precision) { return replica_options(computing_in(precision), {}, {}); };
  EXPECT_EQ(options(ComputePrecision::tfloat32).compute, DType::float32);
  EXPECT_TRUE(options(ComputePrecision::tfloat32).tfloat32);
  EXPECT_EQ(options(ComputePrecision::float32).compute, DType::float32);
  EXPECT_FALSE(options(ComputePrecision::float32).tfloat32);
  EXPECT_EQ(options(ComputePrecision::bfloat16).compute, DType::bfloat16);
  EXPECT_FALSE(options(ComputePrecision::bfloat16).tfloat32);
}

TEST(Precision, Float16HasALossScaleAndNothingElseHas) {
  deck::Deck deck = computing_in(ComputePrecision::float16);
  deck.precision.loss_scale.initial = 512;
  const ReplicaOptions options = replica_options(deck, {}, {});
  EXPECT_EQ(options.compute, DType::float16);
  ASSERT_TRUE(options.loss_scale.has_value());
  EXPECT_EQ(options.loss_scale->initial, 512);
  for (const ComputePrecision other : {ComputePrecision::float32, ComputePrecision::tfloat32, ComputePrecision::bfloat16})
    EXPECT_FALSE(replica_options(computing_in(other), {}, {}).loss_scale.has_value());
}

}  // namespace
}  // namespace trireme::train
