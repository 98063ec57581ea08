// SPDX-License-Identifier: Apache-2.0
//
// Networks of model.blocks: names, shapes, what a deck may say, and the messages about the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model_fixture.hpp"
#include "shapes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/keys/writer.hpp"
#include "trireme/model/block_work.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {
namespace {

using testing::HasSubstr;

constexpr const char* linear = "{ kind = \"linear\", width = 10 }";

/// Returns the message about a list of blocks for images of 8 x 8 x 1 and 10 classes; "": none.
std::string message_about(const std::string& blocks) {
  try {
    const Model model(test::chain(blocks), {2, 8, 8, 1}, {10});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// Returns model.blocks as a resolved deck has it.
std::string blocks_of(ModelOptions model) {
  for (const keys::Entry& entry : keys::entries([&](keys::Visitor& v) { visit_keys(v, model); }))
    if (entry.key == "blocks") return entry.value;
  return "";
}

TEST(Chain, CountsNamesBehindRepetitions) {
  const Model model(
      test::chain(
          "[{ kind = \"conv\", channels = 4, kernel = 3 },"
          " { kind = \"residual\", repeat = 2, body = [{ kind = \"conv\", channels = 4, kernel "
          "= 3, bias = false }, { kind = \"norm\", zero_init = true }] },"
          " { kind = \"residual\", body = [{ kind = \"conv\", channels = 6, kernel = 3, stride "
          "= 2 }] },"
          " { kind = \"pool\", pool = \"global\" }, { kind = \"linear\", width = 10 }]"),
      {2, 8, 8, 1}, {10});
  const auto all = shapes(model);
  EXPECT_EQ(all.at("blocks.0.weight"), (Shape{4, 1, 3, 3}));
  EXPECT_EQ(all.at("blocks.0.bias"), (Shape{4}));
  EXPECT_EQ(all.at("blocks.2.body.0.weight"), (Shape{4, 4, 3, 3}));
  EXPECT_EQ(all.at("blocks.2.body.1.running_var"), (Shape{4}));
  EXPECT_EQ(all.at("blocks.3.body.0.weight"), (Shape{6, 4, 3, 3}));
  EXPECT_EQ(all.at("blocks.3.projection.0.weight"), (Shape{6, 4, 1, 1}));
  EXPECT_EQ(all.at("blocks.5.weight"), (Shape{10, 6}));
  EXPECT_EQ(all.size(), 2u + 2 * 5 + 3 + 2);
  EXPECT_EQ(model.block_count(), 4);
  EXPECT_EQ(model.block(3).name(), "blocks.3");
  EXPECT_EQ(model.head().name(), "blocks.5");
}

TEST(Chain, IsWrittenAsItIsRead) {
  for (const ModelOptions& options :
       {test::chain_of_convolutions("group"), test::chain_of_tokens(),
        test::chain(
            "[{ kind = \"conv\", channels = 1, kernel = 4, padding = [1, 2], init = { kind = "
            "\"normal\", gain = 0.5 } }, { kind = \"norm\", norm = \"group\", groups = 1 }, "
            "{ kind = \"flatten\" }, { kind = \"linear\", width = 3, init = { kind = \"zero\" } "
            "}]")}) {
    const std::string once = blocks_of(options);
    EXPECT_THAT(once, HasSubstr("kind = "));
    EXPECT_EQ(blocks_of(test::chain(once)), once);
  }
}

TEST(Chain, RefusesKeysWithTheBlockAndItsLine) {
  const struct {
    const char *blocks, *message;
  } cases[] = {
      {"[]", "blocks: must not be empty"},
      {"3", "must be a list of tables"},
      {"[\n3]", "blocks.0 (line 3) must be a table"},
      {"[\n{}]", "blocks.0 (line 3): kind is missing"},
      {"[\n{ kind = \"cnv\" }]",
       "blocks.0 (line 3): kind: \"cnv\" is not a choice, did you mean \"conv\""},
      {"[\n{ channels = 3 }]", "blocks.0 (line 3): kind is missing"},
      {"[{ kind = \"cnv\", channels = 3, kernel = 3 }]", "did you mean \"conv\""},
      {"[{ kind = \"flatten\", width = 3 }]",
       "\"width\" is an unknown key; the keys are kind, repeat"},
      {"[{ kind = \"conv\", kernel = 3 }]", "channels is missing"},
      {"[{ kind = \"conv\", kernel = 0, channels = 1 }]", "kernel: 0 is out of range"},
      {"[{ kind = \"conv\", kernel = 3, chanels = 1 }]", "did you mean \"channels\""},
      {"[{ kind = \"conv\", kernel = 3, channels = 1, padding = [1] }]",
       "padding: must be \"same\""},
      {"[{ kind = \"conv\", kernel = 3, channels = 1, dilation = 0 }]",
       "dilation: 0 is out of range"},
      {"[{ kind = \"conv\", kernel = 1, channels = 1, dilation = 2 }]",
       "blocks.0 (line 2): dilation = 2 has no effect with kernel = 1; remove it"},
      {"[{ kind = \"conv\", kernel = 3, channels = 1, padding_mode = \"circular\" }]",
       "padding_mode: \"circular\" is not a choice; choices: \"zeros\", \"periodic\""},
      {"[{ kind = \"conv\", kernel = 3, channels = 1, padding = 0, padding_mode = \"periodic\" }]",
       "padding_mode = \"periodic\" has no effect with padding = 0; remove it"},
      {"[{ kind = \"conv\", kernel = 1, channels = 1, padding_mode = \"periodic\" }]",
       "padding_mode = \"periodic\" has no effect with kernel = 1; remove it"},
      {"[{ kind = \"upsample\" }]", "factor is missing"},
      {"[{ kind = \"upsample\", factor = 1 }]", "factor: 1 is out of range; must be at least 2"},
      {"[{ kind = \"norm\", groups = 4 }]", "groups belongs to norm = \"group\""},
      {"[{ kind = \"norm\", zero_init = true }]", "for the last norm of a residual"},
      {"[{ kind = \"residual\", body = [{ kind = \"norm\", zero_init = true, repeat = 2 }] }]",
       "for the last norm of a residual"},
      {"[{ kind = \"flatten\", repeat = 1 }]", "repeat: 1 is out of range; must be at least 2"},
      {"[{ kind = \"dropout\", rate = 0 }]", "rate: 0 is out of range; must be more than 0"},
      {"[{ kind = \"pool\", kernel = 1 }]", "kernel: 1 is out of range; must be at least 2"},
      {"[{ kind = \"pool\", pool = \"global\", kernel = 2 }]", "kernel belongs to pool = "},
      {"[{ kind = \"pool\", padding = 2 }]", "padding = 2 is more than half of kernel = 2"},
      {"[{ kind = \"activation\" }, { kind = \"activation\" }]",
       "blocks.1 (line 2): the same activation twice in a row"},
      {"[{ kind = \"residual\", body = [\n{ kind = \"linear\" }] }]",
       "blocks.0.body.0 (line 3): width is missing"},
      {"[{ kind = \"linear\", width = 2, repeat = 4097 }]", "repeat: 4097 is out of range"},
      {"[{ kind = \"residual\", repeat = 64, body = [{ kind = \"linear\", width = 1, repeat = 64 "
       "}] }]",
       "4160 blocks with their repetitions"},
      {"[{ kind = \"linear\", width = 2, init = { kind = \"zero\", gain = 2.0 } }]",
       "init: gain belongs to"}};
  for (const auto& [blocks, message] : cases)
    EXPECT_THAT(message_about(blocks), HasSubstr(message)) << blocks;
}

TEST(Chain, NamesTheBlockThatDoesNotFitAndBothShapes) {
  const std::string end = std::string(", ") + linear + "]";
  const struct {
    std::string blocks, message;
  } cases[] = {
      {"[{ kind = \"attention\", heads = 2 }" + end,
       "blocks.0 (line 2, attention) takes tokens [tokens, channels], but is behind the data, "
       "images "
       "of [8, 8, 1]"},
      {std::string("[{ kind = \"flatten\" },\n{ kind = \"conv\", channels = 2, kernel = 3 }") + end,
       "blocks.1 (line 3, conv) takes an image [height, width, channels], but is behind blocks.0 "
       "(line 2, flatten), which gives [64]"},
      {"[{ kind = \"conv\", channels = 2, kernel = 9, padding = 0 }" + end,
       "takes an image as large as its kernel"},
      {"[{ kind = \"conv\", channels = 2, kernel = 3, dilation = 4, padding = 0 }" + end,
       "takes an image as large as its dilated kernel"},
      {"[{ kind = \"conv\", channels = 2, kernel = 3, padding = [0, 9], padding_mode = "
       "\"periodic\" "
       "}" +
           end,
       "padding_mode = \"periodic\" with 9 rows and columns on a side is more than the 8 x 8 "
       "pixels "
       "of the data, images of [8, 8, 1]; use at most 8"},
      {"[{ kind = \"pool\", pool = \"global\" }, { kind = \"upsample\", factor = 2 }" + end,
       "(line 2, upsample) takes an image"},
      {"[{ kind = \"residual\", body = [{ kind = \"upsample\", factor = 2 }] }" + end,
       "no projection does this"},
      {"[{ kind = \"patches\", patch = 3, width = 4 }" + end,
       "patch = 3 does not divide the 8 x 8 pixels"},
      {"[{ kind = \"patches\", patch = 4, width = 9 }, { kind = \"attention\", heads = 2 }" + end,
       "heads = 2 does not divide the 9 channels"},
      {"[{ kind = \"conv\", channels = 6, kernel = 3 }, { kind = \"norm\", norm = \"group\", "
       "groups = 4 "
       "}" +
           end,
       "groups = 4 does not divide the 6 channels"},
      {"[{ kind = \"residual\", projection = \"none\", body = [{ kind = \"conv\", channels = 3, "
       "kernel = "
       "3 }] }" +
           end,
       "its body gives [8, 8, 3], but the input, of the data, images of [8, 8, 1], is [8, 8, 1]"},
      {"[{ kind = \"residual\", body = [{ kind = \"conv\", channels = 3, kernel = 4, padding = 0 "
       "}] }" +
           end,
       "no projection does this"},
      {"[{ kind = \"conv\", channels = 2, kernel = 3 }]",
       "the last block must give one number for each class"},
      {"[{ kind = \"flatten\" }, { kind = \"linear\", width = 7 }]",
       "which gives [7], but the data has 10 classes"}};
  for (const auto& [blocks, message] : cases)
    EXPECT_THAT(message_about(blocks), HasSubstr(message)) << blocks;
  EXPECT_EQ(message_about(std::string("[{ kind = \"flatten\" }") + end), "");
}

// Of two decks of the same weights, one may leave out what the other one says.
TEST(Chain, ComparesComputedNetworks) {
  const auto difference = [](const std::string& before, const std::string& after) {
    ModelOptions old = test::chain(before), now = test::chain(after);
    const Family& family = family_of(old);
    family.reset_beside_weights(old);
    family.reset_beside_weights(now);
    return blocks_of(old) == blocks_of(now) ? "" : family.differing_block(old, now);
  };
  const std::string conv = "[{ kind = \"conv\", channels = 4, kernel = 3 ",
                    pool = "}, { kind = \"pool\", kernel = 3", end = " }, { kind = \"flatten\" }]";
  EXPECT_EQ(difference(conv + pool + end, conv + ", padding = 1" + pool + ", stride = 3" + end),
            "");
  EXPECT_EQ(difference(conv + ", stride = 1" + pool + end,
                       "[{ kind = \"conv\", channels = 6, kernel = 3, init = { kind = \"zero\" }" +
                           pool + end),
            "");
  const std::string relu = "{ kind = \"activation\" }, ";
  EXPECT_EQ(difference("[{ kind = \"residual\", projection = \"none\", repeat = 2, body = [" +
                           relu + "{ kind = \"norm\" }] }, { kind = \"dropout\", rate = 0.1 }]",
                       "[{ kind = \"residual\", drop_path = 0.1, body = [" + relu +
                           "{ kind = \"norm\" }] }, { kind = \"residual\", body = [" + relu +
                           "{ kind = \"norm\", zero_init = true }] }, { kind = \"dropout\", rate = "
                           "0.5 }]"),
            "");
  EXPECT_EQ(difference(conv + pool + end, conv + ", padding = 0" + pool + end), "blocks.0");
  const std::string dilated = conv + ", dilation = 2", periodic = ", padding_mode = \"periodic\"";
  EXPECT_EQ(difference(dilated + pool + end, dilated + ", padding = 2" + pool + end), "");
  EXPECT_EQ(difference(conv + pool + end, dilated + pool + end), "blocks.0");
  EXPECT_EQ(difference(conv + pool + end, dilated + ", padding = 1" + pool + end), "blocks.0");
  EXPECT_EQ(difference(conv + pool + end, conv + periodic + pool + end), "blocks.0");
  const std::string factor = "[{ kind = \"upsample\", factor = ";
  EXPECT_EQ(difference(factor + "2" + end, factor + "3" + end), "blocks.0");
  EXPECT_EQ(difference(conv + pool + end, conv + pool + ", stride = 2" + end), "blocks.1");
  EXPECT_EQ(difference(conv + pool + end, conv + pool + end.substr(0, 2) + "]"), "blocks.2");
}

TEST(Chain, TakesClassesAndInputFromAFileOfWeights) {
  const Answer& one_class = answer_of(AnswerKind::one_class);
  const auto file = [](const std::vector<std::string>& names, int) -> Shape {
    if (names[0] == "blocks.0.weight") return {4, 1, 3, 3};
    if (names[0] == "blocks.3.weight") return {7, 196};
    throw InputError("missing " + names[0]);
  };
  const std::string conv = "[{ kind = \"conv\", channels = 4, kernel = 3, bias = false }, ";
  const ModelOptions options =
      test::chain(conv +
                  "{ kind = \"pool\", kernel = 4 }, { kind = \"flatten\" }, "
                  "{ kind = \"linear\", width = 7 }]");
  EXPECT_EQ(family_of(options).input_in(options, file), (Shape{1, 28, 28, 1}));
  EXPECT_EQ(family_of(options).classes_in(options, one_class, {}, file), 7);
  // The tokens are the channels behind a transpose.
  const ModelOptions transposed = test::chain(
      "[{ kind = \"patches\", patch = 16, width = 3 }, { kind = \"transpose\" }, { kind = "
      "\"pool\", "
      "pool = \"global\" }]");
  EXPECT_EQ(family_of(transposed)
                .classes_in(transposed, one_class, {},
                            [](const auto&, int rank) -> Shape {
                              return rank == 1 ? Shape{3} : Shape{3, 1, 16, 16};
                            }),
            196);
  const ModelOptions wrong = test::chain(conv + "{ kind = \"attention\", heads = 2 }]");
  try {
    family_of(wrong).input_in(wrong, file);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no square image fits: model.blocks: blocks.1 (line 2, "
                                        "attention) takes tokens"));
  }
}

/// Returns the shape of one sample behind these blocks, for images of 8 x 8 x 1.
Shape shape_behind(const std::string& blocks) {
  const Model model(test::chain("[" + blocks + ", { kind = \"conv\", channels = 1, kernel = 1 }, " +
                                "{ kind = \"pool\", pool = \"global\" }]"),
                    {2, 8, 8, 1}, {1});
  return model.block(0).output_shape({1, 8, 8, 1});
}

TEST(Chain, DilationPeriodicBordersAndUpsamplingHaveTheirShapes) {
  const std::string conv = "{ kind = \"conv\", channels = 5, kernel = 3, ";
  for (const std::string mode : {"zeros", "periodic"}) {
    const std::string end = ", padding_mode = \"" + mode + "\" }";
    EXPECT_EQ(shape_behind(conv + "dilation = 3" + end), (Shape{1, 8, 8, 5}));
    EXPECT_EQ(shape_behind(conv + "dilation = 2, stride = 2" + end), (Shape{1, 4, 4, 5}));
    EXPECT_EQ(shape_behind(conv + "dilation = 2, padding = 1" + end), (Shape{1, 6, 6, 5}));
    EXPECT_EQ(shape_behind(conv + "dilation = 4, padding = [0, 8], stride = 3" + end),
              (Shape{1, 3, 3, 5}));
    EXPECT_EQ(shape_behind("{ kind = \"conv\", channels = 5, kernel = 4, dilation = 3" + end),
              (Shape{1, 8, 8, 5}));
  }
  EXPECT_EQ(shape_behind(conv + "stride = 3 }, { kind = \"upsample\", factor = 3 }"),
            (Shape{1, 9, 9, 5}));
}

// A body that halves the image and doubles it again has a projection of single pixels.
TEST(Chain, ProjectsAResidualWithUpsampling) {
  const std::string begin = "{ kind = \"residual\", body = [", half = "{ kind = \"pool\" }, ",
                    twice = "{ kind = \"upsample\", factor = 2 }, ",
                    conv = "{ kind = \"conv\", channels = 3, kernel = 3 }] }";
  EXPECT_EQ(shape_behind(begin + half + twice + conv), (Shape{1, 8, 8, 3}));
  EXPECT_EQ(shape_behind(begin + twice + half + conv), (Shape{1, 8, 8, 3}));
  EXPECT_EQ(shape_behind(begin + half + half + twice + conv), (Shape{1, 4, 4, 3}));
}

// Images of few channels have more of them in the memory of a GPU.
TEST(Chain, MeasuresPeriodicBordersOfTheFirstImage) {
  const ModelOptions options = test::chain(
      "[{ kind = \"conv\", channels = 8, kernel = 3, dilation = 2, padding_mode = \"periodic\" }, "
      "{ kind = \"norm\" }, { kind = \"flatten\" }, " +
      std::string(linear) + "]");
  for (const DeviceKind target : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const DType dtype : {DType::float32, DType::bfloat16})
      EXPECT_EQ(measure_blocks(options, {2, 8, 8, 1}, {10}, dtype, target).size(), 2u);
  }
}

// A step larger than the image reaches one pixel.
TEST(Chain, ProjectsAResidualOfManySteps) {
  EXPECT_EQ(
      message_about("[{ kind = \"residual\", body = [{ kind = \"conv\", channels = 2, kernel = "
                    "3, stride = 15, repeat = 9 }] }, { kind = \"flatten\" }, " +
                    std::string(linear) + "]"),
      "");
  measure_blocks(test::chain("[{ kind = \"residual\", body = [{ kind = \"conv\", channels = 2, "
                             "kernel = 3, stride = 15, repeat = 9 }] }, { kind = \"flatten\" }, " +
                             std::string(linear) + "]"),
                 {2, 8, 8, 1}, {10}, DType::float32, DeviceKind::cpu);
}

/// Gives the chain's tensors the values of another model's, in the order of declaration.
void copy_weights(test::ModelFixture& from, test::ModelFixture& to,
                  const std::vector<std::string>& order) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int source = from.list.find(order[i]);
    ASSERT_GE(source, 0) << order[i];
    const Tensor values = from.store.master({static_cast<std::int32_t>(source)}),
                 target = to.store.master({static_cast<std::int32_t>(i)});
    ASSERT_EQ(values.elements(), target.elements()) << order[i];
    std::copy_n(values.as<float>(), values.elements(), target.as<float>());
  }
  to.store.weights_changed();
}

