// SPDX-License-Identifier: Apache-2.0
//
// The list of update rules.
#include "trireme/optim/rule.hpp"

#include <algorithm>
#include <vector>

#include "trireme/base/check.hpp"

namespace trireme::optim {

std::span<const UpdateRule* const> rules() {
  extern const UpdateRule sgd, adamw, lars, lamb, muon;
  static constexpr const UpdateRule* all[] = {&sgd, &adamw, &lars, &lamb, &muon};
  return all;
}

bool UpdateRule::has_key(std::string_view key) const {
  return std::ranges::find(keys, key) != keys.end();
}

const UpdateRule& rule(std::string_view word) {
  const auto found = std::ranges::find(rules(), word, &UpdateRule::word);
  ensure(found != rules().end(), "no update rule has the word {}", word);
  return **found;
}

std::string rule_words(const std::function<bool(const UpdateRule&)>& property,
                       std::string_view quote, std::string_view last) {
  std::vector<std::string_view> words;
  for (const UpdateRule* rule : rules())
    if (property(*rule)) words.emplace_back(rule->word);
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? ", " : last;
    text.append(quote).append(words[i]).append(quote);
  }
  return text;
}

std::string rule_words(std::string_view key, std::string_view quote, std::string_view last) {
  return rule_words([key](const UpdateRule& rule) { return key.empty() || rule.has_key(key); },
                    quote, last);
}

}  // namespace trireme::optim
