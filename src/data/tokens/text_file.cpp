// SPDX-License-Identifier: Apache-2.0
//
// Encodes texts into tokens, and samples lines for the training of a tokenizer.
//
// A source has documents: a plain text is one, JSON Lines have one a line. Documents are encoded in
// parts of 8 KiB (text_parts.hpp), so memory does not grow with a text. encode_text_file() writes
// the tokens to a temporary file, which write_token_ranges() later reads.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "data/sources/gzip_reader.hpp"
#include "jsonl.hpp"
#include "text_parts.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

// In bytes. Longer lines are cut, since a model learns from the inside of lines.
constexpr std::size_t max_training_line_bytes = 1024;
// The trainer needs about 25 bytes of memory a character, and time for every repetition of a text.
constexpr std::size_t max_training_characters = std::size_t{16} << 20;
// Longer lines that begin with the same bytes say little new. Rulers and headings are shorter.
constexpr std::size_t long_line_bytes = 128;
constexpr std::int64_t max_long_repetitions = 64;

/// Converts ids to the stored type.
template <class Stored>
void to_stored_type(const std::vector<std::int32_t>& ids, std::vector<std::byte>& out) {
  out.resize(ids.size() * sizeof(Stored));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto token = static_cast<Stored>(ids[i]);
    std::memcpy(out.data() + i * sizeof token, &token, sizeof token);
  }
}

/// Reads a text in memory.
ReadText read_from(std::string_view text) {
  return [text](std::span<std::byte> out) mutable {
    const std::size_t bytes = std::min(out.size(), text.size());
    std::memcpy(out.data(), text.data(), bytes);
    text.remove_prefix(bytes);
    return bytes;
  };
}

/// Calls `use(ReadText)` for each document of a source. Returns the lines that are left out. Throws
/// InputError.
template <class Use>
std::vector<SkippedLine> for_each_document(const TextSource& source, Use&& use) {
  std::vector<SkippedLine> skipped;
  if (source.member.empty()) {
    GzipReader file(source.path);
    const std::optional<io::FileForm>& form = file.content_form();
    validate(!form || form->kind == io::FileForm::Kind::json,
             "{}: the gzip file holds {}, not a text; {}", source.path, form ? form->name : "",
             form ? form->advice : "");
    use(ReadText([&](std::span<std::byte> out) { return file.read(out); }));
    return skipped;
  }
  JsonLineReader lines(source.path, source.member);
  for (JsonLine line; lines.next(line);) {
    const std::string place = fmt::format("{}:{}", source.path, line.number);
    validate(line.problem.empty() || source.skip_wrong_lines,
             "{}: {}; --on-error skip leaves such lines out", place, line.problem);
    if (line.problem.empty())
      use(read_from(line.text));
    else
      skipped.push_back({place, line.problem});
  }
  return skipped;
}

/// Writes tokens to a file, in the narrowest type that holds the vocabulary.
class TokenSpool {
 public:
  TokenSpool(const std::string& path, std::int64_t token_bytes)
      : file_(path, io::File::Mode::create), token_bytes_(token_bytes) {}

  void append(const std::vector<std::int32_t>& ids) {
    switch (token_bytes_) {
      case 1: to_stored_type<std::uint8_t>(ids, stored_); break;
      case 2: to_stored_type<std::uint16_t>(ids, stored_); break;
      default: to_stored_type<std::uint32_t>(ids, stored_);
    }
    file_.write_at(count_ * token_bytes_, stored_.data(),
                   static_cast<std::int64_t>(stored_.size()));
    count_ += static_cast<std::int64_t>(ids.size());
  }
  /// Appends tokens of one byte as they are stored.
  void append_stored(std::span<const std::byte> tokens) {
    TRIREME_EXPECT(token_bytes_ == 1);
    file_.write_at(count_, tokens.data(), std::ssize(tokens));
    count_ += std::ssize(tokens);
  }
  std::int64_t count() const { return count_; }
  void close() { file_.close(); }

 private:
  io::File file_;
  std::int64_t token_bytes_, count_ = 0;
  std::vector<std::byte> stored_;
};

/// Stores the bytes of a document as tokens, through a block of memory.
void copy_document(const ReadText& read, std::span<std::byte> block, TokenSpool& spool) {
  while (const std::size_t bytes = read(block)) spool.append_stored(block.first(bytes));
}