// A deck that lists a residual network block by block computes what the built-in family does.
TEST(Chain, ComputesTheBuiltInResidualNetwork) {
  const auto residual = [](int channels, int stride) {
    const std::string conv = "{ kind = \"conv\", kernel = 3, bias = false, channels = " +
                             std::to_string(channels),
                      norm = "{ kind = \"norm\" }";
    return "{ kind = \"residual\", body = [" + conv +
           ", padding = 1, stride = " + std::to_string(stride) + " }, " + norm +
           ", { kind = \"activation\" }, " + conv + " }, " + norm +
           "] }, { kind = \"activation\" }, ";
  };
  test::ModelFixture built_in(test::small_resnet());
  test::ModelFixtureOptions options = test::small_resnet();
  options.model = test::chain(
      "[{ kind = \"conv\", channels = 8, kernel = 3, bias = false }, { kind = "
      "\"norm\" }, { kind = \"activation\" }, " +
      residual(8, 1) + residual(16, 2) + residual(32, 2) +
      "{ kind = \"pool\", pool = \"global\" }, { kind = \"linear\", width = 5 }]");
  test::ModelFixture chain(options);
  std::vector<std::string> order;
  for (const auto& entry : built_in.list.entries()) order.push_back(entry.spec.name);
  ASSERT_EQ(order.size(), chain.list.entries().size());
  copy_weights(built_in, chain, order);
  built_in.store.weights_changed();
  EXPECT_EQ(chain.gradients(), built_in.gradients());
  const Tensor expected = built_in.store.flat_gradient(), found = chain.store.flat_gradient();
  ASSERT_EQ(expected.elements(), found.elements());
  double difference = 0, square = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    difference += std::pow(expected.as<float>()[i] - found.as<float>()[i], 2);
    square += std::pow(expected.as<float>()[i], 2);
  }
  EXPECT_GT(square, 1e-6);
  EXPECT_LT(std::sqrt(difference / square), 1e-5);
}

