// SPDX-License-Identifier: Apache-2.0
//
// Shards of tokens: header, and samples of `context` tokens cut from the sequence.
//
// Sample i is tokens [i * context, (i + 1) * context] of its shard: all but the last are the input,
// all but the first the labels. Files are untrusted, so each token that is read is compared with
// the vocabulary.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>

#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "shard_limits.hpp"
#include "stored_list.hpp"
#include "stored_rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

/// Returns the vocabulary from the attribute of /tokens or of the file. Without it, returns the
/// range of the stored type.
std::int64_t vocabulary_of(const io::Hdf5Index& file, std::int64_t token_bytes) {
  const std::int64_t default_vocabulary =
      token_bytes < 4 ? std::int64_t{1} << (8 * token_bytes) : max_vocabulary;
  const std::string owner = file.has_attribute("tokens", "vocabulary") ? "tokens" : "/";
  if (!file.has_attribute(owner, "vocabulary")) return default_vocabulary;
  const std::int64_t vocabulary = file.attribute_int(owner, "vocabulary");
  validate(vocabulary >= 1 && vocabulary <= max_vocabulary,
           "{}: attribute vocabulary is {}; tokens are 0 to vocabulary - 1, so it must be 1 to {}",
           file.path(), vocabulary, max_vocabulary);
  return vocabulary;
}

/// Returns the token after every document from the attribute of the file; -1: it names none.
std::int64_t end_of_text_of(const io::Hdf5Index& file, std::int64_t vocabulary) {
  if (!file.has_attribute("/", "end_of_text")) return -1;
  const std::int64_t token = file.attribute_int("/", "end_of_text");
  validate(token >= 0 && token < vocabulary,
           "{}: attribute end_of_text is {}; it must be a token, 0 to {}", file.path(), token,
           vocabulary - 1);
  return token;
}

/// Returns the number of documents. Checks that their offsets ascend from 0 to `tokens`.
std::int64_t count_documents(const io::Hdf5Reader& reader, std::int64_t tokens) {
  const io::StoredDataset& dataset = reader.index().dataset("documents");
  validate(dataset.kind == io::StoredDataset::Kind::integer,
           "{}: offsets must be whole numbers (uint64)", dataset.location);
  const std::int64_t count = length_of(reader.index(), "documents");
  validate(
      count >= 1,
      "{}: is empty; it must have documents + 1 offsets, the last one being the number of tokens",
      dataset.location);
  check_list(dataset, reader.index().dataset("tokens"));
  std::int64_t last = 0;
  read_list(reader, dataset, [&](std::int64_t first, std::span<const std::int64_t> offsets) {
    validate(first > 0 || offsets[0] == 0,
             "{}: its first offset is {}; the first document begins at token 0", dataset.location,
             offsets[0]);
    for (const std::int64_t& offset : offsets) {
      validate(last <= offset && offset <= tokens,
               "{}: offset {} is {} after {}; offsets must ascend from 0 to the {} tokens",
               dataset.location, first + (&offset - offsets.data()), offset, last, tokens);
      last = offset;
    }
  });
  validate(last == tokens, "{}: its last offset is {}, but the shard has {} tokens",
           dataset.location, last, tokens);
  return count - 1;
}

void describe_tokens(const io::Hdf5Reader& reader, ShardDescription& shard) {
  const io::Hdf5Index& file = reader.index();
  const io::StoredDataset& stored = file.dataset("tokens");
  const bool right_type =
      stored.kind == io::StoredDataset::Kind::integer && !stored.is_signed &&
      (stored.element_bytes == 1 || stored.element_bytes == 2 || stored.element_bytes == 4);
  validate(right_type, "{}: tokens must be uint8, uint16 or uint32", stored.location);
  validate(stored.shape.size() == 1,
           "{}: has {} dimensions [{}]; tokens must have one dimension [count]", stored.location,
           stored.shape.size(), fmt::join(stored.shape, ", "));
  shard.samples = stored.shape[0];
  shard.token_bytes = stored.element_bytes;
  shard.vocabulary = vocabulary_of(file, stored.element_bytes);
  shard.storage = storage_of(stored);
  if (file.has_attribute("/", "tokenizer"))
    shard.tokenizer = file.attribute_string("/", "tokenizer");
  if (file.has_attribute("/", "tokenizer_digest"))
    shard.tokenizer_digest = file.attribute_string("/", "tokenizer_digest");
  shard.end_of_text = end_of_text_of(file, shard.vocabulary);
  if (file.has("documents")) shard.documents = count_documents(reader, shard.samples);
}

ShardIndex index_tokens(const io::Hdf5Reader& reader, const ShardDescription&, const SampleForm&) {
  return {reader.path(), reader.stamp(), reader.index().dataset("tokens"), {}, {}, {}};
}

/// Compares the vocabularies of token shards, and adds up tokens and documents.
void combine_tokens(const FolderShards& folder, DatasetInfo& info) {
  const IndexedShard& first = folder.shards.front();
  info.vocabulary = first.header.vocabulary;
  info.tokenizer = first.header.tokenizer;
  info.end_of_text = first.header.end_of_text;
  for (const IndexedShard& shard : folder.shards) {
    const ShardDescription& header = shard.header;
    validate(header.vocabulary == info.vocabulary && header.tokenizer == info.tokenizer,
             "{}: tokens of vocabulary {} (tokenizer \"{}\") among tokens of vocabulary {} "
             "(tokenizer \"{}\", {}): all shards of a folder must have the same vocabulary",
             shard.index.path, header.vocabulary, header.tokenizer, info.vocabulary, info.tokenizer,
             first.index.path);
    validate(header.end_of_text == info.end_of_text,
             "{}: its documents end with {}, those of {} with {}: all shards of a folder must have "
             "the same attribute end_of_text",
             shard.index.path, end_of_text_name(header.end_of_text), first.index.path,
             end_of_text_name(info.end_of_text));
    if (info.tokenizer_digest.empty()) info.tokenizer_digest = header.tokenizer_digest;
    validate(header.tokenizer_digest.empty() || header.tokenizer_digest == info.tokenizer_digest,
             "{}: its attribute tokenizer_digest is \"{}\", but other shards of the folder have "
             "\"{}\": all shards of a folder must be made with the same tokenizer",
             shard.index.path, printable(header.tokenizer_digest),
             printable(info.tokenizer_digest));
    info.tokens += header.samples;
    info.documents += header.documents;
  }
}

