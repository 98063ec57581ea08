// SPDX-License-Identifier: Apache-2.0
//
// Wrong decks: each mistakes/NAME.toml is refused with exactly the messages in NAME.expected.
//
// A deck may begin with changes that make it valid, mostly those that its message proposes. Each
// line counts by itself:
//
//   # valid with --set batch.micro=50 --unset batch.ramp
//   # valid for an evaluation
//
// An expected file that ends with "..." is the beginning of the message (texts of toml++).
//
// After a change of messages, record the expected files again and review the difference:
//
//   TRIREME_RECORD=1 build/release/bin/test_decks --gtest_filter='*WrongDecks*'
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

using keys::Override, keys::read_file;
namespace {

/// Returns the names of the files with this extension, without it.
std::set<std::string> names_of_mistakes(const std::string& extension) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TRIREME_MISTAKES))
    if (entry.path().extension() == extension) names.insert(entry.path().stem().string());
  return names;
}

/// Reads " --set KEY=VALUE --unset KEY", as a command line has it without quotes.
std::vector<Override> overrides_of(const std::string& words) {
  std::vector<Override> overrides;
  std::size_t begin = 0;
  while ((begin = words.find(" --", begin)) != std::string::npos) {
    const std::size_t key = words.find(' ', begin + 1) + 1;
    const std::size_t end = std::min(words.find(" --", key), words.size());
    const std::string option = words.substr(begin + 1, key - begin - 2);
    const std::string item = words.substr(key, end - key);
    const std::size_t equals = item.find('=');
    if (option == "--unset" && equals == std::string::npos)
      overrides.push_back({item, std::nullopt});
    else if (option == "--set" && equals != std::string::npos)
      overrides.push_back({item.substr(0, equals), item.substr(equals + 1)});
    else
      ADD_FAILURE() << option << " " << item << ": --set takes KEY=VALUE and --unset takes KEY";
    begin = end;
  }
  return overrides;
}

class WrongDecks : public testing::TestWithParam<std::string> {
 protected:
  std::string file = GetParam() + ".toml";
  std::filesystem::path folder = TRIREME_MISTAKES;
  std::string text = read_file((folder / file).string());
  std::filesystem::path expected = folder / (GetParam() + ".expected");

  /// Returns the messages of the deck, or an empty string if it is valid.
  std::string messages(const std::vector<Override>& overrides = {},
                       DeckPurpose purpose = DeckPurpose::training) {
    try {
      parse(text, file, overrides, purpose);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::wrong_input);
      return error.what() + std::string("\n");
    }
    return "";
  }

  bool is_expected(const std::string& message) const {
    const std::string whole = std::filesystem::exists(expected) ? read_file(expected.string()) : "";
    const std::string ellipsis = "...\n";
    if (!whole.ends_with(ellipsis)) return message == whole;
    return message.starts_with(whole.substr(0, whole.size() - ellipsis.size()));
  }

  void expect_valid(const std::string& change) {
    if (change == "for an evaluation")
      EXPECT_EQ(messages({}, DeckPurpose::evaluation), "") << change;
    else if (change.starts_with("with --"))
      EXPECT_EQ(messages(overrides_of(change)), "") << change;
    else
      ADD_FAILURE() << "\"# valid " << change << "\" has neither form at the top of this test";
  }
};

TEST_P(WrongDecks, AreRefusedAsExpectedAndValidWhenChanged) {
  const std::string refused = messages();
  ASSERT_NE(refused, "") << file << " has no mistake";
  std::istringstream lines(text);
  const std::string mark = "# valid ";
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(mark)) expect_valid(line.substr(mark.size()));
  if (std::getenv("TRIREME_RECORD") != nullptr && !is_expected(refused)) {
    std::ofstream file(expected);
    ASSERT_TRUE(file << refused << std::flush) << expected;
    GTEST_SKIP() << "recorded " << expected;
  }
  EXPECT_TRUE(is_expected(refused)) << refused << "is not " << read_file(expected.string());
}

INSTANTIATE_TEST_SUITE_P(Folder, WrongDecks, testing::ValuesIn(names_of_mistakes(".toml")),
                         [](const auto& info) { return info.param; });

TEST(WrongDecks, EveryExpectedFileHasADeck) {
  const std::set<std::string> decks = names_of_mistakes(".toml");
  for (const std::string& name : names_of_mistakes(".expected"))
    EXPECT_TRUE(decks.contains(name)) << name << ".expected has no " << name << ".toml";
}

}  // namespace
}  // namespace trireme::deck
