// SPDX-License-Identifier: Apache-2.0
//
// JSON that others may have written: what is refused, and that the cost of it is bounded.

#include "trireme/io/json.hpp"

#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"

namespace trireme::io {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;
using Json = nlohmann::ordered_json;

Json parse(const std::string& text, const JsonLimits& limits = {}) {
  return parse_json<Json>(text, "record", limits);
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(BoundedJson, KeepsValuesAndTheOrderOfMembers) {
  const Json json = parse(R"({"b": [1, -2, 0.5, null, true], "a": {"x": "\u00e9"}})");
  EXPECT_EQ(json.dump(), R"({"b":[1,-2,0.5,null,true],"a":{"x":"é"}})");
  EXPECT_EQ(parse_json<nlohmann::json>("[1,2]", "record", {}).size(), 2u);
}

TEST(BoundedJson, RefusesMoreThanEachLimit) {
  for (const std::string open : {"[", R"({"a":)"}) {
    const std::string close = open == "[" ? "]" : "}";
    const auto nested = [&](int depth) {
      return repeated(open, depth) + "1" + repeated(close, depth);
    };
    EXPECT_NO_THROW(parse(nested(4), {.depth = 5}));
    EXPECT_THAT([&] { parse(nested(6), {.depth = 5}); },
                ThrowsMessage<InputError>(HasSubstr("record: is nested more than 5 levels deep")));
    EXPECT_THROW(parse(nested(100'000)), InputError);
    EXPECT_THROW(parse(repeated(open, 100'000)), InputError) << "without an end";
  }
  EXPECT_THAT([] { parse("[1,2,3,4]", {.values = 4}); },
              ThrowsMessage<InputError>(HasSubstr("more than 4 values")));
  EXPECT_THAT([] { parse(R"({"a":1,"b":2})", {.members = 1}); },
              ThrowsMessage<InputError>(HasSubstr("more than 1 members")));
  EXPECT_NO_THROW(parse(R"([{"a":1},{"b":2}])", {.members = 1})) << "of one object";
  EXPECT_THAT([] { parse("[1,2]", {.bytes = 4}); },
              ThrowsMessage<InputError>(HasSubstr("limit of 4")));
}

TEST(BoundedJson, TakesTimeThatGrowsWithTheTextNotItsSquare) {
  // 100,000 objects in one object took a minute when each was compared with all before it.
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += fmt::format("{}\"m{}\":{{}}", i > 0 ? "," : "", i);
  const std::clock_t begin = std::clock();
  EXPECT_EQ(parse_json<nlohmann::json>(
                text + "}", "text", {.bytes = 1 << 24, .values = 1'000'000, .members = 1'000'000})
                .size(),
            100'000u);
  constexpr int most_seconds = 20;
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, most_seconds);
}

TEST(BoundedJson, RefusesAmbiguousObjects) {
  EXPECT_THAT([] { parse(R"({"code":0,"x":{},"code":1})"); },
              ThrowsMessage<InputError>(HasSubstr("the member code occurs twice")));
  EXPECT_NO_THROW(parse(R"({"a":{"a":1},"b":[{"a":1},{"a":1}]})"));
}

TEST(BoundedJson, TellsTextsThatAreNotJsonFromThoseBeyondALimit) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\" 1}", "\xff", "[\"\xff\"]", "nul", "1 2", "1e999"})
    EXPECT_THROW(parse(text), NotJson) << text;
  EXPECT_EQ(message_of<InputError>([] { parse("[1,]"); }),
            "record: is not JSON: it is wrong at byte 4");
  EXPECT_EQ(message_of<InputError>([] { parse("[1e999]"); }),
            "record: has a number out of range (that of a double)");
}

TEST(BoundedJson, MembersAreThoseOfTheDocumentAndSoAreErrors) {
  const std::vector<std::string> keys{"a", "b", ""};
  const std::string digits(400, '9'), members_65 = [] {
    std::string text = R"({"b": 5)";
    for (int i = 0; i < 64; ++i) text += fmt::format(R"(, "m{}": 0)", i);
    return text + "}";
  }();
  for (const std::string& text :
       std::vector<std::string>{R"({"a": 1, "b": "x"})",
                                R"( { "b":-0.5e-3 ,"a" : true } )",
                                R"({"a":null})",
                                "{}",
                                R"({"x":{"a":1},"b":[{"a":2}]})",
                                R"({"\u0061":7,"b":"\"\u00e9"})",
                                R"({"":"é"})",
                                R"({"a":1,"a":2})",
                                R"({"x":1,"x":2})",
                                R"({"a":1,"\u0061":2})",
                                R"({"a":01})",
                                R"({"a":-})",
                                R"({"a":1.})",
                                R"({"a":.5})",
                                R"({"a":1e})",
                                R"({"a":+1})",
                                R"({"a":-0})",
                                R"({"a":1e999})",
                                R"({"a":1e99})",
                                R"({"a":-1e-400})",
                                R"({"a":NaN})",
                                R"({"a":nul})",
                                R"({"a":18446744073709551615,"b":18446744073709551616})",
                                R"({"a":)" + digits + "}",
                                R"({"a":0.)" + digits + "}",
                                R"({"a":1}x)",
                                R"({"a":1,})",
                                R"({"a" 1})",
                                R"({"a":1)",
                                R"({"a":"x)",
                                R"({"a)",
                                R"({a:1})",
                                "{\"a\":\"\t\"}",
                                "{\"a\":\"\xff\"}",
                                "{\t\"a\":1\r}",
                                "{\"a\":1}\n",
                                "[]",
                                "1",
                                "",
                                " ",
                                "\xef\xbb\xbf{\"a\":1}",
                                members_65,
                                std::string("{\"a\0\":1}", 8),
                                std::string("{\"a\":1}\0", 8),
                                "{\"a\":\"\x7f\"}"}) {
    for (const JsonLimits& limits :
         {JsonLimits{}, {.bytes = 18}, {.depth = 1}, {.values = 6}, {.members = 1}}) {
      std::vector<Json> values;
      nlohmann::json object;
      const std::string message = message_of<InputError>(
          [&] { object = parse_json_object<nlohmann::json>(text, "row", limits); });
      EXPECT_EQ(
          message_of<InputError>([&] { read_json_members(text, "row", limits, keys, values); }),
          message);
      for (std::size_t i = 0; message.empty() && i < keys.size(); ++i)
        EXPECT_EQ(values[i].dump(), object.value(keys[i], nlohmann::json()).dump()) << text;
    }
  }
}

TEST(BoundedJson, OfAFileOpensNeitherLinksNorPipes) {
  const test::ScratchFolder folder;
  replace_file(folder / "a.json", "{\"a\": 1}");
  EXPECT_EQ(read_json_file<Json>(folder / "a.json", {}).at("a"), 1);
  std::filesystem::create_symlink(folder / "a.json", folder / "link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(folder / "folder");
  for (const char* name : {"link", "pipe", "folder"})
    EXPECT_THAT([&] { read_json_file<Json>(folder / name, {}); },
                ThrowsMessage<InputError>(HasSubstr(std::string(": is a ") + name)))
        << name;
  EXPECT_EQ(read_text_file(folder / "link"), "{\"a\": 1}") << "inputs of the user may be links";
}

TEST(BoundedJson, OfAHugeFileIsRefusedUnread) {
  const test::ScratchFolder folder;
  replace_file(folder / "a.json", "");
  ASSERT_EQ(::truncate((folder / "a.json").c_str(), off_t{1} << 40), 0);
  EXPECT_THAT([&] { read_json_file<Json>(folder / "a.json", {}); },
              ThrowsMessage<InputError>(HasSubstr("more than")));
}

TEST(RenameAside, KeepsEveryEarlierFile) {
  const test::ScratchFolder folder;
  for (const char* text : {"first", "second", "third"}) {
    replace_file(folder / "a", text);
    rename_aside(folder / "a", damaged_suffix);
  }
  EXPECT_EQ(read_text_file(folder / "a.damaged"), "first");
  EXPECT_EQ(read_text_file(folder / "a.damaged.2"), "second");
  EXPECT_EQ(read_text_file(folder / "a.damaged.3"), "third");
}

TEST(ReplaceFile, ErrorsNameTheFileAndNotTheTemporaryOne) {
  const test::ScratchFolder folder;
  std::filesystem::create_directory(folder / "taken");
  for (const char* name : {"none/a", "taken"}) {
    const std::string message =
        test::message_of<InputError>([&] { replace_file(folder / name, ""); });
    EXPECT_THAT(message, testing::StartsWith((folder / name) + ": cannot be "));
    EXPECT_THAT(message, testing::Not(testing::HasSubstr(".tmp")));
  }
}

TEST(ReplaceFile, WritesThroughNoLinkBesideIt) {
  const test::ScratchFolder folder;
  replace_file(folder / "other", "precious");
  const std::string temporary = (folder / "a") + ".tmp" + std::to_string(::getpid());
  std::filesystem::create_symlink(folder / "other", temporary);
  std::filesystem::create_symlink(folder / "other", folder / "a");
  replace_file(folder / "a", "new");
  EXPECT_EQ(read_text_file(folder / "other"), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "a"));
  EXPECT_EQ(read_text_file(folder / "a"), "new");
}

}  // namespace
}  // namespace trireme::io
