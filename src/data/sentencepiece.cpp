// The SentencePiece tokenizer: encoding, decoding and training.
//
// Works with SentencePiece versions before and after 0.2.1, which changed the type of a status and
// of decoded ids; `if constexpr` selects the form that the installed version has. CMake builds
// no_sentencepiece.cpp instead if the library is not installed.
#include <exception>
#include <string>
#include <utility>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/tokenizer.hpp"

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

/// Decodes ids. Newer versions take a span and deprecate the vector; older ones take only a vector.
template <class Processor>
Status decode_ids(const Processor& processor, const std::vector<int>& ids, std::string& text) {
  if constexpr (requires { processor.Decode(std::span(ids), &text); })
    return processor.Decode(std::span(ids), &text);
  else
    return processor.Decode(ids, &text);
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const std::string& place) {
    std::string problem;
    try {
      const Status status = processor_.LoadFromSerializedProto(model);
      if (!status.ok()) problem = sentencepiece_message(status);
    } catch (const std::exception& error) {  // of the trie of an empty piece, for example
      problem = error.what();
    }
    validate(problem.empty(), "{}: is not a SentencePiece model: {}", place, printable(problem));
  }
  std::string name() const override { return "sentencepiece"; }
  std::int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    const std::size_t wrong = first_invalid_byte(text);
    validate(wrong == text.size(),
             "byte {} of the text is not UTF-8, which a SentencePiece model needs", wrong);
    std::vector<int> ids;
    check(processor_.Encode(text, &ids), "encode");
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> known;
    for (const std::int32_t id : ids)
      if (id >= 0 && id < vocabulary()) known.push_back(id);
    std::string text;
    check(decode_ids(processor_, known, text), "decode");
    return text;
  }

 private:
  /// Throws InputError for a status that is an error: a model can be loaded and still contradict
  /// itself.
  static void check(const Status& status, const char* verb) {
    validate(status.ok(),
             "the SentencePiece model cannot {} a text (\"{}\"): it is damaged or of another kind",
             verb, printable(sentencepiece_message(status)));
  }

  sentencepiece::SentencePieceProcessor processor_;
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
           sentencepiece_message(status));
  return model;
}

}  // namespace trireme::data
