// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

using keys::Override;

/// The smallest valid deck.
inline const std::string minimal_deck =
    "[run]\nname = \"test\"\n[model]\ndepth = 8\n[data]\ntrain = \"somewhere\"\n";
inline const std::string minimal_mlp_deck =
    "[run]\nname = \"test\"\n[model]\nkind = \"mlp\"\nwidths = [8]\n[data]\ntrain = "
    "\"somewhere\"\n";

inline const std::string minimal_gpt_deck =
    "[run]\nname = \"test\"\n[model]\nkind = \"gpt\"\n[data]\ntrain = \"somewhere\"\n";

/// Returns the error message of parse(), or an empty string if the deck is valid.
inline std::string error_of(const std::string& text, const std::vector<Override>& overrides = {}) {
  try {
    parse(text, "deck.toml", overrides);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// Returns the smallest deck with these overrides.
inline Deck with(const std::vector<Override>& overrides) {
  return parse(minimal_deck, "deck.toml", overrides);
}

/// Returns the path of a key, as in "data.augment.flip".
inline std::string path_of(const KeyInfo& key) { return key.table + "." + key.key; }

/// Returns the keys in the written form of a deck, as in "data.augment.flip".
inline std::vector<std::string> written_keys(const Deck& deck) {
  std::vector<std::string> paths;
  std::istringstream stream(write(deck));
  std::string table;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with('[')) table = line.substr(1, line.size() - 2);
    if (const std::size_t end = line.find(" = "); end != std::string::npos)
      paths.push_back(table + "." + line.substr(0, end));
  }
  return paths;
}

inline int count_lines(const std::string& text) {
  return text.empty() ? 0 : static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
}

}  // namespace trireme::deck
