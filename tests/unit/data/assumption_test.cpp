// SPDX-License-Identifier: Apache-2.0
//
// Tests datasets that are assumed: their description is that of real shards with the same content,
// and wrong forms are refused with the part that is wrong.
#include "trireme/data/assumption.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image_set.hpp"
#include "support/scratch.hpp"
#include "token_set.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

using test::message_of;

void expect_equal(const DatasetInfo& assumed, const DatasetInfo& real) {
  EXPECT_EQ(assumed.kind, real.kind);
  EXPECT_EQ(assumed.samples, real.samples);
  EXPECT_EQ(assumed.height, real.height);
  EXPECT_EQ(assumed.width, real.width);
  EXPECT_EQ(assumed.channels, real.channels);
  EXPECT_EQ(assumed.target.count, real.target.count);
  EXPECT_EQ(assumed.context, real.context);
  EXPECT_EQ(assumed.vocabulary, real.vocabulary);
  EXPECT_EQ(assumed.tokens, real.tokens);
}

TEST(Assumption, OfImagesDescribesTheirShard) {
  const test::ScratchFolder folder;
  const ImageSet set(41);
  set.write(folder / "set", {41}, {"a", "b", "c", "d", "e"});
  expect_equal(describe(parse_assumption("images:41,3x2x1,5"), 0), Dataset(folder / "set").info());
}

TEST(Assumption, OfTokensHasTheSamplesOfOneShard) {
  constexpr std::int64_t context = 4;
  for (const std::int64_t count : {5, 8, 9, 103}) {
    const test::ScratchFolder folder;
    write_token_set(folder / "set", {count}, {.vocabulary = 257, .tokenizer = "bytes"});
    const std::string form = fmt::format("tokens:{},257", count);
    expect_equal(describe(parse_assumption(form), context),
                 Dataset(folder / "set", context).info());
  }
  EXPECT_EQ(message_of<InputError>([] { describe(parse_assumption("tokens:4,257"), context); }),
            "4 tokens contain no sample of context 4; at least 5 are needed");
}

TEST(Assumption, IsReadBackFromItsText) {
  for (const std::string text :
       {"images:1,1x1x1,1", "images:60000,28x28x3,10", "images:1281167,anyx3,1000",
        "fields:1000,64x64x2,3", "fields:1000,64x64x2,values:5", "fields:9,8x8x1,classes:4",
        "tokens:1000000000000,32000"})
    EXPECT_EQ(to_string(parse_assumption(text)), text);
  EXPECT_EQ(parse_assumption("images:9,anyx3,7").kind, DatasetKind::encoded_images);
  EXPECT_EQ(parse_assumption("images:9,8x8x3,7").kind, DatasetKind::images);
}

TEST(Assumption, OfAWrongFormIsRefusedWithThePartThatIsWrong) {
  for (const auto& [text, words] :
       {std::pair("", "write images:COUNT,HxWxC,CLASSES"),
        {"images", "write images:COUNT,HxWxC,CLASSES"},
        {"images:60000", "write images:COUNT,HxWxC,CLASSES"},
        {"pictures:1,2x2x1,3", "write images:COUNT,HxWxC,CLASSES"},
        {"tokens:100", "tokens:COUNT,VOCABULARY"},
        {"tokens:100,256,7", "tokens:COUNT,VOCABULARY"},
        {"images:0,2x2x1,3", "COUNT is \"0\""},
        {"images:-5,2x2x1,3", "COUNT is \"-5\""},
        {"images:60k,2x2x1,3", "COUNT is \"60k\""},
        {"images:99999999999999999999,2x2x1,3", "use a whole number from 1 to 1000000000000000"},
        {"images:10,2x2,3", "\"2x2\" is no size"},
        {"images:10,any,3", "\"any\" is no size"},
        {"images:10,anyx2x1,3", "the height is \"any\""},
        {"images:10,0x2x1,3", "the height is \"0\""},
        {"images:10,2x9999999x1,3", "the width is \"9999999\""},
        {"images:10,2x2x1025,3",
         "the number of channels is \"1025\"; use a whole number from 1 to 1024"},
        {"images:10,2x2x1,", "CLASSES is \"\""},
        {"tokens:10,4294967296", "use a whole number from 1 to 2147483647"},
        {"tokens:1\n0,256", "COUNT is \"1\\x0A0\""}}) {
    const std::string message = message_of<InputError>([&] { parse_assumption(text); });
    EXPECT_THAT(message, HasSubstr(words)) << text;
  }
}

}  // namespace
}  // namespace trireme::data
