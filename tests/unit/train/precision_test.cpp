// SPDX-License-Identifier: Apache-2.0
//
// Tests which precisions a deck may ask for on each device, and the options that follow from them.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/train/run/run.hpp"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

deck::Deck computing_in(deck::ComputePrecision precision) {
  deck::Deck deck;
  deck.precision.compute = precision;
  return deck;
}

TEST(Precision, Tfloat32IsRefusedWhereThereIsNoGpu) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::emulated}) {
    std::string message;
    try {
      validate_precision(computing_in(deck::ComputePrecision::tfloat32), kind);
    } catch (const InputError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, StartsWith("precision.compute = \"tfloat32\""));
    EXPECT_THAT(message, HasSubstr("use \"float32\""));
  }
  EXPECT_NO_THROW(
      validate_precision(computing_in(deck::ComputePrecision::tfloat32), DeviceKind::cuda));
  for (const deck::ComputePrecision precision :
       {deck::ComputePrecision::float32, deck::ComputePrecision::bfloat16,
        deck::ComputePrecision::float16}) {
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::emulated, DeviceKind::cuda})
      EXPECT_NO_THROW(validate_precision(computing_in(precision), kind));
  }
}

TEST(Precision, Tfloat32HasTensorsOfFloat32) {
  const auto options = [](deck::ComputePrecision precision) {
    return make_replica_options(computing_in(precision), {}, {});
  };
  EXPECT_EQ(options(deck::ComputePrecision::tfloat32).compute, DType::float32);
  EXPECT_TRUE(options(deck::ComputePrecision::tfloat32).tfloat32);
  EXPECT_EQ(options(deck::ComputePrecision::float32).compute, DType::float32);
  EXPECT_FALSE(options(deck::ComputePrecision::float32).tfloat32);
  EXPECT_EQ(options(deck::ComputePrecision::bfloat16).compute, DType::bfloat16);
  EXPECT_FALSE(options(deck::ComputePrecision::bfloat16).tfloat32);
}

TEST(Precision, Float8HasTensorsOfBfloat16) {
  const ReplicaOptions options =
      make_replica_options(computing_in(deck::ComputePrecision::float8), {}, {});
  EXPECT_EQ(options.compute, DType::bfloat16);
  EXPECT_TRUE(options.float8);
  EXPECT_FALSE(options.loss_scale.has_value());
  EXPECT_FALSE(make_replica_options(computing_in(deck::ComputePrecision::bfloat16), {}, {}).float8);
}

TEST(Precision, Float8IsRefusedByGpusWithoutIt) {
  const auto message_of = [](const std::string& capability) -> std::string {
    DeviceDescription device;
    device.device = {DeviceKind::cuda, 0};
    device.name = "NVIDIA Something";
    device.compute_capability = capability;
    try {
      validate_precision(computing_in(deck::ComputePrecision::float8), device);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* capability : {"7.5", "8.0", "8.6"}) {
    const std::string message = message_of(capability);
    EXPECT_THAT(message, StartsWith("precision.compute = \"float8\""));
    for (const std::string& word :
         {std::string("8.9"), std::string("NVIDIA Something has ") + capability,
          std::string("use \"bfloat16\"")})
      EXPECT_THAT(message, HasSubstr(word));
  }
  for (const char* capability : {"8.9", "9.0", "10.0", "12.0"})
    EXPECT_EQ(message_of(capability), "");
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::emulated}) {
    DeviceDescription device;
    device.device = {kind, 0};
    EXPECT_NO_THROW(validate_precision(computing_in(deck::ComputePrecision::float8), device));
  }
}

TEST(Precision, Float16HasALossScaleAndNothingElseHas) {
  deck::Deck deck = computing_in(deck::ComputePrecision::float16);
  deck.precision.loss_scale.initial = 512;
  const ReplicaOptions options = make_replica_options(deck, {}, {});
  EXPECT_EQ(options.compute, DType::float16);
  ASSERT_TRUE(options.loss_scale.has_value());
  EXPECT_EQ(options.loss_scale->initial, 512);
  for (const deck::ComputePrecision other :
       {deck::ComputePrecision::float32, deck::ComputePrecision::tfloat32,
        deck::ComputePrecision::bfloat16})
    EXPECT_FALSE(make_replica_options(computing_in(other), {}, {}).loss_scale.has_value());
}

}  // namespace
}  // namespace trireme::train
