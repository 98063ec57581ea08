// SPDX-License-Identifier: Apache-2.0
//
// AddressSanitizer's allocator ends the process where memory is not to be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/device/device.hpp"

namespace trireme {
namespace {

TEST(OutOfMemory, NamesTheBlockThatDidNotFit) {
  try {
    const Allocation block({DeviceKind::cpu, 0}, std::size_t{1} << 60, "optimizer state");
    FAIL() << "an exbibyte was given";
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("optimizer state"));
    EXPECT_EQ(error.code(), ExitCode::failure);
  }
}

}  // namespace
}  // namespace trireme