class TokenSource : public SampleSource {
 public:
  TokenSource(ShardIndex shard, std::int64_t vocabulary, std::int64_t context,
              const ShardResources& resources)
      : vocabulary_(vocabulary),
        context_(context),
        count_(shard.rows.shape[0]),
        info_{DType::int32, {context}, {context}},
        tokens_(std::move(shard.path), shard.stamp, std::move(shard.rows), resources.files,
                resources.cache) {}

  const SampleInfo& info() const override { return info_; }
  std::int64_t size() const override {
    return context_ == 0 ? 0 : std::max<std::int64_t>(count_ - 1, 0) / context_;
  }

  std::int64_t sample_bytes(std::int64_t) const override { return info_.input_bytes(); }

  void read(std::int64_t index, std::byte* input, void* successors) const override {
    auto* const labels = static_cast<std::int32_t*>(successors);
    const std::int64_t first = index * context_;
    auto* const ids = reinterpret_cast<std::int32_t*>(input);
    if (labels == nullptr) {
      if (ids != nullptr) read_ids(first, context_, ids);
      return;
    }
    read_ids(first + 1, context_, labels);
    if (ids == nullptr) return;
    read_ids(first, 1, ids);
    std::copy_n(labels, context_ - 1, ids + 1);
  }

  void read_ahead(std::int64_t first, std::int64_t count) const override {
    tokens_.read_ahead(first * context_, count * context_ + 1);
  }

  std::string verify(const ShardChecksums* checksums, BlockRange blocks) const override {
    constexpr std::int64_t step = verified_piece_bytes / std::int64_t{sizeof(std::uint32_t)};
    std::vector<std::byte> piece;
    std::int64_t first_wrong = -1;
    const auto hash_rows = [&](std::int64_t begin, std::int64_t count, io::Xxh3& hash) {
      for (std::int64_t first = begin; first < begin + count; first += step) {
        const std::int64_t part = std::min(step, begin + count - first);
        piece.resize(static_cast<std::size_t>(part * tokens_.row_bytes()));
        tokens_.read(first, part, piece.data());
        hash.update(piece.data(), piece.size());
        const std::int64_t wrong = first_wrong < 0 ? wrong_token(piece.data(), part) : -1;
        if (wrong >= 0) first_wrong = first + wrong;
      }
    };
    const std::string difference =
        compare_blocks(checksums, blocks, count_, {"/tokens", "tokens"}, hash_rows);
    // A token past the vocabulary in a damaged block is a result of the damage.
    std::int32_t id = 0;
    if (difference.empty() && first_wrong >= 0) read_ids(first_wrong, 1, &id);  // throws
    return difference;
  }

 private:
  /// Calls `f` with a value of the stored type.
  template <class F>
  auto with_stored_type(F&& f) const {
    switch (tokens_.row_bytes()) {
      case 1: return f(std::uint8_t{});
      case 2: return f(std::uint16_t{});
      default: return f(std::uint32_t{});
    }
  }

  /// Returns the index of the first of `count` stored tokens that is not below the vocabulary; -1:
  /// none.
  std::int64_t wrong_token(const std::byte* stored, std::int64_t count) const {
    return with_stored_type([&]<class Stored>(Stored token) -> std::int64_t {
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(&token, stored + i * std::int64_t{sizeof token}, sizeof token);
        if (token >= vocabulary_) return i;
      }
      return -1;
    });
  }

  /// Copies tokens [first, first + count) as int32. Throws InputError for a token that is not below
  /// the vocabulary, with its position.
  ///
  /// Converts in place, without a buffer. The stored numbers are read to the end of `ids`. Each
  /// number is read before the growing int32 numbers, written from the front, reach it.
  void read_ids(std::int64_t first, std::int64_t count, std::int32_t* ids) const {
    std::byte* const stored =
        reinterpret_cast<std::byte*>(ids + count) - count * tokens_.row_bytes();
    tokens_.read(first, count, stored);
    with_stored_type([&]<class Stored>(Stored token) {
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(&token, stored + i * std::int64_t{sizeof token}, sizeof token);
        validate(token < vocabulary_,
                 "{}: /tokens: token {} at position {} is not below the vocabulary of {}",
                 tokens_.path(), token, first + i, vocabulary_);
        ids[i] = static_cast<std::int32_t>(token);
      }
    });
  }

  std::int64_t vocabulary_, context_, count_;
  SampleInfo info_;
  StoredRows tokens_;
};

std::unique_ptr<SampleSource> open_tokens(ShardIndex shard, const DatasetInfo& info,
                                          const SampleForm& form, const ShardResources& resources) {
  return std::make_unique<TokenSource>(std::move(shard), info.vocabulary, form.context, resources);
}

}  // namespace

const ShardKind token_shard_kind{DatasetKind::tokens, "tokens",       "tokens",   describe_tokens,
                                 index_tokens,        combine_tokens, open_tokens};

}  // namespace trireme::data