/// Encodes a document. Throws InputError if the text is not UTF-8.
void encode_document(const std::string& path, const ReadText& read, const Tokenizer& tokenizer,
                     TokenSpool& spool) {
  TextPartReader parts(read, &tokenizer);
  std::vector<std::int32_t> ids;
  for (TextPart part = parts.next(); !part.text.empty(); part = parts.next()) {
    const std::size_t wrong = first_invalid_byte(part.text);
    validate(
        wrong == part.text.size(),
        "{}: byte {} is not UTF-8, which the tokenizer needs; convert the text (iconv), or use "
        "--tokenizer bytes",
        path, parts.offset() + static_cast<std::int64_t>(wrong));
    // The last token of the part before is kept back: it may stand for the first ones of this.
    append_tokens(tokenizer, part.before, tokenizer.encode_part(part.text, part.before, part.after),
                  ids);
    std::vector<std::int32_t> last(ids.end() - (ids.empty() ? 0 : 1), ids.end());
    ids.resize(ids.size() - last.size());
    spool.append(ids);
    ids = std::move(last);
  }
  spool.append(ids);
}

/// Limits what the training costs: leaves out long lines that repeat, and lines in a random order
/// that follows from the key, until the rest has few enough characters.
void limit_sample(std::vector<std::string>& lines, std::uint64_t key) {
  std::unordered_map<std::string_view, std::int64_t> repetitions;
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (lines[i].size() <= long_line_bytes ||
        ++repetitions[std::string_view(lines[i]).substr(0, long_line_bytes)] <=
            max_long_repetitions)
      kept.push_back(i);
  std::sort(kept.begin(), kept.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(mix64(key ^ mix64(a)), a) < std::pair(mix64(key ^ mix64(b)), b);
  });
  std::size_t characters = 0;
  const auto end = std::find_if(kept.begin(), kept.end(), [&](std::size_t i) {
    characters += static_cast<std::size_t>(std::count_if(
        lines[i].begin(), lines[i].end(), [](char byte) { return !is_continuation_byte(byte); }));
    return characters > max_training_characters;
  });
  std::sort(kept.begin(), end);
  std::vector<std::string> rest;
  for (auto i = kept.begin(); i != end; ++i) rest.push_back(std::move(lines[*i]));
  lines = std::move(rest);
}

}  // namespace

EncodedText encode_text_file(const TextSource& source, const Tokenizer& tokenizer,
                             const std::string& spool) {
  const bool is_plain = source.member.empty() && !GzipReader(source.path).compressed();
  const bool bytes = tokenizer.name() == "bytes";
  if (is_plain && bytes) return {raw_token_file(source.path, 1), {}};
  EncodedText encoded;
  TokenFile& tokens = encoded.tokens;
  tokens.path = spool;
  tokens.token_bytes = TokenSetOptions{.vocabulary = tokenizer.vocabulary()}.token_bytes();
  TokenSpool out(spool, tokens.token_bytes);
  std::vector<std::byte> block(bytes ? 1 << 18 : 0);
  encoded.skipped = for_each_document(source, [&](const ReadText& read) {
    if (bytes)
      copy_document(read, block, out);
    else
      encode_document(source.path, read, tokenizer, out);
    const bool is_listed = !source.member.empty() && out.count() > tokens.count;
    if (is_listed) tokens.document_ends.push_back(out.count());
    tokens.count = out.count();
  });
  out.close();
  return encoded;
}

std::vector<std::string> sample_lines(const std::vector<TextSource>& sources, std::int64_t count) {
  // Reservoir sampling (Vitter 1985, algorithm R): line n replaces a random kept line with
  // probability count / n. The random numbers depend only on n, so every call chooses the same
  // lines.
  const std::uint64_t key = random_key(0, "tokenizer/lines");
  std::vector<std::string> lines;
  std::uint64_t lines_seen = 0;
  const auto add = [&](std::string_view line) {
    if (line.empty()) return;
    const std::uint64_t place = lines_seen < static_cast<std::uint64_t>(count)
                                    ? lines_seen
                                    : mix64(key ^ mix64(lines_seen)) % (lines_seen + 1);
    ++lines_seen;
    if (place < lines.size())
      lines[place] = line;
    else if (lines_seen <= static_cast<std::uint64_t>(count))
      lines.emplace_back(line);
  };
  const auto add_document = [&](const ReadText& read) {
    TextPartReader parts(read, nullptr);
    for (std::string_view part = parts.next().text; !part.empty(); part = parts.next().text) {
      while (!part.empty()) {
        const std::size_t end = part.find('\n');
        const std::string_view line = part.substr(0, end);
        const std::size_t taken = line.size() <= max_training_line_bytes
                                      ? line.size()
                                      : character_boundary(line, max_training_line_bytes);
        add(line.substr(0, taken));
        part.remove_prefix(taken == line.size() && end != std::string_view::npos ? taken + 1
                                                                                 : taken);
      }
    }
  };
  for (const TextSource& source : sources) {
    for_each_document(source, add_document);
  }
  limit_sample(lines, key);
  return lines;
}

}  // namespace trireme::data
