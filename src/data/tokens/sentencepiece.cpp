// SPDX-License-Identifier: Apache-2.0
//
// The SentencePiece tokenizer: encoding, decoding and training.
//
// Works with SentencePiece versions before and after 0.2.1, which changed the type of a status and
// of decoded ids; `if constexpr` selects the form that the installed version has. CMake builds
// no_sentencepiece.cpp instead if the library is not installed.
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/file_form.hpp"

namespace trireme::data {
namespace {

// SentencePiece's own status type; Abseil's since version 0.2.1.
using Status = decltype(std::declval<const sentencepiece::SentenceIterator&>().status());

/// Returns the message of a status of either type.
template <class AnyStatus>
std::string sentencepiece_message(const AnyStatus& status) {
  if constexpr (requires { status.error_message(); })
    return status.error_message();
  else
    return std::string(status.message());
}

/// Returns a message without the place in the source and the condition of SentencePiece that it
/// begins with: "FILE(LINE) [CONDITION] TEXT".
std::string without_source_place(const std::string& message) {
  const std::size_t text = message.find("] ");
  return message.find(".cc(") < text && text != std::string::npos ? message.substr(text + 2)
                                                                  : message;
}

/// Decodes ids. Newer versions take a span and deprecate the vector; older ones take only a vector.
template <class Processor>
Status decode_ids(const Processor& processor, const std::vector<int>& ids, std::string& text) {
  if constexpr (requires { processor.Decode(std::span(ids), &text); })
    return processor.Decode(std::span(ids), &text);
  else
    return processor.Decode(ids, &text);
}

/// A field of a protobuf message (https://protobuf.dev/programming-guides/encoding).
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;   ///< of a varint
  std::string_view content;  ///< of a string or message
  std::string_view stored;   ///< with number and type
};

std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// Removes the first field from a message and returns it; none at the end, and for bytes that are
/// no field.
std::optional<Field> take_field(std::string_view& message) {
  std::string_view rest = message;
  const std::optional<std::uint64_t> key = take_varint(rest);
  if (!key) return std::nullopt;
  Field field;
  field.number = *key >> 3;
  std::uint64_t bytes = 0;
  switch (*key & 7) {
    case 0:
    case 2: {
      const std::optional<std::uint64_t> value = take_varint(rest);
      if (!value) return std::nullopt;
      ((*key & 7) == 0 ? field.value : bytes) = *value;
      break;
    }
    case 1: bytes = 8; break;
    case 5: bytes = 4; break;
    default: return std::nullopt;
  }
  if (bytes > rest.size()) return std::nullopt;
  field.content = rest.substr(0, bytes);
  rest.remove_prefix(bytes);
  field.stored = message.substr(0, message.size() - rest.size());
  message = rest;
  return field;
}

// Fields of a model: sentencepiece_model.proto of SentencePiece.
namespace model_field {
constexpr std::uint64_t piece = 1, trainer = 2, normalizer = 3, self_test = 4;
}
constexpr std::uint64_t piece_type = 3;
constexpr std::uint64_t normal_piece = 1, control_piece = 3, user_defined_piece = 4,
                        unused_piece = 5;
constexpr std::uint64_t blank_as_suffix = 24;  // of the trainer
constexpr std::uint64_t added_blank = 3;       // of the normalizer

/// Returns the type of each piece.
std::vector<std::uint64_t> piece_types_of(std::string_view model) {
  std::vector<std::uint64_t> types;
  while (const std::optional<Field> field = take_field(model)) {
    if (field->number != model_field::piece) continue;
    types.push_back(normal_piece);
    std::string_view piece = field->content;
    while (const std::optional<Field> part = take_field(piece))
      if (part->number == piece_type) types.back() = part->value;
  }
  return types;
}

/// The blank that a model adds at one end of a text.
struct TextEnds {
  bool adds_blank = true;   ///< (add_dummy_prefix)
  bool at_the_end = false;  ///< after the text, not before it (treat_whitespace_as_suffix)
};

TextEnds text_ends_of(std::string_view model) {
  TextEnds ends;
  while (const std::optional<Field> field = take_field(model)) {
    std::string_view spec = field->content;
    if (field->number != model_field::trainer && field->number != model_field::normalizer) continue;
    while (const std::optional<Field> part = take_field(spec)) {
      if (field->number == model_field::trainer && part->number == blank_as_suffix)
        ends.at_the_end = part->value != 0;
      if (field->number == model_field::normalizer && part->number == added_blank)
        ends.adds_blank = part->value != 0;
    }
  }
  return ends;
}

/// Returns the model with or without an added blank. The samples with which a model tests itself
/// are left out: they hold only for the model as it was.
std::string with_added_blank(std::string_view model, bool add) {
  std::string changed;
  while (const std::optional<Field> field = take_field(model))
    if (field->number != model_field::self_test) changed += field->stored;
  changed += model;  // what is no field
  // A message that is repeated is merged into the one before: its fields count.
  constexpr char normalizer_key = model_field::normalizer << 3 | 2,
                 added_blank_key = added_blank << 3;
  return changed + normalizer_key + char{2} + added_blank_key + static_cast<char>(add);
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, std::string place)
      : model_(std::move(model)), where_(std::move(place)), ends_(text_ends_of(model_)) {
    load(model_, processor_);
  }
  std::string name() const override { return "sentencepiece"; }
  std::int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    return encode(processor_, text);
  }
  std::vector<std::int32_t> encode_part(std::string_view part, TextJoin before,
                                        TextJoin after) const override {
    const TextJoin join = ends_.at_the_end ? after : before;
    const bool adds_blank = join == TextJoin::none ? ends_.adds_blank : join == TextJoin::blank;
    if (adds_blank == ends_.adds_blank) return encode(part);
    std::call_once(other_is_loaded_,
                   [&] { load(with_added_blank(model_, !ends_.adds_blank), other_); });
    return encode(other_, part);
  }
  bool is_text(std::int32_t id) const override {
    const std::vector<std::uint64_t> types = piece_types_of(model_);
    if (id < 0 || id >= std::ssize(types)) return false;
    // The encoder never makes control and unused pieces of a text.
    const std::uint64_t type = types[static_cast<std::size_t>(id)];
    return type != control_piece && type != unused_piece && type != user_defined_piece;
  }
  std::int32_t id_of(std::string_view piece) const override {
    const int id = processor_.PieceToId(piece);
    return processor_.IdToPiece(id) == piece ? id : -1;
  }
  std::int32_t unknown() const override { return processor_.unk_id(); }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> known;
    for (const std::int32_t id : ids)
      if (id >= 0 && id < vocabulary()) known.push_back(id);
    std::string text;
    check(decode_ids(processor_, known, text), "decode");
    return text;
  }

 private:
  using Processor = sentencepiece::SentencePieceProcessor;

  void load(const std::string& model, Processor& processor) const {
    std::string problem;
    try {
      const Status status = processor.LoadFromSerializedProto(model);
      if (!status.ok()) problem = sentencepiece_message(status);
    } catch (const std::exception& error) {  // of the trie of an empty piece, for example
      problem = error.what();
    }
    validate(
        problem.empty(), "{}: is not a SentencePiece model: {}{}", where_, printable(problem),
        io::form_hint(io::recognize_content(std::string_view(model).substr(0, io::form_bytes))));
  }
  static std::vector<std::int32_t> encode(const Processor& processor, std::string_view text) {
    const std::size_t wrong = first_invalid_byte(text);
    validate(wrong == text.size(),
             "byte {} of the text is not UTF-8, which a SentencePiece model needs", wrong);
    std::vector<int> ids;
    check(processor.Encode(text, &ids), "encode");
    return ids;
  }
  /// Throws InputError for a status that is an error: a model can be loaded and still contradict
  /// itself.
  static void check(const Status& status, const char* verb) {
    validate(status.ok(),
             "the SentencePiece model cannot {} a text (\"{}\"): it is damaged or of another kind",
             verb, printable(sentencepiece_message(status)));
  }

  std::string model_, where_;
  TextEnds ends_;
  Processor processor_;
  // The model with the other choice of `adds_blank`, for parts of long texts.
  mutable std::once_flag other_is_loaded_;
  mutable Processor other_;
};

