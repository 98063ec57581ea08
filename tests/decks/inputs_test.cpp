// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

using keys::read_file;
namespace {

using testing::HasSubstr;

std::vector<std::string> shipped_decks() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(TRIREME_INPUTS))
    if (entry.path().extension() == ".toml") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class ShippedDecks : public testing::TestWithParam<std::string> {};

TEST_P(ShippedDecks, ParseAndReadBack) {
  const Deck deck = parse(read_file(GetParam()), GetParam());
  EXPECT_EQ(write(parse(write(deck), "resolved.toml")), write(deck));
}

// Each key of each deck in turn gets an additional letter; the error must name its line and the
// right key.
TEST_P(ShippedDecks, EveryMisspeltKeyIsNamedWithItsLine) {
  const std::string text = read_file(GetParam());
  std::size_t begin = 0;
  bool in_list = false;  // a table of model.blocks, whose message is that of the list
  for (int line = 1; begin < text.size(); ++line) {
    if (text[begin] == '[') in_list = text[begin + 1] == '[';
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::size_t equals = text.find(" = ", begin);
    if (text[begin] >= 'a' && text[begin] <= 'z' && equals < end) {
      std::string broken = text;
      broken.insert(equals, "q");
      const std::string key = text.substr(begin, equals - begin) + "q";
      try {
        parse(broken, "deck.toml");
        ADD_FAILURE() << key << " was taken";
      } catch (const InputError& error) {
        const std::string place = fmt::format("deck.toml:{}:1: ", line);
        const std::string message = error.what();
        if (in_list) {
          EXPECT_THAT(message,
                      HasSubstr(fmt::format("\"{}\" is an unknown key, did you mean \"{}\"?", key,
                                            text.substr(begin, equals - begin))));
          begin = end + 1;
          continue;
        }
        EXPECT_THAT(message, HasSubstr(place));
        const std::string remedy = fmt::format("{}: unknown key, did you mean \"{}\"?", key,
                                               text.substr(begin, equals - begin));
        EXPECT_THAT(message, HasSubstr(remedy));
      }
    }
    begin = end + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, ShippedDecks, testing::ValuesIn(shipped_decks()),
                         [](const auto& info) {
                           const std::filesystem::path path(info.param);
                           std::string name =
                               fmt::format("{}_{}", path.parent_path().filename().string(),
                                           path.stem().string());
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
                               '_');
                           return name;
                         });

TEST(ShippedDecks, WriteToDifferentFolders) {
  std::set<std::string> folders;
  for (const std::string& path : shipped_decks())
    EXPECT_TRUE(folders.insert(parse(read_file(path), path).run.folder).second) << path;
  EXPECT_FALSE(folders.empty());
}

}  // namespace
}  // namespace trireme::deck
