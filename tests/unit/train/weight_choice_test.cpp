// SPDX-License-Identifier: Apache-2.0
//
// The tensors that a start from weights reads, for files that fit the model and for others.
#include "train/run/weight_choice.hpp"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::train {
namespace {

using testing::HasSubstr, testing::Not;

/// A model of four tensors, and a file that has the same ones.
class WeightChoice : public testing::Test {
 protected:
  WeightChoice() {
    for (const checkpoint::TensorSlice& piece : pieces_of_model())
      contents_.tensors.push_back({.path = piece.path, .shape = piece.spec->shape});
  }
  std::vector<checkpoint::TensorSlice> pieces_of_model() const {
    std::vector<checkpoint::TensorSlice> pieces;
    for (const parallel::ParameterSpec& spec : specs_)
      pieces.push_back(
          {.path = (spec.role == parallel::Role::weight ? "model/" : "buffers/") + spec.name,
           .spec = &spec});
    return pieces;
  }
  checkpoint::Contents::Entry& stored(const std::string& path) {
    return *std::ranges::find(contents_.tensors, path, &checkpoint::Contents::Entry::path);
  }
  /// Returns the paths that are read.
  std::vector<std::string> choose(const std::vector<std::string>& skip) const {
    std::vector<checkpoint::TensorSlice> pieces = pieces_of_model();
    Log log(false);
    choose_weights(pieces, contents_, skip, {12, 12, 1}, {}, "a.h5", log);
    std::vector<std::string> paths;
    for (const checkpoint::TensorSlice& piece : pieces) paths.push_back(piece.path);
    return paths;
  }
  std::string refusal(const std::vector<std::string>& skip) const {
    try {
      choose(skip);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  const std::vector<parallel::ParameterSpec> specs_ = {
      {.name = "conv.weight", .shape = {4, 4}},
      {.name = "bn.running_mean", .shape = {4}, .role = parallel::Role::statistic},
      {.name = "head.weight", .shape = {3, 4}},
      {.name = "head.bias", .shape = {3}}};
  checkpoint::Contents contents_;
};

TEST_F(WeightChoice, WithoutPatternsEverythingIsRead) {
  EXPECT_EQ(choose({}).size(), specs_.size());
  contents_.tensors.push_back({.path = "ema/conv.weight", .shape = {4, 4}});
  contents_.tensors.push_back({.path = "optimizer/momentum/other", .shape = {2}});
  EXPECT_EQ(choose({}).size(), specs_.size()) << "only weights and statistics count";
}

TEST_F(WeightChoice, SkippedTensorsAreNotRead) {
  EXPECT_THAT(choose({"head.*"}),
              testing::ElementsAre("model/conv.weight", "buffers/bn.running_mean"));
  EXPECT_THAT(choose({"*.bias", "bn.*"}),
              testing::ElementsAre("model/conv.weight", "model/head.weight"));
}

TEST_F(WeightChoice, SkippedTensorsMayHaveAnyShapeAndNeedNotExist) {
  stored("model/head.weight").shape = {10, 4};
  std::erase_if(contents_.tensors,
                [](const auto& entry) { return entry.path == "model/head.bias"; });
  contents_.tensors.push_back({.path = "model/head.scale", .shape = {10}});
  EXPECT_EQ(choose({"head.*"}).size(), 2u);
}

TEST_F(WeightChoice, AnotherHeadNamesThePatternThatHelps) {
  stored("model/head.weight").shape = {10, 4};
  stored("model/head.bias").shape = {10};
  const std::string text = refusal({});
  EXPECT_THAT(text, HasSubstr("a.h5: 2 tensors do not fit the model of the deck"));
  EXPECT_THAT(text, HasSubstr("head.weight has shape [10, 4], but the deck's model has [3, 4]"));
  EXPECT_THAT(text, HasSubstr("--skip 'head.*'"));
  EXPECT_EQ(refusal({"head.*"}), "");
  EXPECT_THAT(refusal({"*.bias"}), HasSubstr("1 tensor does not fit"));
}

TEST_F(WeightChoice, MissingAndFurtherTensorsAreNamed) {
  stored("model/head.weight").path = "model/fc.weight";
  const std::string text = refusal({});
  EXPECT_THAT(text, HasSubstr("head.weight [3, 4] is missing"));
  EXPECT_THAT(text, HasSubstr("fc.weight [3, 4] is not in the deck's model"));
  EXPECT_THAT(text, HasSubstr("--skip 'fc.*' --skip 'head.*'"));
}

TEST_F(WeightChoice, AnotherSquareGridIsInterpolated) {
  parallel::ParameterSpec spec{.name = "positions", .shape = {1, 10, 2}};
  const auto grid_of = [&](const Shape& shape) {
    contents_.tensors = {{.path = "model/positions", .shape = shape}};
    std::vector<checkpoint::TensorSlice> pieces = {{.path = "model/positions", .spec = &spec}};
    Log log(false);
    choose_weights(pieces, contents_, {}, {12, 12, 1}, {}, "a.h5", log);
    return pieces.front().stored_grid;
  };
  EXPECT_THROW(grid_of({1, 26, 2}), InputError) << "no grid is declared";
  spec.grid = parallel::PositionGrid{1, 3, 3};
  EXPECT_EQ(grid_of({1, 26, 2}), (parallel::PositionGrid{1, 5, 5}));
  EXPECT_FALSE(grid_of({1, 10, 2}));
  for (const Shape& shape : {Shape{1, 25, 2}, Shape{1, 26, 3}, Shape{2, 26, 2}, Shape{26, 2}})
    EXPECT_THAT([&] { grid_of(shape); }, testing::ThrowsMessage<InputError>(
                                             HasSubstr("a grid is interpolated if it is square")))
        << to_string(shape);
}

TEST_F(WeightChoice, GridIsThatOfTheImagesThatTheFileNames) {
  // Patches of 4 x 4 pixels: the run has images of 12 x 12.
  const parallel::ParameterSpec spec{
      .name = "positions", .shape = {1, 10, 2}, .grid = parallel::PositionGrid{1, 3, 3}};
  const auto grid_of = [&](std::int64_t height, std::int64_t width, std::int64_t positions) {
    contents_.tensors = {{.path = "model/positions", .shape = {1, positions, 2}}};
    contents_.info.state = {{"image_height", height},
                            {"image_width", width},
                            {"image_channels", std::int64_t{1}},
                            {"pixel_bits", std::int64_t{8}}};
    std::vector<checkpoint::TensorSlice> pieces = {{.path = "model/positions", .spec = &spec}};
    Log log(false);
    choose_weights(pieces, contents_, {}, {12, 12, 1}, {}, "a.h5", log);
    return pieces.front().stored_grid;
  };
  EXPECT_FALSE(grid_of(12, 12, 10));
  EXPECT_EQ(grid_of(4, 36, 10), (parallel::PositionGrid{1, 1, 9})) << "as many positions";
  EXPECT_EQ(grid_of(8, 32, 17), (parallel::PositionGrid{1, 2, 8})) << "a square number";
  EXPECT_THROW(grid_of(8, 32, 18), InputError);
  EXPECT_THROW(grid_of(0, 32, 17), InputError);
}

TEST_F(WeightChoice, AnotherModelIsNotSkippedAway) {
  for (checkpoint::Contents::Entry& entry : contents_.tensors) entry.path += ".old";
  EXPECT_THAT(refusal({}), Not(HasSubstr("--skip")));
  EXPECT_THAT(refusal({}), HasSubstr("use the deck it was trained with"));
}

TEST_F(WeightChoice, APatternOfNoTensorNamesCloseOnes) {
  EXPECT_THAT(refusal({"head.*", "haed.*"}),
              HasSubstr("--skip haed.*: matches no tensor of a.h5 or of the deck's model; the "
                        "closest are head."));
  EXPECT_THAT(refusal({"*.running_maen"}), HasSubstr("the closest are bn.running_mean"));
  EXPECT_THAT(refusal({"model/head.weight"}), HasSubstr("--skip model/head.weight: matches no"));
}

}  // namespace
}  // namespace trireme::train
