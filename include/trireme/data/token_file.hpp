#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/shard_writer.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

/// Tokens that lie one after the other in a file: whole numbers, little-endian.
struct TokenFile {
  std::string path;
  std::int64_t offset = 0;       ///< of the first one, in bytes
  std::int64_t token_bytes = 1;  ///< 1, 2, 4 or 8
  bool is_signed = false;
  std::int64_t count = 0;
};

/// A file of nothing but unsigned numbers of `token_bytes`. Throws InputError where its size is no
/// multiple of that.
TokenFile raw_token_file(const std::string& path, std::int64_t token_bytes);

/// A file of NumPy (format 1 to 3): one dimension, whole numbers, little-endian. Throws InputError
/// naming what is wrong.
TokenFile npy_token_file(const std::string& path);

/// The tokens of a text, plain or compressed with gzip. They are written to `spool`, in the
/// narrowest type that holds the vocabulary, unless the text itself serves (plain, one byte a
/// token). Memory does not grow with the text, which is encoded in pieces that end at line ends.
/// Throws InputError (no UTF-8, where the tokenizer needs it; damaged compressed data), Failure.
TokenFile encode_text_file(const std::string& path, const Tokenizer& tokenizer,
                           const std::string& spool);

/// At most `count` lines of texts, each as likely as any other, the same at every call: what a
/// tokenizer is trained on. Long lines are cut.
std::vector<std::string> sample_lines(const std::vector<std::string>& paths, std::int64_t count);

/// Tokens [first, first + count) of files[file].
struct TokenRange {
  std::size_t file = 0;
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenRange&) const = default;
};
std::int64_t count_tokens(const std::vector<TokenRange>& ranges);

/// Every file's end kept back: in proportion to the files' lengths, `held_out` tokens in all.
struct TokenSplit {
  std::vector<TokenRange> training, held_out;
};
TokenSplit hold_out_ends(const std::vector<TokenFile>& files, std::int64_t held_out);

/// Tokens [begin, end) of runs that follow one another.
std::vector<TokenRange> slice_ranges(const std::vector<TokenRange>& ranges, std::int64_t begin,
                                     std::int64_t end);

/// Writes the runs, one after the other, as one shard; with `documents`, each run is one
/// (/documents). Returns the file's bytes. Throws InputError for a token outside the vocabulary,
/// naming file and position.
std::int64_t write_token_ranges(const std::string& path, const TokenSetOptions& options,
                                const std::vector<TokenFile>& files,
                                const std::vector<TokenRange>& ranges, bool documents);

}  // namespace trireme::data
