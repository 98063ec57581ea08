// Encodes text files into tokens, and samples lines for the training of a tokenizer.
//
// Texts are read in pieces of 8 KiB, so memory does not grow with the file. A piece ends at a line
// end if possible, because a tokenizer does not merge characters across pieces. encode_text_file()
// writes the tokens to a temporary file, which write_token_ranges() later reads.
#include <algorithm>
#include <cstring>

#include "gzip_reader.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

// Bytes of text that are encoded at once. SentencePiece sums scores in float, which lose precision
// on long texts.
constexpr std::size_t piece_bytes = 8 << 10;
// In bytes. Longer lines are cut, since a model learns from the inside of lines.
constexpr std::size_t max_training_line_bytes = 1024;

/// Divides a text into pieces of at most `piece_bytes`. Each piece ends after its last line end; if
/// it has none, after its last blank; otherwise between two characters.
class TextPieceReader {
 public:
  explicit TextPieceReader(GzipReader& file) : file_(file) {}

  /// Returns the next piece, valid until the next call; empty at the end of the file.
  std::string_view next() {
    text_.erase(0, piece_bytes_);
    offset_ += static_cast<std::int64_t>(piece_bytes_);
    const std::size_t held = text_.size();
    text_.resize(piece_bytes);
    text_.resize(held + file_.read(std::as_writable_bytes(std::span(text_).subspan(held))));
    piece_bytes_ = text_.size() < piece_bytes ? text_.size() : end_of_piece();
    return std::string_view(text_).substr(0, piece_bytes_);
  }
  /// Returns the position of this piece in the text, in bytes.
  std::int64_t offset() const { return offset_; }

 private:
  std::size_t end_of_piece() const {
    for (const char* ends : {"\n", " \t"}) {
      const std::size_t at = text_.find_last_of(ends);
      if (at != std::string::npos) return at + 1;
    }
    return character_boundary(text_, text_.size());
  }

  GzipReader& file_;
  std::string text_;
  std::size_t piece_bytes_ = 0;
  std::int64_t offset_ = 0;
};

/// Converts ids to the stored type.
template <class Stored>
void to_stored_type(const std::vector<std::int32_t>& ids, std::vector<std::byte>& out) {
  out.resize(ids.size() * sizeof(Stored));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto token = static_cast<Stored>(ids[i]);
    std::memcpy(out.data() + i * sizeof token, &token, sizeof token);
  }
}

}  // namespace

TokenFile encode_text_file(const std::string& path, const Tokenizer& tokenizer,
                           const std::string& spool) {
  GzipReader source(path);
  const bool bytes = tokenizer.name() == "bytes";
  if (bytes && !source.compressed()) return raw_token_file(path, 1);
  TokenFile tokens;
  tokens.path = spool;
  tokens.token_bytes =
      TokenSetOptions{.vocabulary = tokenizer.vocabulary(), .tokenizer = {}}.token_bytes();
  io::File out(spool, io::File::Mode::create);
  TextPieceReader pieces(source);
  std::vector<std::byte> stored;
  for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) {
    const std::size_t wrong = bytes ? piece.size() : first_invalid_byte(piece);
    validate(
        wrong == piece.size(),
        "{}: byte {} is not UTF-8, which the tokenizer needs; convert the text (iconv), or use "
        "--tokenizer bytes",
        path, pieces.offset() + static_cast<std::int64_t>(wrong));
    const std::vector<std::int32_t> ids = tokenizer.encode(piece);
    switch (tokens.token_bytes) {
      case 1: to_stored_type<std::uint8_t>(ids, stored); break;
      case 2: to_stored_type<std::uint16_t>(ids, stored); break;
      default: to_stored_type<std::uint32_t>(ids, stored);
    }
    out.write_at(tokens.count * tokens.token_bytes, stored.data(),
                 static_cast<std::int64_t>(stored.size()));
    tokens.count += static_cast<std::int64_t>(ids.size());
  }
  out.close();
  return tokens;
}

std::vector<std::string> sample_lines(const std::vector<std::string>& paths, std::int64_t count) {
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
  for (const std::string& path : paths) {
    GzipReader source(path);
    TextPieceReader pieces(source);
    for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) {
      while (!piece.empty()) {
        const std::size_t end = piece.find('\n');
        const std::string_view line = piece.substr(0, end);
        const std::size_t taken = line.size() <= max_training_line_bytes
                                      ? line.size()
                                      : character_boundary(line, max_training_line_bytes);
        add(line.substr(0, taken));
        piece.remove_prefix(taken == line.size() && end != std::string_view::npos ? taken + 1
                                                                                  : taken);
      }
    }
  }
  return lines;
}

}  // namespace trireme::data
