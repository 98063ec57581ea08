#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Converts text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Returns the name in the shards' attribute `tokenizer`: "bytes" or "sentencepiece".
  virtual std::string name() const = 0;
  /// Returns the number of ids, which are 0 .. vocabulary - 1.
  virtual std::int64_t vocabulary() const = 0;
  /// Returns the ids of a text. Throws InputError if the tokenizer needs UTF-8 and the text is not,
  /// or if its model is damaged.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Returns the text of the ids. Ids outside the vocabulary are skipped.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// File name of the SentencePiece model in a folder of shards that it encoded.
inline constexpr const char* tokenizer_file_name = "tokenizer.model";

/// Returns the tokenizer with one token per byte; its vocabulary is 256.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Returns whether this build includes SentencePiece (Kudo & Richardson 2018). Without it, the two
/// functions below throw InputError.
bool has_sentencepiece();

/// Returns the tokenizer of a SentencePiece model. `model`: the bytes of the model file. `place`:
/// its name in messages. Throws InputError if it is not a model.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model,
                                                   const std::string& place);

/// Trains a SentencePiece model of `vocabulary` pieces on lines of text, and returns the bytes of
/// the model file. The same lines yield the same model.
///
/// The model is of the unigram type, leaves the text unchanged, and spells unknown characters in
/// bytes. Throws InputError if the text yields fewer pieces.
std::string train_tokenizer(const std::vector<std::string>& lines, std::int64_t vocabulary);

/// Returns the tokenizer called `name`: "bytes", or the path of a SentencePiece model. Throws
/// InputError if there is no such file or it is not a model.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

/// Returns a digest of the content of a SentencePiece model, by which models are compared; empty:
/// there is no such file, or it is "bytes".
std::string digest_of_tokenizer(const std::string& name);

/// Returns the tokenizer that encoded the shards of a folder: the shards' attribute `tokenizer`
/// names it, and `tokenizer.model` is in the folder. Throws InputError if either is missing.
std::unique_ptr<Tokenizer> tokenizer_of_dataset(const std::string& folder);

}  // namespace trireme::data
