// SPDX-License-Identifier: Apache-2.0
//
// Cuts texts into parts that a tokenizer encodes one by one.
//
// A tokenizer may add a blank before a text, remove blanks at its ends, compose neighboring
// characters, and merge characters that it does not know. So a cut is tried first: the text around
// it is encoded as a whole and in two parts, and both must decode to the same text. If no cut of
// the candidates does, the first one is taken.
#include "text_parts.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/utf8.hpp"

namespace trireme::data {
namespace {

// Bytes of text that are encoded at once. SentencePiece sums scores in float, which lose precision
// on long texts.
constexpr std::size_t max_part_bytes = 8 << 10;
// Bytes on each side of a cut that is tried. More than any sequence that is normalized together.
constexpr std::size_t context_bytes = 64;
// Positions between two characters that are tried where a text has neither lines nor blanks.
constexpr int max_character_cuts = 16;

}  // namespace

TextPart TextPartReader::next() {
  text_.erase(0, part_bytes_);
  offset_ += static_cast<std::int64_t>(part_bytes_);
  const TextJoin before = after_;
  const std::size_t held = text_.size();
  text_.resize(max_part_bytes + context_bytes);
  text_.resize(held + read_(std::as_writable_bytes(std::span(text_).subspan(held))));
  part_bytes_ = text_.size();
  after_ = TextJoin::none;
  if (text_.size() >= max_part_bytes) {
    const Cut cut = find_cut();
    // A text that ends at the cut has no part after it.
    if (cut.at < text_.size()) after_ = cut.join;
    part_bytes_ = cut.at;
  }
  return {std::string_view(text_).substr(0, part_bytes_), before, after_};
}

TextPartReader::Cut TextPartReader::find_cut() const {
  const std::string_view text = std::string_view(text_).substr(0, max_part_bytes);
  Cut first;
  const auto is_good = [&](Cut& cut) {
    const bool good = try_cut(cut);
    if (first.at == 0) first = cut;
    return good;
  };
  for (const char* ends : {"\n", " \t"}) {
    const std::size_t last = text.find_last_of(ends);
    if (last == std::string_view::npos) continue;
    if (Cut cut{last + 1}; is_good(cut)) return cut;
  }
  std::size_t at = character_boundary(text_, max_part_bytes);
  for (int tried = 0; tried < max_character_cuts && at > 0; ++tried) {
    if (Cut cut{at}; is_good(cut)) return cut;
    at = character_boundary(text_, at - 1);
  }
  return first;
}

/// Returns whether the parts on both sides decode to the text as a whole does, and sets the join
/// with which they do.
bool TextPartReader::try_cut(Cut& cut) const {
  if (tokenizer_ == nullptr) return true;
  const std::string_view text = text_;
  std::size_t begin = cut.at - std::min(cut.at, context_bytes);
  while (begin < cut.at && is_continuation_byte(text[begin])) ++begin;
  const std::size_t end = character_boundary(text, std::min(text.size(), cut.at + context_bytes));
  // A letter at both ends keeps blanks at the cut inside of the text.
  const std::string left = "x" + std::string(text.substr(begin, cut.at - begin)),
                    right = std::string(text.substr(cut.at, end - cut.at)) + "x";
  // The caller refuses such a text where the tokenizer needs UTF-8.
  if (!is_utf8(left) || !is_utf8(right)) return true;
  const std::string whole = tokenizer_->decode(tokenizer_->encode(left + right));
  for (const TextJoin join : {TextJoin::plain, TextJoin::blank}) {
    std::vector<std::int32_t> tokens = tokenizer_->encode_part(left, TextJoin::none, join);
    append_tokens(*tokenizer_, join, tokenizer_->encode_part(right, join, TextJoin::none), tokens);
    if (tokenizer_->decode(tokens) != whole) continue;
    cut.join = join;
    return true;
  }
  return false;
}

void append_tokens(const Tokenizer& tokenizer, TextJoin join, std::span<const std::int32_t> part,
                   std::vector<std::int32_t>& tokens) {
  // A run of unknown characters is one token.
  const std::int32_t unknown = tokenizer.unknown();
  const bool is_one_run = join == TextJoin::plain && unknown >= 0 && !tokens.empty() &&
                          tokens.back() == unknown && !part.empty() && part.front() == unknown;
  tokens.insert(tokens.end(), part.begin() + (is_one_run ? 1 : 0), part.end());
}

}  // namespace trireme::data
