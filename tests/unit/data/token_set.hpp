// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/shards/shard_writer.hpp"

namespace trireme::data {

/// Returns token i of a test set. It depends on i alone, so any division into shards has the same
/// tokens.
inline std::int64_t token_at(std::int64_t i, std::int64_t vocabulary) {
  return (i * i + 3 * i + (i >> 5)) % vocabulary;
}

inline void put_token(std::span<std::byte> out, std::size_t i, std::int64_t token,
                      std::int64_t token_bytes) {
  std::memcpy(out.data() + i * static_cast<std::size_t>(token_bytes), &token,
              static_cast<std::size_t>(token_bytes));
}

/// Writes shards with the given token counts, consecutive from token 0 on.
inline void write_token_set(const std::string& folder, const std::vector<std::int64_t>& counts,
                            const TokenSetOptions& options) {
  std::filesystem::create_directories(folder);
  std::int64_t at = 0, index = 0;
  for (const std::int64_t count : counts) {
    write_token_shard(
        folder + "/" + shard_file_name(index++), options, count, {}, [&](std::span<std::byte> out) {
          const std::size_t tokens = out.size() / static_cast<std::size_t>(options.token_bytes());
          for (std::size_t i = 0; i < tokens; ++i)
            put_token(out, i, token_at(at++, options.vocabulary), options.token_bytes());
        });
  }
}

}  // namespace trireme::data
