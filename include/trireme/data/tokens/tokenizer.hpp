// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// How a part of a text is joined to the part beside it.
enum class TextJoin : std::uint8_t {
  none,   ///< the text begins or ends here
  plain,  ///< the parts follow each other
  blank   ///< a blank is between the parts, which the tokenizer removes at the ends of a text
};

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
  /// Returns the ids of a part of a text. They have the blank that the tokenizer adds to a text
  /// only if the joins say so. Throws as encode() does.
  virtual std::vector<std::int32_t> encode_part(std::string_view part, TextJoin before,
                                                TextJoin after) const {
    static_cast<void>(before);
    static_cast<void>(after);
    return encode(part);
  }
  /// Returns whether an id stands for text. Other ids of the vocabulary mark places, such as the
  /// end of a document.
  virtual bool is_text(std::int32_t id) const = 0;
  /// Returns the id of a piece by its name, as in "</s>"; -1: there is no such piece.
  virtual std::int32_t id_of(std::string_view piece) const {
    static_cast<void>(piece);
    return -1;
  }
  /// Returns the id that stands for a run of unknown characters; -1: there is none.
  virtual std::int32_t unknown() const { return -1; }
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

/// Returns the digest of the bytes of a SentencePiece model; empty: there are none.
std::string digest_of_model(std::string_view model);

/// Checks that `tokenizer.model` beside a shard of tokens made it. Returns its digest; without such
/// a file `digest`, the attribute tokenizer_digest of the shard, which may be empty.
///
/// Without the attribute the file must be a model with at most `vocabulary` pieces. Throws
/// InputError that names both files.
std::string check_tokenizer_beside(const std::string& shard, const std::string& digest,
                                   std::int64_t vocabulary);

/// How the texts of a dataset became tokens.
struct TextEncoding {
  std::unique_ptr<Tokenizer> tokenizer;
  std::int64_t end_of_text = -1;  ///< the token after every document; -1: none is known
};

/// Returns the encoding of the shards of a folder: the shards' attribute `tokenizer` names the
/// tokenizer, and `tokenizer.model` is in the folder. Throws InputError if either is missing.
TextEncoding encoding_of_dataset(const std::string& folder);

}  // namespace trireme::data
