#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "stored_rows.hpp"
#include "trireme/data/dataset_index.hpp"

namespace trireme::data {

/// A shard of tokens. Reads are thread-safe.
class TokenShard {
 public:
  /// Tokens must be below `vocabulary`. `files` must outlive this.
  TokenShard(ShardIndex shard, std::int64_t vocabulary, io::FilePool& files,
             std::shared_ptr<RowCache> cache)
      : vocabulary_(vocabulary),
        tokens_(std::move(shard.path), shard.stamp, std::move(shard.rows), files,
                std::move(cache)) {}

  std::int64_t token_bytes() const { return tokens_.row_bytes(); }
  /// Copies tokens [first, first + count) as they are stored: uint8, uint16 or uint32, in the
  /// machine's byte order.
  void read(std::int64_t first, std::int64_t count, std::byte* tokens) const {
    tokens_.read(first, count, tokens);
  }
  /// Copies tokens [first, first + count) as int32. Throws InputError for a token that is not below
  /// the vocabulary, with its position.
  void read_ids(std::int64_t first, std::int64_t count, std::int32_t* ids) const;

 private:
  template <class Stored>
  void widen(std::int64_t first, std::int64_t count, std::int32_t* ids) const;

  std::int64_t vocabulary_;
  StoredRows tokens_;
};

}  // namespace trireme::data