/// Feeds lines of text to the trainer.
class LineIterator : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return index_ == lines_.size(); }
  void Next() override { ++index_; }
  const std::string& value() const override { return lines_[index_]; }
  Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  std::size_t index_ = 0;
};

}  // namespace

bool has_sentencepiece() { return true; }

std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model,
                                                   const std::string& place) {
  return std::make_unique<SentencePieceTokenizer>(model, place);
}

std::string train_tokenizer(const std::vector<std::string>& lines, std::int64_t vocabulary) {
  for (const std::string& line : lines)
    validate(first_invalid_byte(line) == line.size(),
             "the text is not entirely UTF-8, which a SentencePiece model needs; convert it "
             "(iconv), or take bytes as tokens");
  LineIterator sentences(lines);
  std::string model;
  // The text is not normalized, and characters without a piece are spelled in bytes, so that
  // decoding returns the original text.
  const Status status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", "unigram"},
       {"vocab_size", std::to_string(vocabulary)},
       {"byte_fallback", "true"},
       {"normalization_rule_name", "identity"},
       {"remove_extra_whitespaces", "false"},
       {"add_dummy_prefix", "false"},
       {"num_threads", "4"},  // fixed: sums over threads affect the result
       {"minloglevel", "3"}},
      &sentences, &model);
  validate(status.ok(), "--train-tokenizer {}: cannot be trained on this text: {}", vocabulary,
           without_source_place(sentencepiece_message(status)));
  return model;
}

}  // namespace trireme::data
