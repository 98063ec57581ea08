// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

/// The meaning of labels and tokens: names of classes, the tokenizer, and the token that ends
/// documents. Datasets and checkpoints that are used together must have the same.
struct LabelMeaning {
  std::string place;                 ///< for messages: a deck key with its folder, or a checkpoint
  std::vector<std::string> classes;  ///< names of images' classes; may be empty
  std::string tokenizer;             ///< as DatasetInfo::tokenizer
  std::string tokenizer_digest;      ///< as DatasetInfo::tokenizer_digest
  std::int64_t end_of_text = -1;     ///< as DatasetInfo::end_of_text
};

/// Returns the meaning of the labels and tokens of the dataset that a deck key names.
LabelMeaning meaning_of(const DatasetInfo& info, const std::string& key, const std::string& folder);

/// Returns the names of classes 0 .. classes - 1, from the first side that has so many, or their
/// numbers.
std::vector<std::string> class_names(std::span<const LabelMeaning> sides, std::int64_t classes);

struct MeaningComparison {
  std::string difference;    ///< the first one, as the text of an error; empty: none is known
  std::string not_compared;  ///< a line for the user on what one side does not say; else empty
};

/// Compares the meanings of two sides.
///
/// - Class names on both sides must be equal, in their order.
/// - If one side has none, the other's must not be whole numbers in another order: labels of the
///   first side are probably these numbers.
/// - Tokenizers must have one name, and SentencePiece models one content.
/// - Documents must end with one token, if both sides name it.
MeaningComparison compare_meanings(const LabelMeaning& first, const LabelMeaning& second);

/// Returns the meaning of `now`, completed by what only `before` names. The two must not differ.
LabelMeaning merge_meanings(LabelMeaning now, const LabelMeaning& before);

/// Compares every two of the sides. Throws InputError with the first difference. Returns lines for
/// the user on sides that could not be compared.
std::vector<std::string> validate_same_meaning(std::span<const LabelMeaning> sides);

}  // namespace trireme::data
