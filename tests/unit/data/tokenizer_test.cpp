// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers: bytes, SentencePiece, and UTF-8 checks.
#include "trireme/data/tokens/tokenizer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "token_set.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Lt;
using testing::Not;
using testing::ThrowsMessage;

TEST(Tokenizer, BytesStandForThemselves) {
  const std::unique_ptr<Tokenizer> bytes = open_tokenizer("bytes");
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  const std::vector<std::int32_t> ids = bytes->encode(all);
  EXPECT_EQ(bytes->vocabulary(), 256);
  EXPECT_EQ(*std::max_element(ids.begin(), ids.end()), 255);
  EXPECT_EQ(bytes->decode(ids), all);
  EXPECT_EQ(bytes->decode(std::vector<std::int32_t>{-1, 65, 256}), "A");
}

TEST(Utf8, WrongBytesAreFoundAtTheirPlace) {
  const std::string good = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x9a\xa3z";
  EXPECT_EQ(first_invalid_byte(good), good.size());
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xc3z"})
    EXPECT_EQ(first_invalid_byte(good + bad), good.size()) << bad;
  for (std::size_t limit = 1; limit <= good.size(); ++limit) {
    const std::size_t whole = character_boundary(good, limit);
    EXPECT_LE(whole, limit);
    EXPECT_EQ(first_invalid_byte(std::string_view(good).substr(0, whole)), whole) << limit;
    EXPECT_GT(whole + 4, limit);
  }
  EXPECT_EQ(character_boundary(std::string(9, '\x80'), 7), 7u);  // not UTF-8: the limit itself
}

// Returns a text in an invented language of 400 words, which a tokenizer can learn.
std::string story(int sentences) {
  const char* syllables[] = {"tri", "re",  "me", "oar", "sal", "am",
                             "is",  "ath", "en", "pi",  "rae", "us"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    for (int j = 0; j < 8; ++j) {
      const int word = (i * i + j * (i % 7 + 3) + j * j * j) % 400;
      text += fmt::format("{}{}{} ", syllables[word % 12], syllables[word / 12 % 12],
                          word % 3 == 0 ? syllables[word % 11] : "");
    }
    text += i % 11 == 0 ? "\n\n" : ".\n";
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

struct SentencePiece : testing::Test {
  static constexpr std::int64_t vocabulary = 350;
  void SetUp() override {
    if (!has_sentencepiece()) GTEST_SKIP() << "this build is without SentencePiece";
    // Trained once for all tests.
    static const std::string trained = train_tokenizer(lines_of(story(2000)), vocabulary);
    model = trained;
  }
  /// Returns the tokens of a text as `shard text` stores them.
  std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, const std::string& text,
                                    std::size_t token_bytes = 2) {
    io::replace_file(folder / "text", text);
    const TokenFile file = encode_text_file({folder / "text"}, tokenizer, folder / "spool").tokens;
    EXPECT_EQ(static_cast<std::size_t>(file.token_bytes), token_bytes);
    const std::string stored = io::read_text_file(file.path);
    EXPECT_EQ(std::ssize(stored), file.token_bytes * file.count);
    std::vector<std::int32_t> ids(stored.size() / token_bytes);
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::memcpy(&ids[i], stored.data() + i * token_bytes, token_bytes);  // little-endian
    return ids;
  }
  std::string model;
  test::ScratchFolder folder;
};

// Fields of a model that replace earlier ones: see sentencepiece_model.proto.
std::string with_choices(const std::string& model, bool blank, bool trim, bool at_the_end) {
  const auto flag = [](bool value) { return std::string(1, value ? '\1' : '\0'); };
  return model + "\x1a\x02\x18" + flag(blank) + "\x1a\x02\x20" + flag(trim) + "\x12\x03\xc0\x01" +
         flag(at_the_end);
}

TEST_F(SentencePiece, TokensOfPartsDecodeToTheTextOfTheWhole) {
  std::string no_blanks, indented, accents;
  for (int i = 0; i < 20'000; ++i) no_blanks += static_cast<char>('a' + i * i % 13);
  for (int i = 0; i < 1500; ++i) indented += std::string(i % 5 * 3, ' ') + "tri = oar;  \n";
  for (int i = 0; i < 5000; ++i) accents += "e\xcc\x81";
  const std::string blanks = "tri" + std::string(20'000, ' ') + "re\n" + std::string(9000, '\n');
  for (int choice = 0; choice < 8; ++choice) {
    const auto tokenizer = sentencepiece_tokenizer(
        with_choices(model, choice & 1, choice & 2, choice & 4), "changed model");
    for (const std::string& text :
         {story(600), no_blanks, indented, accents, blanks, std::string(8192, 'x')})
      EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, text)),
                tokenizer->decode(tokenizer->encode(text)))
          << choice << " " << text.substr(0, 20);
  }
}

