#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

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

inline int count_lines(const std::string& text) {
  return text.empty() ? 0 : static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
}

}  // namespace trireme::deck
