#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::app {

/// The command line of `trireme shard`: what a format does not know stays empty (check_options).
struct ShardCommand {
  std::string format;
  std::vector<std::string> sources;
  std::string out;
  std::int64_t shards = 0;  // 0: by size
  bool overwrite = false;
  std::string range;                 // idx
  std::vector<std::string> classes;  // idx
  std::string
      tokenizer;  // text: "bytes" or a model's path; empty: bytes, or the one that is trained
  std::int64_t train_tokenizer = 0;  // text: vocabulary; 0: none is trained
  std::string
      type;  // tokens: "uint8", "uint16", "uint32"; empty: .npy files, which say it themselves
  std::int64_t vocabulary = 0;  // tokens
  double hold_out = 0;          // text, tokens: below 1: a fraction, else a count of tokens
  std::string hold_out_folder;  // text, tokens
};

// Each makes a dataset; collective over `world`. Throws InputError, Failure.
void shard_idx(const ShardCommand& command, const comm::Communicator& world);
void shard_text(const ShardCommand& command, const comm::Communicator& world);
void shard_tokens(const ShardCommand& command, const comm::Communicator& world);

/// Shards of about 256 MiB, unless the user says how many: large enough for streaming reads, small
/// enough to be moved around.
std::int64_t number_of_shards(const ShardCommand& command, std::int64_t bytes);

}  // namespace trireme::app
