// SPDX-License-Identifier: Apache-2.0
//
// The safetensors reader and writer: round trips, conversions to float32, and headers that must be
// rejected.
#include "trireme/checkpoint/weights/safetensors.hpp"

#include <cmath>
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "example.hpp"

#include "trireme/base/check.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;

struct SafetensorsFixture : testing::Test {
  ScratchFolder folder;
  std::string path = folder / "file.safetensors";

  void write_raw(std::uint64_t header_bytes, const std::string& header, const std::string& data) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), 8);
    file << header << data;
  }
  /// Returns the reader's error message for this header and so many bytes of data; "" if it accepts
  /// them.
  std::string refusal(const std::string& header, std::size_t data_bytes) {
    write_raw(header.size(), header, std::string(data_bytes, 'x'));
    return refusal();
  }
  std::string refusal() {
    try {
      const SafetensorsReader reader(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(SafetensorsFixture, RoundTrip) {
  const std::vector<SafetensorsTensor> tensors{{"fc.weight", {2, 3}, {1, 2, 3, -4, 0.5f, 1e-30f}},
                                               {"a", {1}, {7}},
                                               {"empty", {0, 4}, {}},
                                               {"scalar", {}, {3}}};
  write_safetensors(path, tensors, {{"format", "pt"}});
  const SafetensorsReader reader(path);
  ASSERT_EQ(reader.entries().size(), tensors.size());
  for (const SafetensorsTensor& tensor : tensors) {
    EXPECT_EQ(reader.entries().at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(reader.read_float32(tensor.name), tensor.values);
  }
  EXPECT_THROW(reader.read_float32("missing"), InputError);
}

TEST_F(SafetensorsFixture, NarrowAndWideTypesBecomeFloat32) {
  // float16: 1.5, -2, the smallest subnormal, infinity. bfloat16: 1.5, -2. float64: 0.1.
  const std::uint16_t numbers[] = {0x3E00, 0xC000, 0x0001, 0x7C00, 0x3FC0, 0xC000};
  const double wide = 0.1;
  std::string data(reinterpret_cast<const char*>(numbers), sizeof numbers);
  data.append(reinterpret_cast<const char*>(&wide), 8);
  const std::string header = R"({"h":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
                             R"("d":{"dtype":"F64","shape":[1],"data_offsets":[12,20]}})";
  write_raw(header.size(), header, data);
  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.read_float32("h"),
            (std::vector<float>{1.5f, -2.0f, std::ldexp(1.0f, -24), INFINITY}));
  EXPECT_EQ(reader.read_float32("b"), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(reader.read_float32("d"), (std::vector<float>{0.1f}));
}

TEST_F(SafetensorsFixture, HeadersThatLieAreRefused) {
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                      12),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                      12),
              HasSubstr("hole"));
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8), "")
      << "bytes that belong to no tensor";
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 8), "")
      << "data cut short";
  EXPECT_THAT(refusal(R"({"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("Q7"));
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), "")
      << "shape and offsets disagree";
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],)"
                    R"("data_offsets":[0,0]}})",
                    0),
            "")
      << "a product that overflows to 0";
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), "");
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), "");
  EXPECT_NE(refusal(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "");
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                      4),
              HasSubstr("twice"));
  EXPECT_THAT(refusal(R"({"a":)", 0), HasSubstr("JSON"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("array"));
  EXPECT_THAT(
      refusal(R"({"a":{"dtype":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}}",
              0),
      HasSubstr("nested"));
  EXPECT_NE(refusal(R"([1])", 0), "");
}

TEST_F(SafetensorsFixture, AHeaderLongerThanTheFileIsRefusedBeforeItIsTakenIntoMemory) {
  write_raw(std::uint64_t{1} << 62, "{}", "");
  EXPECT_NE(refusal(), "");
  write_raw(3, "{}", "");
  EXPECT_NE(refusal(), "");
  std::ofstream(path, std::ios::binary) << "short";
  EXPECT_NE(refusal(), "");
}

TEST_F(SafetensorsFixture, IntegersAreKnownButNotReadAsWeights) {
  const std::string header = R"({"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})";
  write_raw(header.size(), header, std::string(8, '\0'));
  EXPECT_THROW(SafetensorsReader(path).read_float32("n"), InputError);
}

}  // namespace
}  // namespace trireme::checkpoint
