// SPDX-License-Identifier: Apache-2.0
//
// The rule by which class names, tokenizers and ends of documents of datasets and checkpoints
// belong together. `check`, `train`, `evaluate`, `generate` and restarts call it.
#include "trireme/data/labels/label_meaning.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard.hpp"

namespace trireme::data {
namespace {

constexpr const char* class_remedy = "make all datasets with one list of classes in one order";
constexpr const char* tokenizer_remedy = "make all datasets with one tokenizer";

std::string quoted(const std::string& name) { return fmt::format("\"{}\"", printable(name, 80)); }

/// Returns whether a name has characters that are added to the one before, as decomposed texts
/// (NFD) have: accents, voice marks, letters of Hangul.
bool is_decomposed(std::string_view name) {
  for (std::size_t i = 0; i + 1 < name.size(); ++i) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(name[at]); };
    const bool is_accent = byte(i) == 0xCC || (byte(i) == 0xCD && byte(i + 1) <= 0xAF),
               is_hangul = byte(i) == 0xE1 && byte(i + 1) >= 0x84 && byte(i + 1) <= 0x87,
               is_voice_mark = name.substr(i, 3) == "\u3099" || name.substr(i, 3) == "\u309A";
    if (is_accent || is_hangul || is_voice_mark) return true;
  }
  return false;
}

/// Returns the bytes of two names that look alike if they differ in their Unicode form; else "".
std::string form_difference(const std::string& first, const std::string& second) {
  if (is_decomposed(first) == is_decomposed(second)) return "";
  const auto escaped = [](const std::string& name) {
    std::string text;
    for (const char c : name)
      text += c >= ' ' && c <= '~' ? std::string(1, c)
                                   : fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    return text.substr(0, 120);
  };
  return fmt::format(" (in bytes {} and {}: probably one name in two Unicode forms, NFC and NFD)",
                     escaped(first), escaped(second));
}

/// Returns the first class whose name differs from its number, if all names are whole numbers; else
/// the number of classes.
std::size_t find_number_out_of_place(const std::vector<std::string>& classes) {
  std::size_t first = classes.size();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::optional<std::int64_t> number = parse_integer(classes[i]);
    if (!number) return classes.size();
    if (*number != static_cast<std::int64_t>(i)) first = std::min(first, i);
  }
  return first;
}

/// Compares the classes of a side that has names with one that has none.
MeaningComparison compare_with_unnamed(const LabelMeaning& named, const LabelMeaning& unnamed) {
  const std::size_t other = find_number_out_of_place(named.classes);
  if (other < named.classes.size())
    return {.difference = fmt::format(
                "{} names its classes with numbers in another order (class {} is {}), but {} has "
                "no names, so its labels are probably these numbers; give both the same classes, "
                "as by --classes of shard",
                named.place, other, quoted(named.classes[other]), unnamed.place),
            .not_compared = ""};
  return {.difference = "",
          .not_compared = fmt::format("classes are not compared: {} has no names", unnamed.place)};
}

MeaningComparison compare_classes(const LabelMeaning& first, const LabelMeaning& second) {
  const std::vector<std::string>&a = first.classes, &b = second.classes;
  if (a.empty() && b.empty()) return {};
  if (a.empty() || b.empty())
    return a.empty() ? compare_with_unnamed(second, first) : compare_with_unnamed(first, second);
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return {};
  const auto number = in_a - a.begin();
  const auto class_in = [&](const LabelMeaning& side, auto at) {
    return at == side.classes.end()
               ? fmt::format("{} has only {} classes", side.place, side.classes.size())
               : fmt::format("{} calls it {}", side.place, quoted(*at));
  };
  const bool both = in_a != a.end() && in_b != b.end();
  return {.difference = fmt::format("the class names differ at class {}: {}, but {}{}; {}", number,
                                    class_in(second, in_b), class_in(first, in_a),
                                    both ? form_difference(*in_b, *in_a) : "", class_remedy),
          .not_compared = ""};
}

