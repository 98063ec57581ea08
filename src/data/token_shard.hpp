#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "stored_rows.hpp"
#include "trireme/data/shard.hpp"

namespace trireme::data {

/// An open shard of tokens. Reads are thread-safe.
class TokenShard {
 public:
  TokenShard(io::Hdf5File file, const ShardDescription& header, std::shared_ptr<RowCache> cache)
      : path_(file.path()),
        vocabulary_(header.vocabulary),
        tokens_(std::move(file), "tokens", std::move(cache)) {}

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

  std::string path_;
  std::int64_t vocabulary_;
  StoredRows tokens_;
};

}  // namespace trireme::data
