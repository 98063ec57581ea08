// SPDX-License-Identifier: Apache-2.0
//
// The algorithm file and the names of library algorithms; needs no device.
// Files are read back as written. Every changed byte and every torn file is detected. Errors name
// their line. Each problem and each choice has its own name.

#include "trireme/ops/algorithm_table.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/cuda/algorithm_entry.hpp"
#include "ops/cuda/trial_choice.hpp"
#include "ops/dispatch/problem.hpp"
#include "trireme/base/error.hpp"

namespace trireme::ops {
namespace {

using testing::StartsWith;

AlgorithmTable several() {
  AlgorithmTable known;
  known.set("NVIDIA H200, cuBLASLt 130002, linear_forward bfloat16 8192x768x3072x1x256x1x0x0",
            "0000000000000015000000000000002a");
  known.set("NVIDIA H200, cuDNN 91002, convolution_forward float32 2x4x4x8x16x3x1x1",
            "engine 34, knobs 2=10 14=4");
  known.set("a", "b");
  return known;
}

TEST(AlgorithmTable, AreReadAsTheyWereWritten) {
  for (const AlgorithmTable& known : {AlgorithmTable(), several()})
    EXPECT_EQ(AlgorithmTable::parse(known.to_text()), known);
  EXPECT_EQ(several().to_text(), AlgorithmTable::parse(several().to_text()).to_text());
}

TEST(AlgorithmTable, EveryChangedByteIsSeen) {
  const std::string text = several().to_text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      EXPECT_THROW(AlgorithmTable::parse(changed), InputError) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(AlgorithmTable, ATornFileIsSeenOrHoldsWholeLines) {
  const std::string text = several().to_text();
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    const std::string torn = text.substr(0, bytes);
    if (bytes > 0 && torn.back() == '\n')
      EXPECT_EQ(AlgorithmTable::parse(torn).to_text(), torn) << bytes;
    else
      EXPECT_THROW(AlgorithmTable::parse(torn), InputError) << bytes;
  }
}

TEST(AlgorithmTable, AMistakeNamesItsLine) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      AlgorithmTable::parse(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint("something else\n"), StartsWith("line 1: not a list of algorithms"));
  EXPECT_THAT(complaint("trireme-algorithms 2\n"), StartsWith("line 1: not a list of algorithms"))
      << "names of another version have other meanings";
  EXPECT_EQ(complaint("trireme-algorithms 1\n0123456789abcdef\ta\tb\n"), "line 2: damaged");
  EXPECT_EQ(complaint("trireme-algorithms 1\nwords without tabs\n"), "line 2: damaged");
  EXPECT_EQ(complaint("trireme-algorithms 1\n\n"), "line 2: damaged");
}

TEST(AlgorithmTable, OwnResultsReplaceAndThoseOfOthersDoNot) {
  AlgorithmTable known = several(), others;
  others.set("a", "another");
  others.set("c", "d");
  known.add_missing(others);
  EXPECT_EQ(*known.find("a"), "b");
  EXPECT_EQ(*known.find("c"), "d");
  known.set("a", "another");
  EXPECT_EQ(*known.find("a"), "another");
  EXPECT_EQ(known.find("e"), nullptr);
  EXPECT_EQ(known.size(), 4u);
}

TEST(AlgorithmTable, OwnKernelsHaveAReasonAndAreNoChoice) {
  AlgorithmTable known = several();
  const std::string own_kernel = AlgorithmTable::own_kernel;
  known.set("without", own_kernel);
  known.set("too large", own_kernel + ": too much workspace");
  EXPECT_EQ(known.own_kernels(),
            (std::vector<AlgorithmTable::OwnKernel>{{"too large", "too much workspace"},
                                                    {"without", "the library has no algorithm"}}));
  EXPECT_EQ(known.without_own_kernels(), several());
}

TEST(AlgorithmTable, EachProblemHasItsOwnName) {
  std::set<std::string> names;
  std::size_t problems = 0;
  const auto add = [&](const Problem& problem) {
    names.insert(to_string(problem));
    ++problems;
  };
  for (int kind = 0; kind <= static_cast<int>(Problem::Kind::attention_backward); ++kind) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (const bool bias : {false, true}) {
        for (const bool in_out : {false, true}) {
          const Problem problem{static_cast<Problem::Kind>(kind), dtype, bias, in_out, {}};
          add(problem);
          for (std::size_t extent = 0; extent < problem.extents.size(); ++extent) {
            Problem other = problem;
            other.extents[extent] = 11;
            add(other);
          }
        }
      }
    }
  }
  EXPECT_EQ(names.size(), problems);
  // Names without dilation are in files of users.
  Convolution c{2, 9, 8, 3, 4, 5, 2, 1, DType::float32};
  EXPECT_EQ(to_string(problem_of(Problem::Kind::convolution_forward, c)),
            "convolution_forward float32 2x9x8x3x4x5x2x1");
  c.dilation = 2;
  EXPECT_EQ(to_string(problem_of(Problem::Kind::convolution_forward, c)),
            "convolution_forward float32 2x9x8x3x4x5x4294967298x1");
  EXPECT_EQ(to_string(problem_of(Problem::Kind::linear_backward_weight,
                                 Linear{8, 16, 32, MatrixOrder::in_out, DType::bfloat16}, true,
                                 DType::float32)),
            "linear_backward_weight bfloat16 bias in_out 8x16x32x" +
                std::to_string(static_cast<int>(DType::float32)) + "x0x0x0x0");
}

