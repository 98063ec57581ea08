// SPDX-License-Identifier: Apache-2.0
#include "limits.hpp"

#include "support.hpp"

namespace trireme::deck {
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

// Decks too long for tests/decks/mistakes. Their last lines come behind the six of the smallest.
TEST(DeckLimits, DeepKeysAndArraysAreRefused) {
  const std::string reason =
      ": a key of more than 64 parts; a deck's keys have three at most, as in data.augment.flip";
  EXPECT_EQ(error_of(minimal_deck + "[" + key_of_parts(200000) + "]\n"), "deck.toml:7" + reason);
  EXPECT_EQ(error_of(minimal_deck + key_of_parts(65) + " = 1\n"), "deck.toml:7" + reason);
  // The key is searched behind strings of each kind.
  EXPECT_EQ(error_of(minimal_deck + "x = ['a\"', \"\\\"\", \"\"\"\n\"\"\", {" + key_of_parts(65) +
                     " = 1}]\n"),
            "deck.toml:8" + reason);
  EXPECT_THAT(error_of(minimal_deck + "x = " + std::string(100000, '[') + "\n"),
              testing::StartsWith("deck.toml:7:"));
}

}  // namespace
}  // namespace trireme::deck
