// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/data/tokens/tokenizer.hpp"

namespace trireme::data {

/// Fills the span with the next bytes of a text and returns their number, which is smaller only at
/// the end of the text.
using ReadText = std::function<std::size_t(std::span<std::byte>)>;

/// A part of a text, with the joins to its neighbors.
struct TextPart {
  std::string_view text;
  TextJoin before = TextJoin::none, after = TextJoin::none;
};

/// Cuts a text into parts of at most 8 KiB: after the last line end, after the last blank, or
/// between two characters.
///
/// With a tokenizer the tokens of the parts, joined with append_tokens(), decode to the same text
/// as those of the whole. Every cut is tried with the text around it.
class TextPartReader {
 public:
  /// `tokenizer`: null if the parts are not encoded.
  TextPartReader(ReadText read, const Tokenizer* tokenizer)
      : read_(std::move(read)), tokenizer_(tokenizer) {}

  /// Returns the next part, valid until the next call; empty at the end of the text.
  TextPart next();
  /// Returns the position of this part in the text, in bytes.
  std::int64_t offset() const { return offset_; }

 private:
  /// A position where the text can be cut, and the join there.
  struct Cut {
    std::size_t at = 0;
    TextJoin join = TextJoin::plain;
  };
  Cut find_cut() const;
  bool try_cut(Cut& cut) const;

  ReadText read_;
  const Tokenizer* tokenizer_;
  std::string text_;
  std::size_t part_bytes_ = 0;
  std::int64_t offset_ = 0;
  TextJoin after_ = TextJoin::none;  ///< of this part
};

/// Appends the tokens of a part to those of the parts before it.
void append_tokens(const Tokenizer& tokenizer, TextJoin join, std::span<const std::int32_t> part,
                   std::vector<std::int32_t>& tokens);

}  // namespace trireme::data
