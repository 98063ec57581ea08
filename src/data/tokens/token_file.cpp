// SPDX-License-Identifier: Apache-2.0
//
// Token files of other programs (raw integers, .npy) and their conversion into shards.
//
// raw_token_file(), npy_token_file() and llm_c_token_file() only read headers and describe a file,
// as megatron_token_file() does (megatron_file.cpp).
// hold_out_ends() and slice_ranges() choose ranges of tokens. write_token_ranges() then reads these
// ranges in order, checks each token against the vocabulary, converts it to the stored type and
// writes a shard. `trireme shard` calls them in this order.
#include "trireme/data/tokens/token_file.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include <fmt/ranges.h>

#include "data/shards/shard_limits.hpp"
#include "data/sources/npy_header.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

/// Converts tokens from type Stored to Wanted. Throws InputError for a token outside the
/// vocabulary.
template <class Stored, class Wanted>
void convert(const TokenFile& file, std::int64_t first, std::int64_t vocabulary,
             const std::vector<std::byte>& stored, std::span<std::byte> out) {
  for (std::size_t i = 0; i < out.size() / sizeof(Wanted); ++i) {
    Stored token;
    std::memcpy(&token, stored.data() + i * sizeof token, sizeof token);
    // A negative token becomes a huge number.
    bool in_vocabulary = static_cast<std::uint64_t>(token) < static_cast<std::uint64_t>(vocabulary);
    if constexpr (std::is_signed_v<Stored>) in_vocabulary = in_vocabulary && token >= 0;
    validate(in_vocabulary,
             "{}: token {} at position {} is outside the vocabulary of {} (tokens are 0 to {})",
             file.path, token, first + static_cast<std::int64_t>(i), vocabulary, vocabulary - 1);
    const auto narrow = static_cast<Wanted>(token);
    std::memcpy(out.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
}

template <class Stored>
void convert_to_width(std::int64_t token_bytes, const TokenFile& file, std::int64_t first,
                      std::int64_t vocabulary, const std::vector<std::byte>& stored,
                      std::span<std::byte> out) {
  switch (token_bytes) {
    case 1: return convert<Stored, std::uint8_t>(file, first, vocabulary, stored, out);
    case 2: return convert<Stored, std::uint16_t>(file, first, vocabulary, stored, out);
    default: return convert<Stored, std::uint32_t>(file, first, vocabulary, stored, out);
  }
}

/// Reads ranges of several files, one after the other, as one stream of tokens.
class TokenRangeReader {
 public:
  TokenRangeReader(const TokenSetOptions& options, const std::vector<TokenFile>& files,
                   const std::vector<TokenRange>& ranges)
      : options_(options), files_(files), ranges_(ranges) {}

  /// Fills `out` with the next tokens, converted to the shard's type.
  void next(std::span<std::byte> out) {
    const std::int64_t token_bytes = options_.token_bytes();
    while (!out.empty()) {
      TRIREME_EXPECT(range_index_ < ranges_.size());
      const TokenRange& range = ranges_[range_index_];
      if (tokens_read_ == range.count) {
        ++range_index_;
        tokens_read_ = 0;
        continue;
      }
      const std::int64_t count =
          std::min(range.count - tokens_read_, static_cast<std::int64_t>(out.size()) / token_bytes);
      const auto bytes = static_cast<std::size_t>(count * token_bytes);
      read(files_[range.file], range.first + tokens_read_, count, out.first(bytes));
      out = out.subspan(bytes);
      tokens_read_ += count;
    }
  }

 private:
  /// Reads tokens of a file, with those that are added to it.
  void read(const TokenFile& file, std::int64_t first, std::int64_t count,
            std::span<std::byte> out) {
    const auto begin = std::lower_bound(file.added.begin(), file.added.end(), first),
               end = std::lower_bound(begin, file.added.end(), first + count);
    read_stored(file, first - (begin - file.added.begin()), count - (end - begin), out);
    // Make room for the added tokens from the last one on.
    const auto bytes = static_cast<std::size_t>(options_.token_bytes());
    std::size_t gap = static_cast<std::size_t>(end - begin), moved_from = out.size();
    for (auto at = end; at != begin; --gap) {
      const auto place = static_cast<std::size_t>(*--at - first) * bytes;
      std::memmove(out.data() + place + bytes, out.data() + place + bytes - gap * bytes,
                   moved_from - place - bytes);
      std::memcpy(out.data() + place, &file.end_of_text, bytes);  // little-endian
      moved_from = place;
    }
  }

  void read_stored(const TokenFile& file, std::int64_t first, std::int64_t count,
                   std::span<std::byte> out) {
    out = out.first(static_cast<std::size_t>(count * options_.token_bytes()));
    if (open_file_.path() != file.path) open_file_ = io::File(file.path, io::File::Mode::read);
    stored_.resize(static_cast<std::size_t>(count * file.token_bytes));
    open_file_.read_at(file.offset + first * file.token_bytes, stored_.data(),
                       count * file.token_bytes);
    const std::int64_t bytes = options_.token_bytes(), vocabulary = options_.vocabulary;
    switch (file.token_bytes) {
      case 1:
        return file.is_signed
                   ? convert_to_width<std::int8_t>(bytes, file, first, vocabulary, stored_, out)
                   : convert_to_width<std::uint8_t>(bytes, file, first, vocabulary, stored_, out);
      case 2:
        return file.is_signed
                   ? convert_to_width<std::int16_t>(bytes, file, first, vocabulary, stored_, out)
                   : convert_to_width<std::uint16_t>(bytes, file, first, vocabulary, stored_, out);
      case 4:
        return file.is_signed
                   ? convert_to_width<std::int32_t>(bytes, file, first, vocabulary, stored_, out)
                   : convert_to_width<std::uint32_t>(bytes, file, first, vocabulary, stored_, out);
      default:
        return file.is_signed
                   ? convert_to_width<std::int64_t>(bytes, file, first, vocabulary, stored_, out)
                   : convert_to_width<std::uint64_t>(bytes, file, first, vocabulary, stored_, out);
    }
  }

  const TokenSetOptions& options_;
  const std::vector<TokenFile>& files_;
  const std::vector<TokenRange>& ranges_;
  std::size_t range_index_ = 0;
  std::int64_t tokens_read_ = 0;  // tokens read of this range
  io::File open_file_;
  std::vector<std::byte> stored_;
};

// Headers of llm.c: 256 int32 before the tokens. Its GPT-2 tokens are uint16, those of Llama 3 are
// uint32. Files of a third magic hold the questions of an evaluation.
struct LlmCHeader {
  std::int32_t magic, version;
  std::int64_t token_bytes;
};
constexpr LlmCHeader llm_c_headers[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr std::int32_t llm_c_evaluation_magic = 20240522;
constexpr std::int64_t llm_c_header_bytes = 1024;

}  // namespace

TokenFile raw_token_file(const std::string& path, std::int64_t token_bytes) {
  const std::int64_t bytes = io::File(path, io::File::Mode::read).size();
  validate(bytes % token_bytes == 0,
           "{}: {} bytes are not a whole number of tokens of {} bytes (uint{})", path, bytes,
           token_bytes, 8 * token_bytes);
  return {path, 0, token_bytes, false, bytes / token_bytes};
}

std::optional<TokenFile> llm_c_token_file(const std::string& path) {
  const io::File file(path, io::File::Mode::read);
  const std::int64_t bytes = file.size();
  // 1. Compare the magic. A header that is cut short still begins with it.
  std::int32_t words[3] = {};  // magic, version, count
  file.read_at(0, words, std::min<std::int64_t>(bytes, sizeof words));
  validate(words[0] != llm_c_evaluation_magic,
           "{}: is a file of llm.c with questions for an evaluation; expected a file of tokens",
           path);
  const auto* known =
      std::find_if(std::begin(llm_c_headers), std::end(llm_c_headers),
                   [&](const LlmCHeader& header) { return header.magic == words[0]; });
  if (known == std::end(llm_c_headers)) return std::nullopt;
  // 2. Check the rest of the header against the file.
  validate(words[1] == known->version,
           "{}: begins with the header of llm.c, but with version {}; version {} is known", path,
           words[1], known->version);
  const std::int64_t rest = bytes - llm_c_header_bytes;
  validate(rest == words[2] * known->token_bytes,
           "{}: its llm.c header of {} bytes counts {} tokens of {} bytes, but {} bytes follow it",
           path, llm_c_header_bytes, words[2], known->token_bytes, std::max<std::int64_t>(rest, 0));
  return TokenFile{path, llm_c_header_bytes, known->token_bytes, false, words[2]};
}

TokenFile npy_token_file(const std::string& path) {
  const io::File file(path, io::File::Mode::read);
  const NpyHeader header = read_npy_header(file);
  TokenFile tokens;
  tokens.path = path;
  tokens.offset = header.begin;
  tokens.token_bytes = header.integer_bytes(tokens.is_signed);
  validate(tokens.token_bytes > 0,
           "{}: has type '{}'; expected little-endian integers such as numpy.uint16 or "
           "numpy.uint32",
           path, printable(header.type));
  validate(header.shape.size() == 1,
           "{}: its shape is [{}]; expected one dimension: array.reshape(-1)", path,
           fmt::join(header.shape, ", "));
  tokens.count = header.shape[0];
  check_npy_size(file, header, tokens.token_bytes);
  return tokens;
}

void end_documents(TokenFile& file, std::int64_t end_of_text) {
  if (file.count == 0) return;
  std::vector<std::int64_t>& ends = file.document_ends;
  if (ends.empty()) ends.push_back(file.count);
  // 1. The last token of each document. A block that is read has those of many short documents.
  constexpr std::int64_t max_block_tokens = 1 << 16;
  std::vector<TokenRange> blocks;
  for (const std::int64_t end : ends) {
    if (!blocks.empty() && end - blocks.back().first <= max_block_tokens)
      blocks.back().count = end - blocks.back().first;
    else
      blocks.push_back({0, end - 1, 1});
  }
  const std::vector<TokenFile> stored{
      {file.path, file.offset, file.token_bytes, file.is_signed, file.count}};
  const TokenSetOptions options{.vocabulary = max_vocabulary};
  TokenRangeReader reader(options, stored, blocks);
  std::vector<std::uint32_t> last, tokens;
  for (const TokenRange& block : blocks) {
    tokens.resize(static_cast<std::size_t>(block.count));
    reader.next(std::as_writable_bytes(std::span(tokens)));
    for (; last.size() < ends.size() && ends[last.size()] <= block.first + block.count;)
      last.push_back(tokens[static_cast<std::size_t>(ends[last.size()] - 1 - block.first)]);
  }
  // 2. The tokens that are missing.
  file.end_of_text = end_of_text;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ends[i] += std::ssize(file.added);
    if (last[i] == static_cast<std::uint32_t>(end_of_text)) continue;
    file.added.push_back(ends[i]++);
  }
  file.count += std::ssize(file.added);
}

std::int64_t count_tokens(const std::vector<TokenRange>& ranges) {
  std::int64_t total = 0;
  for (const TokenRange& range : ranges) total += range.count;
  return total;
}

TokenSplit hold_out_ends(const std::vector<TokenFile>& files, std::int64_t held_out) {
  std::int64_t total = 0, before = 0, held = 0;
  for (const TokenFile& file : files) total += file.count;
  TRIREME_EXPECT(held_out >= 0 && held_out <= total);
  TokenSplit split;
  for (std::size_t i = 0; i < files.size(); ++i) {
    before += files[i].count;
    // The cumulative count is rounded, so that the parts add up to `held_out`. The product of two
    // token counts needs 128 bits.
    const auto held_by_now =
        total == 0 ? 0
                   : static_cast<std::int64_t>(static_cast<__int128>(held_out) * before / total);
    const std::int64_t here = std::min(held_by_now - held, files[i].count);
    held = held_by_now;
    if (files[i].count > here) split.training.push_back({i, 0, files[i].count - here});
    if (here > 0) split.held_out.push_back({i, files[i].count - here, here});
  }
  return split;
}

std::vector<TokenRange> slice_ranges(const std::vector<TokenRange>& ranges, std::int64_t begin,
                                     std::int64_t end) {
  std::vector<TokenRange> part;
  std::int64_t at = 0;
  for (const TokenRange& range : ranges) {
    const std::int64_t first = std::max(begin, at), last = std::min(end, at + range.count);
    if (first < last) part.push_back({range.file, range.first + first - at, last - first});
    at += range.count;
  }
  return part;
}

std::int64_t count_documents(const std::vector<TokenFile>& files,
                             const std::vector<TokenRange>& ranges) {
  std::int64_t count = 0;
  for (const TokenRange& range : ranges) {
    const std::vector<std::int64_t>& ends = files[range.file].document_ends;
    count += 1 + (std::lower_bound(ends.begin(), ends.end(), range.first + range.count) -
                  std::upper_bound(ends.begin(), ends.end(), range.first));
  }
  return count;
}

std::int64_t write_token_ranges(const std::string& path, const TokenSetOptions& options,
                                const std::vector<TokenFile>& files,
                                const std::vector<TokenRange>& ranges, bool documents) {
  std::vector<std::uint64_t> offsets;
  if (documents) {
    offsets.push_back(0);
    std::int64_t before = 0;  // tokens of the ranges so far
    for (const TokenRange& range : ranges) {
      const std::vector<std::int64_t>& ends = files[range.file].document_ends;
      const std::int64_t end = range.first + range.count;
      for (auto at = std::upper_bound(ends.begin(), ends.end(), range.first);
           at != ends.end() && *at < end; ++at)
        offsets.push_back(static_cast<std::uint64_t>(before + *at - range.first));
      before += range.count;
      offsets.push_back(static_cast<std::uint64_t>(before));
    }
  }
  TokenRangeReader reader(options, files, ranges);
  return write_token_shard(path, options, count_tokens(ranges), offsets,
                           [&](std::span<std::byte> out) { reader.next(out); });
}

}  // namespace trireme::data