TEST(Choices, KnowTheirProblemsAlgorithmAlone) {
  AlgorithmTable known = several();
  const cuda::AlgorithmEntry choice(known, "a"), unknown(known, "c"), none;
  ASSERT_NE(choice.algorithm(), nullptr);
  EXPECT_EQ(*choice.algorithm(), "b");
  EXPECT_EQ(unknown.algorithm(), nullptr);
  EXPECT_EQ(none.algorithm(), nullptr);
  unknown.set("d");
  none.set("e");
  EXPECT_EQ(*unknown.algorithm(), "d");
  EXPECT_EQ(none.algorithm(), nullptr);
  EXPECT_EQ(known.size(), 4u);
}

/// Times variants by a table: milliseconds of group after group.
class Groups {
 public:
  explicit Groups(std::vector<std::vector<double>> milliseconds)
      : milliseconds_(std::move(milliseconds)), timed_(milliseconds_.size()) {}
  /// Returns the choice if at most so many groups may be timed.
  std::size_t choice(int most = 1000) {
    int left = most;
    return cuda::choose_fastest(
        milliseconds_.size(),
        [&](std::size_t i) -> std::optional<double> {
          --left;
          const std::vector<double>& of = milliseconds_[i];
          if (of.empty()) return std::nullopt;
          return of[std::min(timed_[i]++, of.size() - 1)];
        },
        [&] { return left <= 0; });
  }
  const std::vector<std::size_t>& timed() const { return timed_; }

 private:
  std::vector<std::vector<double>> milliseconds_;
  std::vector<std::size_t> timed_;
};

TEST(Trials, TheBestOfThreeGroupsCounts) {
  EXPECT_EQ(Groups({{5, 5, 5}, {9, 4, 9}, {6, 6, 6}}).choice(), 1u);
  EXPECT_EQ(Groups({{5, 5, 5}, {9, 9, 9}}).choice(), 0u);
  EXPECT_EQ(Groups({std::vector<double>{3}}).choice(), 0u);
}

TEST(Trials, TheThreeBestAreTimedOnceMore) {
  // The second is the fastest by chance only in the second pass.
  Groups groups({{5, 5, 5, 5}, {6, 6, 6, 4}, {7}, {8}, {9}});
  EXPECT_EQ(groups.choice(), 1u);
  EXPECT_EQ(groups.timed(), (std::vector<std::size_t>{6, 6, 6, 3, 3}));
}

TEST(Trials, AVariantThatCannotBeRunIsNotChosen) {
  EXPECT_EQ(Groups({{}, {7}, {}}).choice(), 1u);
  EXPECT_EQ(Groups({{}, {}}).choice(), 0u) << "the library's first proposal";
}

TEST(Trials, TheBestSoFarIsTakenWhenTheTimeIsUp) {
  Groups groups({{5}, {4}, {3}, {2}});
  EXPECT_EQ(groups.choice(6), 1u);
  EXPECT_EQ(groups.timed(), (std::vector<std::size_t>{3, 3, 0, 0}));
  EXPECT_EQ(Groups({{5}, {4}, {3}}).choice(0), 1u) << "the first two are timed in any case";
}

TEST(Choices, WordsComeBackFromTheirName) {
  const std::array<std::uint64_t, 3> words{0, 0xFEDCBA9876543210u, ~std::uint64_t{0}};
  std::array<std::uint64_t, 3> back{1, 2, 3};
  const std::string name = cuda::name_of(words);
  ASSERT_TRUE(cuda::parse_words(name, back));
  EXPECT_EQ(back, words);
  back = {1, 2, 3};
  for (const std::string& wrong :
       {std::string(), name.substr(1), name + "0", "g" + name.substr(1), "-" + name.substr(1)}) {
    EXPECT_FALSE(cuda::parse_words(wrong, back)) << wrong;
    EXPECT_EQ(back, (std::array<std::uint64_t, 3>{1, 2, 3})) << wrong;
  }
}

}  // namespace
}  // namespace trireme::ops
