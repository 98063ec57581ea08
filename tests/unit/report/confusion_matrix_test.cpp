// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/confusion_matrix.hpp"

#include <string>

#include <gtest/gtest.h>

#include "trireme/base/error.hpp"

namespace trireme::report {
namespace {

const std::string start(confusion_csv_start);

TEST(ConfusionMatrix, ClassesAndCounts) {
  const ConfusionMatrix matrix = parse_confusion(start + "cat,dog\ncat,3,1\ndog,0,5\n", "c.csv");
  EXPECT_EQ(matrix.classes, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(matrix.counts, (train::Confusion{{{0, 0}, 3}, {{0, 1}, 1}, {{1, 1}, 5}}));
}

TEST(ConfusionMatrix, QuotedNames) {
  const ConfusionMatrix matrix = parse_confusion(
      start +
          "\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\"\r\n\"a,b\",1,0,0\r\nx,0,1,0\r\ny,0,0,1\r\n",
      "c.csv");
  EXPECT_EQ(matrix.classes, (std::vector<std::string>{"a,b", "say \"hi\"", "two\\x0Alines"}));
  EXPECT_EQ(matrix.counts.size(), 3u);
}

TEST(ConfusionMatrix, LargeOnesKeepScoresAndTheMostFrequentPairs) {
  constexpr int classes = 100;
  std::string text = start, rows;
  for (int label = 0; label < classes; ++label) {
    text += (label == 0 ? "c" : ",c") + std::to_string(label);
    rows += "c" + std::to_string(label);
    for (int predicted = 0; predicted < classes; ++predicted)
      rows += predicted == label ? ",50" : label == 7 && predicted == 70 ? ",40" : ",1";
    rows += "\n";
  }
  const ConfusionMatrix matrix = parse_confusion(text + "\n" + rows, "c.csv");
  EXPECT_TRUE(matrix.counts.empty());
  ASSERT_EQ(matrix.pairs.size(), 20u);
  EXPECT_EQ(matrix.pairs[0].label, 7);
  EXPECT_EQ(matrix.pairs[0].predicted, 70);
  EXPECT_EQ(matrix.scores[7].samples, 50 + 40 + 98);
  EXPECT_EQ(matrix.scores[70].predicted, 50 + 40 + 98);
}

TEST(ConfusionMatrix, LongNamesAreShortened) {
  const ConfusionMatrix matrix =
      parse_confusion(start + std::string(1 << 20, '&') + "\nx,1\n", "c.csv");
  EXPECT_LT(matrix.classes[0].size(), 100u);
}

TEST(ConfusionMatrix, OtherTextsAreRefused) {
  for (const char* const rows :
       {"cat,dog\ncat,3\ndog,0,5\n", "cat,dog\ncat,3,1\n", "cat,dog\ncat,3,-1\ndog,0,5\n",
        "cat,dog\ncat,3,x\ndog,0,5\n", "cat,dog\ncat,3,1\ndog,0,5\nmore\n",
        "cat\ncat,9999999999999999\n", "\"cat"})
    EXPECT_THROW(parse_confusion(start + rows, "c.csv"), InputError) << rows;
  EXPECT_THROW(parse_confusion("a,b\n", "c.csv"), InputError);
  EXPECT_THROW(parse_confusion(start + std::string(5000, ','), "c.csv"), InputError);
}

}  // namespace
}  // namespace trireme::report
