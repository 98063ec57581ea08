// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/shards/shard_writer.hpp"
#include "trireme/data/tokens/tokenizer.hpp"

namespace trireme::data {

/// A sequence of tokens in a file: little-endian integers without gaps.
struct TokenFile {
  std::string path;
  std::int64_t offset = 0;       ///< of the first token, in bytes
  std::int64_t token_bytes = 1;  ///< 1, 2, 4 or 8
  bool is_signed = false;
  std::int64_t count = 0;
  /// Ascending ends of the documents, in tokens; empty: the file does not list them.
  std::vector<std::int64_t> document_ends = {};
  std::string index_path = {};  ///< of the file that describes this one; empty: none
  /// Ascending positions of tokens `end_of_text` that the file does not have. `count` and
  /// `document_ends` include them.
  std::vector<std::int64_t> added = {};
  std::int64_t end_of_text = -1;
};

/// Describes a file that contains only unsigned integers of `token_bytes`. Throws InputError if the
/// file's size is not a multiple of `token_bytes`.
TokenFile raw_token_file(const std::string& path, std::int64_t token_bytes);

/// Describes a token file with the header of llm.c, which programs that descend from nanoGPT share:
/// 256 int32, the first three being magic, version and count. The magic states the type of the
/// tokens. Returns none for a file without this header.
///
/// Throws InputError if the version is unknown, the count is not that of the tokens in the file, or
/// the file has questions for an evaluation instead of tokens.
std::optional<TokenFile> llm_c_token_file(const std::string& path);

/// Describes a token file of Megatron-LM with its documents. `path`: NAME.bin or NAME.idx; both are
/// needed. Returns none if NAME.bin has no such index. Throws InputError if the index or its type
/// cannot be used, or does not fit NAME.bin.
std::optional<TokenFile> megatron_token_file(const std::string& path);

/// Describes a NumPy file (.npy, format 1 to 3) with one dimension of little-endian integers.
/// Throws InputError that names the problem.
TokenFile npy_token_file(const std::string& path);

/// Adds the token `end_of_text` after each document that does not end with it already. A file that
/// lists no documents is one. Reads the last token of every document.
void end_documents(TokenFile& file, std::int64_t end_of_text);

/// A source of texts, plain or compressed with gzip.
struct TextSource {
  std::string path;
  /// JSON Lines: the member of each line that has the text. Empty: the file is one document.
  std::string member = {};
  bool skip_wrong_lines = false;  ///< JSON Lines: leave out lines that cannot be used
};
/// A line that was left out.
struct SkippedLine {
  std::string place, reason;
};
/// The tokens of a source of texts.
struct EncodedText {
  TokenFile tokens;
  std::vector<SkippedLine> skipped;
};

/// Encodes a source of texts and returns its tokens.
///
/// The tokens are written to the file `spool`, in the narrowest type that holds the vocabulary. A
/// plain text with one byte per token needs no such file: the text itself is returned. Memory does
/// not grow with the text, which is encoded in parts. They decode to the same text as the tokens of
/// the whole.
///
/// Throws InputError if the text is not UTF-8 and the tokenizer needs it, if a line cannot be used,
/// or if the compressed data are damaged. Throws Failure if the disk fails.
EncodedText encode_text_file(const TextSource& source, const Tokenizer& tokenizer,
                             const std::string& spool);

/// Returns a uniform random sample of at most `count` lines of the texts, the same at every call. A
/// tokenizer is trained on them.
///
/// Lines longer than 1024 bytes are cut. Of lines that begin with the same 128 bytes, and are
/// longer, 64 are taken. The sample has at most 16 Mi characters. Throws InputError as
/// encode_text_file() does.
std::vector<std::string> sample_lines(const std::vector<TextSource>& sources, std::int64_t count);

/// Tokens [first, first + count) of files[file].
struct TokenRange {
  std::size_t file = 0;
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenRange&) const = default;
};
/// Returns the total number of tokens.
std::int64_t count_tokens(const std::vector<TokenRange>& ranges);

/// A dataset divided into training tokens and held-out tokens.
struct TokenSplit {
  std::vector<TokenRange> training, held_out;
};
/// Holds out `held_out` tokens from the ends of the files, in proportion to the files' lengths.
TokenSplit hold_out_ends(const std::vector<TokenFile>& files, std::int64_t held_out);

/// Returns tokens [begin, end) of the concatenation of `ranges`.
std::vector<TokenRange> slice_ranges(const std::vector<TokenRange>& ranges, std::int64_t begin,
                                     std::int64_t end);

/// Returns the number of documents in the ranges; a range of a file that lists none is one.
std::int64_t count_documents(const std::vector<TokenFile>& files,
                             const std::vector<TokenRange>& ranges);

/// Writes the concatenation of `ranges` as one shard and returns the bytes of the file.
/// `documents`: the parts of the ranges that belong to one document are listed in /documents.
///
/// Throws InputError for a token outside the vocabulary, with file and position; Failure if the
/// disk fails.
std::int64_t write_token_ranges(const std::string& path, const TokenSetOptions& options,
                                const std::vector<TokenFile>& files,
                                const std::vector<TokenRange>& ranges, bool documents);

}  // namespace trireme::data
