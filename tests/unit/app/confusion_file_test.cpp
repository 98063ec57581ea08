// SPDX-License-Identifier: Apache-2.0
#include "app/train/confusion_file.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::app {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(ConfusionFile, NamesWithCommasAreCells) {
  const train::Confusion confusion{{{0, 2}, 3}, {{1, 1}, 5}, {{2, 0}, 7}};
  EXPECT_EQ(confusion_csv(confusion, {"tench, Tinca", "a", "b"}),
            "true\\predicted,\"tench, Tinca\",a,b\n"
            "\"tench, Tinca\",0,0,3\n"
            "a,0,5,0\n"
            "b,7,0,0\n");
}

TEST(ConfusionFile, MoreThanAHundredClassesBecomePairs) {
  std::vector<std::string> names;
  train::Confusion confusion;
  for (std::int32_t i = 0; i < 100; ++i) {
    names.push_back("c" + std::to_string(i));
    confusion[{i, i}] = 9;
    if (i > 0) confusion[{i, i - 1}] = i;
  }
  const std::string matrix = confusion_svg("t", confusion, names);
  EXPECT_THAT(matrix, StartsWith("<!-- trireme evaluate: confusion -->\n<svg "));
  EXPECT_EQ(count_of("<rect ", matrix), 199u);
  names.push_back("c100");
  const std::string pairs = confusion_svg("t", confusion, names);
  EXPECT_THAT(pairs, StartsWith("<!-- trireme evaluate: confusion -->\n<svg "));
  EXPECT_EQ(count_of("<rect ", pairs), 30u);
  EXPECT_THAT(pairs, HasSubstr(">c70 predicted as c69</text>"));
  EXPECT_THAT(pairs, Not(HasSubstr(">c69 predicted as c68</text>")));
}

}  // namespace
}  // namespace trireme::app
