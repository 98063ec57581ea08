#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// What shards call it in their attribute `tokenizer`: "bytes" or "sentencepiece".
  virtual std::string name() const = 0;
  /// Ids are 0 .. vocabulary - 1.
  virtual std::int64_t vocabulary() const = 0;
  /// Throws InputError for a text that is no UTF-8, where the tokenizer needs it.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Ids outside the vocabulary give nothing.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// The name of a SentencePiece model beside the shards that it made.
inline constexpr const char* tokenizer_file_name = "tokenizer.model";

/// A token is a byte, the vocabulary 256.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Whether this build knows SentencePiece (Kudo & Richardson 2018); without it, the two functions
/// below throw InputError.
bool has_sentencepiece();

/// A SentencePiece model from the bytes of its file. `place` names it in messages. Throws
/// InputError where it is no model.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model,
                                                   const std::string& place);

/// Trains a SentencePiece model (unigram, other characters spelt in bytes, text taken as it is) of
/// `vocabulary` pieces on lines of text and returns the bytes of its file: the same lines give the
/// same model. Throws InputError where the text does not give that many pieces.
std::string train_tokenizer(const std::vector<std::string>& lines, std::int64_t vocabulary);

/// "bytes", else the path of a SentencePiece model. Throws InputError where there is no such file
/// or it is no model.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

/// The tokenizer that made the shards of a folder: by their attribute `tokenizer`, with
/// `tokenizer.model` beside them. Throws InputError where the shards do not say or the model is
/// missing.
std::unique_ptr<Tokenizer> tokenizer_of_dataset(const std::string& folder);

}  // namespace trireme::data
