#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/shard_writer.hpp"
#include "trireme/data/tokenizer.hpp"

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

/// Encodes a text, plain or compressed with gzip, and returns its tokens.
///
/// The tokens are written to the file `spool`, in the narrowest type that holds the vocabulary. A
/// plain text with one byte per token needs no such file: the text itself is returned. Memory does
/// not grow with the text, which is encoded in pieces that end at line ends.
///
/// Throws InputError if the text is not UTF-8 and the tokenizer needs it, or if the compressed data
/// are damaged. Throws Failure if the disk fails.
TokenFile encode_text_file(const std::string& path, const Tokenizer& tokenizer,
                           const std::string& spool);

/// Returns a uniform random sample of at most `count` lines of the texts, the same at every call. A
/// tokenizer is trained on them. Lines longer than 1024 bytes are cut.
std::vector<std::string> sample_lines(const std::vector<std::string>& paths, std::int64_t count);

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
