// SPDX-License-Identifier: Apache-2.0
#include "limits.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace trireme::deck