/// Returns a field of a protobuf message.
std::string field(int number, const std::string& content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} +
         content;
}

/// Returns a model of a few letters without pieces for bytes. `tests`: it tests itself with "tri".
std::string model_of_letters(bool tests) {
  std::string model = field(1, field(1, "<unk>") + "\x18\x02");
  for (const char* piece : {"\xe2\x96\x81", "t", "r", "i", "e"}) {
    const std::string score("\0\0\x80\xbf", 4);  // -1 as a float
    model += field(1, field(1, piece) + "\x15" + score);
  }
  if (tests) model += field(4, field(1, field(1, "tri") + field(2, "\xe2\x96\x81 t r i")));
  return model;
}

TEST_F(SentencePiece, PartsOfUnknownCharactersAreOneToken) {
  const auto tokenizer = sentencepiece_tokenizer(model_of_letters(false), "letters");
  std::string text = "tri ";
  for (int i = 0; i < 9000; ++i) text += "\xe6\x97\xa5";
  text += " re";
  const std::vector<std::int32_t> whole = tokenizer->encode(text),
                                  parts = encoded(*tokenizer, text, 1);
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(std::count(parts.begin(), parts.end(), tokenizer->unknown()), 1);
}

TEST_F(SentencePiece, ModelsThatTestThemselvesEncodeLongTexts) {
  const auto tokenizer = sentencepiece_tokenizer(model_of_letters(true), "letters");
  std::string text;
  for (int i = 0; i < 9000; ++i) text += "tire"[i * i % 4];
  EXPECT_EQ(encoded(*tokenizer, text, 1), tokenizer->encode(text));
  EXPECT_THAT([&] { sentencepiece_tokenizer(model_of_letters(true) + "\x1a\x02\x18" + '\0', "x"); },
              ThrowsMessage<InputError>(HasSubstr("x: is not a SentencePiece model")))
      << "the sample is of another model";
}

TEST_F(SentencePiece, TokensOfTextAreKnown) {
  const auto tokenizer = sentencepiece_tokenizer(model, "model");
  const std::int32_t end = tokenizer->id_of("</s>");
  EXPECT_GE(end, 0);
  EXPECT_FALSE(tokenizer->is_text(end));
  EXPECT_TRUE(tokenizer->is_text(tokenizer->unknown()));
  for (const std::int32_t id : tokenizer->encode(story(5))) EXPECT_TRUE(tokenizer->is_text(id));
  EXPECT_FALSE(tokenizer->is_text(vocabulary));
  EXPECT_EQ(tokenizer->id_of("no such piece"), -1);
}

TEST_F(SentencePiece, UnusedAndControlPiecesAreNeverEncoded) {
  // Types of pieces: 3 is control, 5 unused.
  for (const char type : {'\3', '\5'}) {
    const std::string score(4, '\0');  // the best one
    const auto tokenizer = sentencepiece_tokenizer(
        model_of_letters(false) + field(1, field(1, "tri") + "\x15" + score + "\x18" + type),
        "letters");
    const std::int32_t piece = tokenizer->id_of("tri");
    EXPECT_EQ(piece, 6);
    EXPECT_FALSE(tokenizer->is_text(piece));
    const std::vector<std::int32_t> ids = tokenizer->encode("tri tri");
    EXPECT_THAT(ids, Not(Contains(piece)));
    EXPECT_EQ(tokenizer->decode(ids), "tri tri");
  }
}

