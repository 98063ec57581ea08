// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/tensor_course.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace trireme::report {
namespace {

TEST(TensorCourse, ColumnsAreMeasurementsInTheOrderOfTheModel) {
  TensorCourse course;
  for (const double step : {10, 20}) {
    course.add(step, "conv.weight", {step, 0.1});
    course.add(step, "fc.weight", {2 * step, 0.2});
  }
  ASSERT_EQ(course.tensors(), (std::vector<std::string>{"conv.weight", "fc.weight"}));
  ASSERT_EQ(course.steps(), (std::vector<double>{10, 20}));
  EXPECT_EQ(course.value(0, 0, 1), 20);
  EXPECT_EQ(course.value(0, 1, 0), 20);
  EXPECT_EQ(course.value(1, 1, 1), 0.2);
}

TEST(TensorCourse, JoinedColumnsKeepTheLargestValue) {
  TensorCourse course;
  for (int step = 1; step <= 1000; ++step) {
    course.add(step, "a", {step == 700 ? 50.0 : 1.0, 0.1});
    if (step > 500) course.add(step, "late", {2, NAN});
  }
  ASSERT_LE(course.steps().size(), TensorCourse::max_columns);
  EXPECT_EQ(course.steps().back(), 1000);
  int columns_with_spike = 0;
  for (std::size_t column = 0; column < course.steps().size(); ++column) {
    columns_with_spike += course.value(0, 0, column) == 50;
    EXPECT_EQ(std::isnan(course.value(0, 1, column)), course.steps()[column] <= 500);
    EXPECT_TRUE(std::isnan(course.value(1, 1, column)));
  }
  EXPECT_EQ(columns_with_spike, 1);
}

TEST(TensorCourse, MeasurementsAfterARollbackReplaceThoseBefore) {
  TensorCourse course;
  for (const double step : {4, 8, 12, 16, 12, 16, 20}) course.add(step, "a", {step + 1, 1});
  EXPECT_EQ(course.steps(), (std::vector<double>{4, 8, 12, 16, 20}));
  for (std::size_t column = 0; column < 5; ++column)
    EXPECT_EQ(course.value(0, 0, column), course.steps()[column] + 1);
}

TEST(TensorCourse, TensorsBeyondTheLimitAreLeftOut) {
  TensorCourse course;
  for (std::size_t i = 0; i < TensorCourse::max_tensors + 10; ++i)
    course.add(1, std::to_string(i), {1, 1});
  EXPECT_EQ(course.tensors().size(), TensorCourse::max_tensors);
  EXPECT_TRUE(course.has_more());
}

}  // namespace
}  // namespace trireme::report
