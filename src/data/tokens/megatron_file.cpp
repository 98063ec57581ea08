// SPDX-License-Identifier: Apache-2.0
//
// Describes token files of Megatron-LM: NAME.bin has the tokens, NAME.idx their type and documents.
//
// The index, little-endian:
//   9 bytes     "MMIDIDX\0\0"
//   uint64      version, 1
//   uint8       type of the tokens
//   uint64      number of sequences
//   uint64      number of document bounds
//   int32 []    length of each sequence
//   int64 []    position of each sequence in NAME.bin, in bytes
//   int64 []    first sequence of each document, and usually the end of the last one
//   int8 []     mode of each sequence, if there are several; not needed here
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

constexpr char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr char old_magic[6] = {'T', 'N', 'T', 'I', 'D', 'X'};

// Sequences and documents without tokens that an index may list beside those with tokens.
constexpr std::int64_t max_empty_sequences = 1 << 20;

struct TokenType {
  const char* name;
  std::int64_t bytes;  // 0: no tokens
  bool is_signed;
};
// The codes of the type, from 1 on.
constexpr TokenType types[] = {{"uint8", 1, false},  {"int8", 1, true},   {"int16", 2, true},
                               {"int32", 4, true},   {"int64", 8, true},  {"float64", 0, true},
                               {"float32", 0, true}, {"uint16", 2, false}};

/// Reads a list of numbers of a file from front to back, a block at a time.
template <class T>
class Column {
 public:
  Column(const io::File& file, std::int64_t offset, std::int64_t count)
      : file_(file), offset_(offset), rest_(count) {}
  T next() {
    constexpr std::int64_t block = 1 << 16;
    if (used_ == values_.size()) {
      const std::int64_t count = std::min(rest_, block), bytes = count * std::int64_t{sizeof(T)};
      values_.resize(static_cast<std::size_t>(count));
      file_.read_at(offset_, values_.data(), bytes);
      offset_ += bytes;
      rest_ -= count;
      used_ = 0;
    }
    return values_[used_++];
  }

 private:
  const io::File& file_;
  std::int64_t offset_, rest_;
  std::vector<T> values_;
  std::size_t used_ = 0;
};

/// Reads the index from front to back.
class IndexReader {
 public:
  explicit IndexReader(const std::string& path)
      : file_(path, io::File::Mode::read), bytes_(file_.size()) {}

  const std::string& path() const { return file_.path(); }
  std::int64_t rest() const { return bytes_ - position_; }
  /// Reads `count` numbers, or characters. Throws InputError if the file is shorter.
  template <class T>
  std::vector<T> read(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(checked<T>(count)));
    file_.read_at(position_, values.data(), count * std::int64_t{sizeof(T)});
    position_ += count * std::int64_t{sizeof(T)};
    return values;
  }
  /// Returns a list of `count` numbers, which follow, and continues behind it. The list may be far
  /// larger than memory: an empty part of a file takes no space on the disk. Throws InputError if
  /// the file is shorter.
  template <class T>
  Column<T> column(std::int64_t count) {
    const std::int64_t begin = position_;
    position_ += checked<T>(count) * std::int64_t{sizeof(T)};
    return {file_, begin, count};
  }

 private:
  template <class T>
  std::int64_t checked(std::int64_t count) const {
    validate(count >= 0 && count <= rest() / std::int64_t{sizeof(T)},
             "{}: is cut short: {} values of {} bytes are missing at byte {}", path(), count,
             sizeof(T), position_);
    return count;
  }

  io::File file_;
  std::int64_t bytes_, position_ = 0;
};

/// Returns the index of a file NAME.bin or NAME.idx, if it exists.
std::optional<std::string> index_of(const std::string& path) {
  if (path.ends_with(".idx")) return path;
  const std::string index = path.ends_with(".bin") ? path.substr(0, path.size() - 4) + ".idx" : "";
  std::error_code error;
  if (index.empty() || !std::filesystem::exists(index, error)) return std::nullopt;
  return index;
}

/// Collects the ends of documents while the sequences pass by.
class DocumentEnds {
 public:
  DocumentEnds(const std::string& path, std::int64_t sequences, std::int64_t bounds,
               Column<std::int64_t> begins)
      : path_(path), sequences_(sequences), rest_(bounds), begins_(std::move(begins)) {}