TEST_F(SentencePiece, DecodingGivesTheTextBack) {
  const std::unique_ptr<Tokenizer> tokenizer = sentencepiece_tokenizer(model, "model");
  EXPECT_EQ(tokenizer->vocabulary(), vocabulary);
  for (const std::string& text :
       {story(20), std::string("  two blanks, a\ttab\r\n\n and an end \n"),
        std::string("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x9a\xa3, never seen"), std::string()}) {
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_THAT(ids, Each(AllOf(Ge(0), Lt(vocabulary))));
  }
  // The trainer chooses the pieces that it keeps, and the choice depends on its version:
  // - Up to 0.1.97 it keeps the syllables of which all words consist: a third as many pieces as
  //   characters.
  // - Later versions keep whole words and spell the others: two thirds.
  // The bound is the weakest case: each piece besides bytes, letters and marks is one of the 400
  // words and covers its 6 characters.
  constexpr double letters_and_marks = 3 + 14, words = 400, characters_of_a_word = 6;
  const double words_kept = (vocabulary - 256 - letters_and_marks) / words;
  EXPECT_LT(
      static_cast<double>(tokenizer->encode(story(20)).size()),
      static_cast<double>(story(20).size()) * (1 - words_kept * (1 - 1 / characters_of_a_word)));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{-1, 1 << 20}), "");
}

TEST_F(SentencePiece, TheSameLinesGiveTheSameModel) {
  EXPECT_EQ(train_tokenizer(lines_of(story(2000)), vocabulary), model);
}

TEST_F(SentencePiece, UnsupportedInputIsNamed) {
  EXPECT_THAT([&] { train_tokenizer(lines_of(story(2000)), 100'000); },
              ThrowsMessage<InputError>(HasSubstr(
                  "--train-tokenizer 100000: cannot be trained on this text: Vocabulary size")));
  EXPECT_THAT([&] { train_tokenizer(lines_of(story(2000)), 10); },
              ThrowsMessage<InputError>(HasSubstr("--train-tokenizer 10")));
  EXPECT_THAT([&] { train_tokenizer({"fine", "\xff"}, 300); },
              ThrowsMessage<InputError>(HasSubstr("not entirely UTF-8")));
  EXPECT_THAT([&] { sentencepiece_tokenizer("garbage", "x.model"); },
              ThrowsMessage<InputError>(HasSubstr("x.model: is not a SentencePiece model")));
  EXPECT_THAT([&] { open_tokenizer(folder / "none.model"); },
              ThrowsMessage<InputError>(HasSubstr("none.model")));
  EXPECT_THAT([&] { sentencepiece_tokenizer(model, "model")->encode("ab\xff"); },
              ThrowsMessage<InputError>(HasSubstr("byte 2")));
}

TEST_F(SentencePiece, ATextIsEncodedAsItsLinesAre) {
  const std::unique_ptr<Tokenizer> tokenizer = sentencepiece_tokenizer(model, "model");
  const std::string text = story(20'000);  // some 900 KB
  io::replace_file(folder / "text", text);
  const std::vector<std::int32_t> ids = encoded(*tokenizer, text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  std::vector<std::int32_t> by_line;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    end = text.find('\n', at) + 1;
    const std::vector<std::int32_t> line = tokenizer->encode(text.substr(at, end - at));
    by_line.insert(by_line.end(), line.begin(), line.end());
  }
  // Single ids are not compared: if two spellings of a word have the same score, rounding of the
  // sum decides.
  EXPECT_NEAR(static_cast<double>(ids.size()), static_cast<double>(by_line.size()),
              1e-3 * static_cast<double>(by_line.size()));
  io::replace_file(folder / "broken", text + "\xff");
  EXPECT_THAT([&] { encode_text_file({folder / "broken"}, *tokenizer, folder / "spool"); },
              ThrowsMessage<InputError>(
                  HasSubstr(fmt::format("broken: byte {} is not UTF-8", text.size()))));
}

TEST_F(SentencePiece, IsFoundBesideItsShards) {
  write_token_set(folder / "pieces", {20},
                  {.vocabulary = vocabulary, .tokenizer = "sentencepiece"});
  EXPECT_THAT([&] { encoding_of_dataset(folder / "pieces"); },
              ThrowsMessage<InputError>(HasSubstr("tokenizer.model")));
  io::replace_file(folder / "pieces/tokenizer.model", model);
  EXPECT_EQ(encoding_of_dataset(folder / "pieces").tokenizer->vocabulary(), vocabulary);
  write_token_set(folder / "bytes", {20}, {.vocabulary = 256, .tokenizer = "bytes"});
  EXPECT_EQ(encoding_of_dataset(folder / "bytes").tokenizer->name(), "bytes");
  write_token_set(folder / "unnamed", {20}, {.vocabulary = 256, .tokenizer = {}});
  EXPECT_THAT([&] { encoding_of_dataset(folder / "unnamed"); },
              ThrowsMessage<InputError>(HasSubstr("attribute tokenizer")));
}

}  // namespace
}  // namespace trireme::data
