// SPDX-License-Identifier: Apache-2.0
#include "keys/limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::keys {
namespace {

TEST(ShortenMessage, KeepsTheReasonBehindALongValue) {
  const std::string letters(3000, 'a'), start(79, 'a');
  const std::string reason = " is too long; use \"10 epochs\"";
  for (const auto& [value, shorter] : {
           std::pair("\"" + letters + "\"", "\"" + start + "...\""),
           {letters + ":", "a" + start + "...:"},
           // An escaped quote does not end a value.
           {"\"\\\"" + letters + "\"", "\"\\\"" + start.substr(2) + "...\""},
           // An empty value before it: not a string over several lines.
           {"\"\"\"" + letters + "\"", "\"\"\"" + start + "...\""},
       })
    EXPECT_EQ(shorten_message("length = " + value + reason), "length = " + shorter + reason);
}

TEST(ShortenMessage, ALoneQuoteIsAWord) {
  const std::string letters(3000, 'a'), start(79, 'a');
  EXPECT_EQ(shorten_message("key \"" + letters + " has no end\nof its value"),
            "key \"" + start + "... has no end\nof its value");
  EXPECT_EQ(shorten_message(letters + "\nreason \""), "a" + start + "...\nreason \"");
}

TEST(ShortenMessage, TakesAsLongAsTheMessageIsLong) {
  std::string quotes = "\"";
  for (int i = 0; i < 500'000; ++i) quotes += "\\\"";
  EXPECT_EQ(shorten_message(quotes), quotes.substr(0, 2000) + "...");
}

TEST(ShortenMessage, KeepsShortMessagesAndCutsLongOnes) {
  const std::string text(2000, 'b');
  EXPECT_EQ(shorten_message(text), text);
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "a b ";
  EXPECT_EQ(shorten_message(words), words.substr(0, 2000) + "...");
}

/// Returns the key a.a.a... with `parts` parts.
std::string key_of_parts(int parts) {
  std::string text = "a";
  for (int i = 1; i < parts; ++i) text += ".a";
  return text;
}

/// Returns the message of the Reader's constructor for a text behind a first line.
std::string error_of(const std::string& text) {
  try {
    const Reader reader("first = 1\n" + text, "deck.toml");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Reader, RefusesDeepKeysAndArrays) {
  const std::string reason =
      ": a key of more than 64 parts; a deck's keys have three at most, as in data.augment.flip";
  EXPECT_EQ(error_of("[" + key_of_parts(200000) + "]\n"), "deck.toml:2" + reason);
  EXPECT_EQ(error_of(key_of_parts(65) + " = 1\n"), "deck.toml:2" + reason);
  // The key is searched behind strings of each kind.
  EXPECT_EQ(error_of("x = ['a\"', \"\\\"\", \"\"\"\n\"\"\", {" + key_of_parts(65) + " = 1}]\n"),
            "deck.toml:3" + reason);
  EXPECT_THAT(error_of("x = " + std::string(100000, '[') + "\n"),
              testing::StartsWith("deck.toml:2:"));
}

TEST(ReadFile, FilesThatCannotBeReadAreTheUsersMistake) {
  EXPECT_THROW(read_file("/nonexistent/deck.toml"), InputError);
  EXPECT_THROW(read_file("/"), InputError);
}

}  // namespace
}  // namespace trireme::keys