/// Returns a list of blocks with some numbers, words, or tables replaced, dropped or repeated.
std::string mutated(std::string text, const std::function<int(int)>& below) {
  static const std::vector<std::string> values = {"0",
                                                  "1",
                                                  "2",
                                                  "3",
                                                  "7",
                                                  "8",
                                                  "16",
                                                  "255",
                                                  "1024",
                                                  "65536",
                                                  "-1",
                                                  "0.5",
                                                  "1e30",
                                                  "nan",
                                                  "true",
                                                  "[]",
                                                  "[0, 1]",
                                                  "{}",
                                                  "\"conv\"",
                                                  "\"norm\"",
                                                  "\"layer\"",
                                                  "\"residual\"",
                                                  "\"global\"",
                                                  "\"flatten\"",
                                                  "\"attention\"",
                                                  "\"patches\"",
                                                  "\"transpose\"",
                                                  "\"same\"",
                                                  "\"\"",
                                                  "9223372036854775807"};
  for (int edit = 1 + below(3); edit > 0; --edit) {
    // Every value is behind "= " and in front of a comma or brace; every table ends with " }".
    std::vector<std::size_t> places;
    const std::string mark = below(3) > 0 ? "= " : "{ kind";
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1))
      places.push_back(at);
    if (places.empty()) return text;
    const std::size_t at = places[static_cast<std::size_t>(below(static_cast<int>(places.size())))];
    if (mark == "= ") {
      const std::size_t begin = at + mark.size(), end = text.find_first_of(",}]", begin);
      text.replace(begin, end - begin,
                   values[static_cast<std::size_t>(below(static_cast<int>(values.size())))]);
    } else {
      const std::size_t end = text.find('}', at) + 1;
      const std::string table = text.substr(at, end - at);
      text.replace(at, end - at, below(2) == 0 ? "{ kind = \"flatten\" }" : table + ", " + table);
    }
  }
  return text;
}

TEST(Chain, IsBuiltOrRefusedWhateverTheListSays) {
  int built = 0, refused = 0;
  for (int i = 0; i < 600; ++i) {
    int draws = 0;
    const auto below = [&](int count) {
      return static_cast<int>(
          uniform_at(static_cast<std::uint64_t>(i) + 1, static_cast<std::uint64_t>(draws++)) *
          count);
    };
    const std::vector<std::string> lists = {blocks_of(test::chain_of_convolutions("batch")),
                                            blocks_of(test::chain_of_convolutions("group")),
                                            blocks_of(test::chain_of_tokens())};
    const std::string list = mutated(lists[static_cast<std::size_t>(i % 3)], below);
    SCOPED_TRACE(list);
    try {
      const ModelOptions options = test::chain(list);
      EXPECT_EQ(blocks_of(test::chain(blocks_of(options))), blocks_of(options));
      measure_blocks(options, {2, 8, 8, 1}, {5}, DType::float32, DeviceKind::cpu);
      ++built;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(built, 20);
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace trireme::model