  /// Takes the documents that begin at a sequence, before which there are `tokens`. Throws
  /// InputError if the documents are not in order.
  void pass(std::int64_t sequence, std::int64_t tokens) {
    for (; rest_ > 0 || is_known_; is_known_ = false) {
      if (!is_known_) {
        const std::int64_t begin = begins_.next();
        --rest_;
        validate(begin == 0 || !is_first_,
                 "{}: its first document begins at sequence {}, not at 0: the sequences before "
                 "belong to no document",
                 path_, begin);
        is_first_ = false;
        validate(begin_ <= begin && begin <= sequences_,
                 "{}: a document begins at sequence {}, after one at {}; it has {} sequences",
                 path_, begin, begin_, sequences_);
        begin_ = begin;
        is_known_ = true;
      }
      if (begin_ > sequence) return;
      add(tokens);
    }
  }
  /// Returns the ends, in tokens, at the end of all sequences.
  std::vector<std::int64_t> finish(std::int64_t tokens) {
    pass(sequences_, tokens);
    add(tokens);
    return std::move(ends_);
  }

 private:
  /// Adds an end, unless the document has no tokens.
  void add(std::int64_t end) {
    if (end > (ends_.empty() ? 0 : ends_.back())) ends_.push_back(end);
  }

  const std::string& path_;
  std::int64_t sequences_, rest_;  ///< bounds that are not read yet
  Column<std::int64_t> begins_;
  std::int64_t begin_ = 0;
  bool is_first_ = true;   ///< no bound is read yet
  bool is_known_ = false;  ///< begin_ is the next bound
  std::vector<std::int64_t> ends_;
};

}  // namespace

std::optional<TokenFile> megatron_token_file(const std::string& path) {
  const std::optional<std::string> index_path = index_of(path);
  if (!index_path) return std::nullopt;
  IndexReader index(*index_path);
  // 1. The header.
  const std::vector<char> begin =
      index.read<char>(std::min<std::int64_t>(index.rest(), sizeof magic));
  const auto begins_with = [&]<std::size_t n>(const char (&word)[n]) {
    return begin.size() >= n && std::memcmp(begin.data(), word, n) == 0;
  };
  validate(!begins_with(old_magic),
           "{}: is an index of the old form of Megatron-LM (TNTIDX), which is not read; convert it "
           "with Megatron's tools",
           *index_path);
  if (!begins_with(magic)) {
    validate(path != *index_path, "{}: is no index of Megatron-LM, which begins with MMIDIDX",
             path);
    return std::nullopt;
  }
  const auto version = index.read<std::uint64_t>(1)[0];
  validate(version == 1, "{}: version {} of the index is not known; 1 is", *index_path, version);
  const auto code = index.read<std::uint8_t>(1)[0];
  validate(code >= 1 && code <= std::size(types), "{}: the type {} is not known; 1 to {} are",
           *index_path, code, std::size(types));
  const TokenType& type = types[code - 1];
  validate(type.bytes > 0, "{}: its values are {}; tokens are whole numbers", *index_path,
           type.name);
  const auto sequences = static_cast<std::int64_t>(index.read<std::uint64_t>(1)[0]),
             bounds = static_cast<std::int64_t>(index.read<std::uint64_t>(1)[0]);
  // 2. The sequences, which follow each other in NAME.bin, and the documents.
  auto lengths = index.column<std::int32_t>(sequences);
  auto positions = index.column<std::int64_t>(sequences);
  DocumentEnds documents(*index_path, sequences, bounds, index.column<std::int64_t>(bounds));
  validate(index.rest() == 0 || index.rest() == sequences,
           "{}: {} bytes follow its {} sequences and {} document bounds", *index_path, index.rest(),
           sequences, bounds);
  // 3. More sequences than tokens are damage: a file with holes could list billions.
  const std::string tokens = index_path->substr(0, index_path->size() - 4) + ".bin";
  const std::int64_t bytes = io::File(tokens, io::File::Mode::read).size();
  const std::int64_t max_listed = bytes / type.bytes + max_empty_sequences;
  validate(sequences <= max_listed && bounds <= max_listed,
           "{}: lists {} sequences and {} document bounds, but {} has only {} tokens of {} bytes; "
           "give files of one set",
           *index_path, sequences, bounds, tokens, bytes / type.bytes, type.bytes);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    documents.pass(i, count);
    const std::int64_t length = lengths.next(), position = positions.next();
    validate(length >= 0 && position == count * type.bytes,
             "{}: sequence {} has {} tokens from byte {} on; expected byte {}, since each follows "
             "the one before",
             *index_path, i, length, position, count * type.bytes);
    count += length;
  }
  std::vector<std::int64_t> ends = documents.finish(count);
  // 4. The size of NAME.bin.
  validate(bytes == count * type.bytes,
           "{}: has {} bytes, but {} counts {} tokens of {} bytes ({})", tokens, bytes, *index_path,
           count, type.bytes, type.name);
  return TokenFile{tokens, 0, type.bytes, type.is_signed, count, std::move(ends), *index_path};
}

}  // namespace trireme::data
