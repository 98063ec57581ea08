// SPDX-License-Identifier: Apache-2.0
//
// Texts in JSON Lines.
#include "data/tokens/jsonl.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gzip_file.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

/// Returns the texts of a file of JSON Lines, and the messages about its lines.
std::vector<std::string> read_lines(const std::string& path, const std::string& member = "text") {
  std::vector<std::string> found;
  JsonLineReader reader(path, member);
  for (JsonLine line; reader.next(line);)
    found.push_back(line.problem.empty() ? line.text
                                         : fmt::format("{}: {}", line.number, line.problem));
  return found;
}

TEST(JsonLines, TheMemberOfEachLineIsItsText) {
  const test::ScratchFolder folder;
  const std::string text =
      "{\"text\": \"one\\ntwo \\u00e4 \\ud83d\\udea3\", \"id\": 7}\r\n"
      "\n  \t\r\n"
      "{\"meta\": {\"text\": \"inner\", \"list\": [{\"text\": 1}]}, \"text\": \"\"}\n"
      "{\"text\": [], \"text\": \"last counts\"}";
  const std::vector<std::string> meant{"one\ntwo \xc3\xa4 \xf0\x9f\x9a\xa3", "", "last counts"};
  io::replace_file(folder / "a.jsonl", text);
  compress_to(folder / "a.jsonl.gz", text);
  EXPECT_EQ(read_lines(folder / "a.jsonl"), meant);
  EXPECT_EQ(read_lines(folder / "a.jsonl.gz"), meant);
  io::replace_file(folder / "deep", "{\"text\": \"a\", \"b\": " + std::string(1'000'000, '[') +
                                        std::string(1'000'000, ']') + "}\n");
  EXPECT_EQ(read_lines(folder / "deep"), std::vector<std::string>{"a"});
}

TEST(JsonLines, LinesThatCannotBeUsedAreNamed) {
  const test::ScratchFolder folder;
  io::replace_file(folder / "digits", "{\"x\": " + std::string(5000, '9') + "}");
  EXPECT_THAT(read_lines(folder / "digits")[0], HasSubstr("1: has the number 9999"));
  for (const auto& [line, problem] :
       {std::pair("{\"text\": 5}", "its member \"text\" is a number"),
        std::pair("{\"text\": null}", "is null"),
        std::pair("{\"text\": [\"a\"]}", "is a list"),
        std::pair("{\"text\": {\"text\": \"a\"}}", "is an object"),
        std::pair("{\"text\": true}", "is a truth value"),
        std::pair("{\"content\": \"a\", \"id\": 1}", "its members are: content, id"),
        std::pair("{}", "its members are: none"),
        std::pair("[\"text\"]", "is a list; a line must"),
        std::pair("\"text\"", "is a string; a line must"),
        std::pair("17", "is a number; a line"),
        std::pair("{\"text\": \"a\"", "is not JSON: it is wrong at byte"),
        std::pair("{\"text\": \"a\"} {}", "is not JSON"),
        std::pair("{\"text\": \"a\", \"x\": NaN}",
                  "is not JSON: NaN at byte 20 of the line is no value of JSON; write null"),
        std::pair("{\"text\": \"a\", \"x\": 1e999}",
                  "has the number 1e999 at byte 24, which is out of range"),
        std::pair("{\"x\": [-Infinity]}", "is not JSON: -Infinity at byte"),
        std::pair("{\"x\": nan}", "is not JSON: nan at byte"),
        std::pair("{\"x\": none}", "is not JSON: it is wrong at byte"),
        std::pair("{'text': 'a'}", "is not JSON: it is wrong at byte 2"),
        std::pair("{\"text\": \"\xff\"}", "is not JSON"),
        std::pair("{\"text\": \"\\ud800\"}", "is not JSON")}) {
    io::replace_file(folder / "a", "{\"text\": \"good\"}\n" + std::string(line) + "\n");
    const std::vector<std::string> lines = read_lines(folder / "a");
    ASSERT_EQ(lines.size(), 2u) << line;
    EXPECT_THAT(lines[1], AllOf(StartsWith("2: "), HasSubstr(problem)));
  }
}

TEST(JsonLines, ATextOfALineIsADocument) {
  const test::ScratchFolder folder;
  const std::string longest(30'000, 'x');
  io::replace_file(folder / "a", "{\"t\": \"ab\"}\n{\"t\": \"\"}\nnone\n{\"t\": \"" + longest +
                                     "\"}\n{\"u\": 1}\n{\"t\": \"c\"}");
  const std::unique_ptr<Tokenizer> bytes = byte_tokenizer();
  const EncodedText text = encode_text_file({folder / "a", "t", true}, *bytes, folder / "spool");
  EXPECT_EQ(io::read_text_file(text.tokens.path), "ab" + longest + "c");
  EXPECT_EQ(text.tokens.document_ends, (std::vector<std::int64_t>{2, 30'002, 30'003}));
  ASSERT_EQ(text.skipped.size(), 2u);
  EXPECT_EQ(text.skipped[0].place, folder / "a" + std::string(":3"));
  EXPECT_EQ(text.skipped[1].place, folder / "a" + std::string(":5"));
  EXPECT_THAT([&] { encode_text_file({folder / "a", "t", false}, *bytes, folder / "spool"); },
              ThrowsMessage<InputError>(HasSubstr("a:3: is not JSON")));
  EXPECT_EQ(sample_lines({{folder / "a", "t", true}}, 100).size(), 1 + 30'000 / 1024 + 1 + 1u);
}

}  // namespace
}  // namespace trireme::data
