// SPDX-License-Identifier: Apache-2.0
//
// Datasets of `check --assume`: a deck is checked before its data exist.
//
// An assumed set goes through all rules that take a DatasetInfo. Its form stands in the place of
// the folder in the deck, so that messages show the form and name the option as its location.
#include "assumed_data.hpp"

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

constexpr std::array splits = {"train", "validation", "test"};

// Sizes of the sets that are assumed together with the training set.
constexpr std::int64_t default_samples = 50'000, default_tokens = 10'000'000;

std::string& folder_of(deck::Deck& deck, const std::string& split) {
  return deck.data.*deck::folder_of_split(split);
}

/// Runs `body` and puts `place` in front of the message of an InputError.
template <class Body>
auto with_place(const std::string& place, Body&& body) {
  try {
    return body();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", place, error.what()));
  }
}

}  // namespace

AssumedData::AssumedData(const std::vector<std::string>& options) {
  for (const std::string& text : options) {
    std::string split = "train", form = text;
    for (const std::string name : splits) {
      if (!text.starts_with(name + "=")) continue;
      split = name;
      form = text.substr(name.size() + 1);
    }
    const std::string option = "--assume " + printable(text);
    const bool is_new = !sets_.contains(split);
    validate(is_new,
             "{}: the {} set is assumed twice; name the sets with train=, validation= and "
             "test=, each once",
             option, split);
    sets_[split] = {with_place(option, [&] { return data::parse_assumption(form); }), option};
  }
}

void AssumedData::replace_folders(deck::Deck& deck) {
  if (const auto train = sets_.find("train"); train != sets_.end()) {
    Set other = train->second;
    other.assumption.count =
        other.assumption.kind == data::DatasetKind::tokens ? default_tokens : default_samples;
    for (const std::string split : splits)
      if (!folder_of(deck, split).empty()) sets_.try_emplace(split, other);
  }
  for (const auto& [split, set] : sets_) {
    std::string& folder = folder_of(deck, split);
    validate(!folder.empty(),
             "{}: the deck has no data.{}; leave this out, or give the deck its folder with --set "
             "data.{}=FOLDER",
             set.option, split, split);
    folder = to_string(set.assumption);
    deck.key_locations["data." + split] = set.option;
  }
}

std::optional<data::DatasetInfo> AssumedData::find(const std::string& split,
                                                   const data::SampleForm& form) const {
  const auto found = sets_.find(split);
  if (found == sets_.end()) return std::nullopt;
  const data::Assumption& assumption = found->second.assumption;
  return with_place(fmt::format("data.{} = \"{}\"", split, to_string(assumption)),
                    [&] { return data::describe(assumption, form); });
}

std::vector<std::pair<std::string, std::string>> AssumedData::forms() const {
  std::vector<std::pair<std::string, std::string>> forms;
  for (const std::string split : splits)
    if (const auto set = sets_.find(split); set != sets_.end())
      forms.emplace_back(split, to_string(set->second.assumption));
  return forms;
}

std::vector<std::string> AssumedData::not_checked() const {
  if (empty()) return {};
  std::vector<std::string> names;
  for (const auto& [split, form] : forms()) names.push_back("data." + split);
  const std::string folders = fmt::format("folders and shards of {}", fmt::join(names, ", "));
  if (sets_.begin()->second.assumption.kind == data::DatasetKind::tokens)
    return {folders, "offsets of documents", "tokenizers",
            "tokens after the last whole sample of a shard"};
  if (!answer_of(sets_.begin()->second.assumption.answer).is_one_class())
    return {folders, "targets of the samples"};
  return {folders, "labels", "names of classes"};
}

}  // namespace trireme::app
