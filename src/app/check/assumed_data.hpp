// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/assumption.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::app {

/// The datasets that `check --assume` describes in the place of folders.
class AssumedData {
 public:
  AssumedData() = default;
  /// Parses the values of --assume: "[train=|validation=|test=]FORM"; without a name it is the
  /// training set. Throws InputError that names the option.
  explicit AssumedData(const std::vector<std::string>& options);

  /// Replaces the folders of the deck by forms, and their locations by the option. If the training
  /// set is assumed, so are the other sets of the deck: in its form, with 50,000 samples or 10
  /// million tokens. Throws InputError if an assumed set is not in the deck.
  void replace_folders(deck::Deck& deck);

  /// Returns the description of a set ("train", "validation", "test"); nothing if its folder is
  /// read. Throws InputError if it holds no sample of this form.
  std::optional<data::DatasetInfo> find(const std::string& split,
                                        const data::SampleForm& form) const;

  bool empty() const { return sets_.empty(); }
  /// Returns the forms by split, in the order train, validation, test.
  std::vector<std::pair<std::string, std::string>> forms() const;
  /// Returns what is not checked, because only the files show it.
  std::vector<std::string> not_checked() const;

 private:
  struct Set {
    data::Assumption assumption;
    std::string option;  // as on the command line
  };
  std::map<std::string, Set> sets_;  // by split
};

}  // namespace trireme::app
