// SPDX-License-Identifier: Apache-2.0
//
// Class names and tokenizers of datasets and checkpoints that are used together.
#include "trireme/data/labels/label_meaning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

using Names = std::vector<std::string>;

MeaningComparison compare_classes(const Names& first, const Names& second) {
  const MeaningComparison forth = compare_meanings({"A", first, "", ""}, {"B", second, "", ""});
  // The rule has no direction.
  const MeaningComparison back = compare_meanings({"B", second, "", ""}, {"A", first, "", ""});
  EXPECT_EQ(forth.difference.empty(), back.difference.empty());
  EXPECT_EQ(forth.not_compared, back.not_compared);
  return forth;
}

TEST(LabelMeaning, NamesOnBothSidesMustBeEqual) {
  EXPECT_EQ(compare_classes({"cat", "dog"}, {"cat", "dog"}).difference, "");
  EXPECT_EQ(compare_classes({"cat", "dog"}, {"cat", "dog"}).not_compared, "");
  EXPECT_THAT(compare_classes({"cat", "dog", "eel"}, {"cat", "eel", "dog"}).difference,
              HasSubstr("the class names differ at class 1: B calls it \"eel\", but A calls it "
                        "\"dog\""));
  EXPECT_THAT(compare_classes({"cat", "dog"}, {"cat", "dog", "eel"}).difference,
              HasSubstr("at class 2: B calls it \"eel\", but A has only 2 classes"));
  EXPECT_NE(compare_classes({"0", "1"}, {"1", "0"}).difference, "");
  // Names that look alike are shown in bytes.
  EXPECT_THAT(compare_classes({"caf\u00e9"}, {"cafe\u0301"}).difference,
              HasSubstr("(in bytes cafe\\xCC\\x81 and caf\\xC3\\xA9: probably one name in two"));
  EXPECT_THAT(compare_classes({"\uac00"}, {"\u1100\u1161"}).difference, HasSubstr("NFC and NFD"));
  EXPECT_THAT(compare_classes({"caf\u00e9"}, {"cafe"}).difference, Not(HasSubstr("in bytes")));
}

TEST(LabelMeaning, ASideWithoutNamesHasNumbersOfItsOwn) {
  EXPECT_EQ(compare_classes({}, {}).not_compared, "");
  for (const Names& names : {Names{"cat", "dog"}, Names{"0", "1", "2"}, Names{"00", "01"},
                             Names{"1", "10", "cat"}, Names{"n1", "n0"}}) {
    const MeaningComparison compared = compare_classes(names, {});
    EXPECT_EQ(compared.difference, "");
    EXPECT_EQ(compared.not_compared, "classes are not compared: B has no names");
  }
  EXPECT_THAT(
      compare_classes({"0", "1", "10", "2"}, {}).difference,
      HasSubstr("A names its classes with numbers in another order (class 2 is \"10\"), but "
                "B has no names"));
  EXPECT_THAT(compare_classes({}, {"1", "2", "3"}).difference, HasSubstr("(class 0 is \"1\")"));
}

TEST(LabelMeaning, TokenizersAreComparedByNameAndContent) {
  const auto compare = [](const std::string& first, const std::string& first_digest,
                          const std::string& second, const std::string& second_digest) {
    return compare_meanings({"A", {}, first, first_digest}, {"B", {}, second, second_digest});
  };
  const std::string pieces = "sentencepiece";
  EXPECT_EQ(compare("bytes", "", "bytes", "").not_compared, "");
  EXPECT_EQ(compare(pieces, "1", pieces, "1").not_compared, "");
  EXPECT_THAT(compare(pieces, "1", pieces, "2").difference,
              HasSubstr("the tokenizer.model of B is not that of A"));
  EXPECT_THAT(compare("bytes", "", pieces, "2").difference,
              HasSubstr("B was made with the tokenizer \"sentencepiece\", but A with \"bytes\""));
  EXPECT_EQ(compare(pieces, "1", pieces, "").not_compared,
            "tokenizers are not compared: B has no tokenizer.model");
  EXPECT_EQ(compare("", "", "bytes", "").not_compared, "tokenizers are not compared: A names none");
  EXPECT_EQ(compare(pieces, "1", pieces, "").difference, "");
}

TEST(LabelMeaning, DocumentsEndWithOneToken) {
  const auto compare = [](std::int64_t first, std::int64_t second) {
    return compare_meanings({"A", {}, "bytes", "", first}, {"B", {}, "bytes", "", second});
  };
  for (const std::int64_t token : {-1, 0, 256}) {
    EXPECT_EQ(compare(token, token).difference, "");
    EXPECT_EQ(compare(token, token).not_compared, "");
  }
  EXPECT_THAT(compare(0, 256).difference,
              HasSubstr("the documents of B end with token 256, but those of A with token 0"));
  EXPECT_EQ(compare(256, -1).difference, "");
  EXPECT_EQ(compare(256, -1).not_compared,
            "ends of documents are not compared: B names no end-of-text token");
  EXPECT_EQ(compare_meanings({"A", {}, "", "", 1}, {"B", {}, "bytes", "", -1}).not_compared,
            "tokenizers are not compared: A names none; ends of documents are not compared: B "
            "names no end-of-text token");
}

TEST(LabelMeaning, OfAllSidesIsComparedTwoByTwo) {
  std::vector<LabelMeaning> sides{{"A", {}, "", ""}, {"B", {"x", "y"}, "", ""}};
  sides.push_back({"C", {"x", "y"}, "", ""});
  EXPECT_EQ(validate_same_meaning(sides), Names{"classes are not compared: A has no names"});
  // The first side has no names, but the others contradict each other.
  sides[2].classes = {"y", "x"};
  EXPECT_THAT([&] { validate_same_meaning(sides); },
              ThrowsMessage<InputError>(
                  HasSubstr("the class names differ at class 0: C calls it \"y\", but B")));
}

TEST(LabelMeaning, OfAMergeKeepsNamesOfTheEarlierSideAlone) {
  const LabelMeaning before{"A", {"x", "y"}, "sentencepiece", "1234", 7};
  const LabelMeaning none = merge_meanings({"B", {}, "", "", -1}, before);
  EXPECT_EQ(none.classes, before.classes);
  EXPECT_EQ(none.tokenizer, "sentencepiece");
  EXPECT_EQ(none.tokenizer_digest, "1234");
  EXPECT_EQ(none.end_of_text, 7);
  EXPECT_EQ(merge_meanings({"B", {}, "sentencepiece", "", -1}, before).tokenizer_digest, "1234");
  // A digest belongs to its own tokenizer.
  EXPECT_EQ(merge_meanings({"B", {"z"}, "bytes", "", 9}, before).tokenizer_digest, "");
  EXPECT_EQ(merge_meanings({"B", {"z"}, "bytes", "", 9}, before).classes, Names{"z"});
  EXPECT_EQ(merge_meanings({"B", {"z"}, "bytes", "", 9}, before).end_of_text, 9);
}

TEST(LabelMeaning, AModelHasTheDigestOfItsContent) {
  const test::ScratchFolder folder;
  const auto digest_of = [&](const std::string& name, const std::string& content) {
    io::replace_file(folder / name, content);
    return digest_of_tokenizer(folder / name);
  };
  const std::string digest = digest_of("a.model", "pieces");
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(digest_of("b.model", "pieces"), digest);
  EXPECT_NE(digest_of("b.model", "Pieces"), digest);
  EXPECT_EQ(digest_of_tokenizer("bytes"), "");
  EXPECT_EQ(digest_of_tokenizer(folder / "absent.model"), "");
}

}  // namespace
}  // namespace trireme::data