MeaningComparison compare_tokenizers(const LabelMeaning& first, const LabelMeaning& second) {
  if (first.tokenizer.empty() && second.tokenizer.empty()) return {};
  const auto unknown = [](const LabelMeaning& side, const char* lacks) {
    return MeaningComparison{
        .difference = "",
        .not_compared = fmt::format("tokenizers are not compared: {} {}", side.place, lacks)};
  };
  for (const LabelMeaning* side : {&first, &second})
    if (side->tokenizer.empty()) return unknown(*side, "names none");
  if (first.tokenizer != second.tokenizer)
    return {.difference = fmt::format("{} was made with the tokenizer {}, but {} with {}; {}",
                                      second.place, quoted(second.tokenizer), first.place,
                                      quoted(first.tokenizer), tokenizer_remedy),
            .not_compared = ""};
  if (first.tokenizer_digest == second.tokenizer_digest) return {};
  for (const LabelMeaning* side : {&first, &second})
    if (side->tokenizer_digest.empty()) return unknown(*side, "has no tokenizer.model");
  return {.difference = fmt::format(
              "the tokenizer.model of {} is not that of {}, so equal tokens are different text; {}",
              second.place, first.place, tokenizer_remedy),
          .not_compared = ""};
}

MeaningComparison compare_ends(const LabelMeaning& first, const LabelMeaning& second) {
  if (first.end_of_text == second.end_of_text) return {};
  for (const LabelMeaning* side : {&first, &second})
    if (side->end_of_text < 0)
      return {
          .difference = "",
          .not_compared = fmt::format(
              "ends of documents are not compared: {} names no end-of-text token", side->place)};
  return {.difference = fmt::format(
              "the documents of {} end with {}, but those of {} with {}; make all datasets with "
              "one --end-of-text",
              second.place, end_of_text_name(second.end_of_text), first.place,
              end_of_text_name(first.end_of_text)),
          .not_compared = ""};
}

}  // namespace

LabelMeaning meaning_of(const DatasetInfo& info, const std::string& key,
                        const std::string& folder) {
  return {fmt::format("{} = \"{}\"", key, folder), info.classes, info.tokenizer,
          info.tokenizer_digest, info.end_of_text};
}

std::vector<std::string> class_names(std::span<const LabelMeaning> sides, std::int64_t classes) {
  for (const LabelMeaning& side : sides)
    if (std::ssize(side.classes) == classes) return side.classes;
  std::vector<std::string> numbers;
  for (std::int64_t i = 0; i < classes; ++i) numbers.push_back(std::to_string(i));
  return numbers;
}

MeaningComparison compare_meanings(const LabelMeaning& first, const LabelMeaning& second) {
  MeaningComparison whole;
  for (const auto compare : {compare_classes, compare_tokenizers, compare_ends}) {
    const MeaningComparison part = compare(first, second);
    if (whole.difference.empty()) whole.difference = part.difference;
    if (part.not_compared.empty()) continue;
    whole.not_compared += (whole.not_compared.empty() ? "" : "; ") + part.not_compared;
  }
  return whole;
}

LabelMeaning merge_meanings(LabelMeaning now, const LabelMeaning& before) {
  if (now.classes.empty()) now.classes = before.classes;
  if (now.tokenizer.empty()) now.tokenizer = before.tokenizer;
  if (now.tokenizer_digest.empty() && now.tokenizer == before.tokenizer)
    now.tokenizer_digest = before.tokenizer_digest;
  if (now.end_of_text < 0) now.end_of_text = before.end_of_text;
  return now;
}

std::vector<std::string> validate_same_meaning(std::span<const LabelMeaning> sides) {
  std::vector<std::string> lines;
  for (std::size_t second = 1; second < sides.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const MeaningComparison compared = compare_meanings(sides[first], sides[second]);
      validate(compared.difference.empty(), "{}", compared.difference);
      if (!compared.not_compared.empty() &&
          std::find(lines.begin(), lines.end(), compared.not_compared) == lines.end())
        lines.push_back(compared.not_compared);
    }
  }
  return lines;
}

}  // namespace trireme::data
