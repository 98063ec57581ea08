#include "token_shard.hpp"

#include <cstring>

#include "trireme/base/check.hpp"

namespace trireme::data {

// Converts in place, without a buffer. The stored numbers are read to the end of `ids`. Each number
// is read before the growing int32 numbers, written from the front, reach it.
template <class Stored>
void TokenShard::widen(std::int64_t first, std::int64_t count, std::int32_t* ids) const {
  std::byte* stored = reinterpret_cast<std::byte*>(ids + count) - count * token_bytes();
  tokens_.read(first, count, stored);
  for (std::int64_t i = 0; i < count; ++i) {
    Stored token;
    std::memcpy(&token, stored + i * static_cast<std::int64_t>(sizeof token), sizeof token);
    validate(token < vocabulary_,
             "{}: /tokens: token {} at position {} is not below the vocabulary of {}",
             tokens_.path(), token, first + i, vocabulary_);
    ids[i] = static_cast<std::int32_t>(token);
  }
}

void TokenShard::read_ids(std::int64_t first, std::int64_t count, std::int32_t* ids) const {
  switch (token_bytes()) {
    case 1: return widen<std::uint8_t>(first, count, ids);
    case 2: return widen<std::uint16_t>(first, count, ids);
    default: return widen<std::uint32_t>(first, count, ids);
  }
}

}  // namespace trireme::data
