#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::app {

/// The options of `trireme shard`. Options of other formats stay empty (command_shard.cpp checks
/// that).
struct ShardCommand {
  std::string format;
  std::vector<std::string> sources;
  std::string out;
  std::int64_t shards = 0;  // 0: chosen by size
  bool overwrite = false;
  std::string range;                 // idx
  std::vector<std::string> classes;  // idx
  // text: "bytes" or the path of a model; empty: bytes, or the trained one.
  std::string tokenizer;
  std::int64_t train_tokenizer = 0;  // text: vocabulary of the tokenizer to train; 0: train none
  // tokens: "uint8", "uint16", "uint32"; empty for .npy files, which contain their type.
  std::string type;
  std::int64_t vocabulary = 0;  // tokens
  double hold_out = 0;          // text, tokens: a fraction if below 1, else a number of tokens
  std::string hold_out_folder;  // text, tokens
};

// Each function makes a dataset and prints a summary on rank 0. Collective over `world`. Throws
// InputError or Failure.
void shard_idx(const ShardCommand& command, const comm::Communicator& world, Log& log);
void shard_text(const ShardCommand& command, const comm::Communicator& world, Log& log);
void shard_tokens(const ShardCommand& command, const comm::Communicator& world, Log& log);

/// Returns the number of shards for `bytes` of data: --shards, else one for each 256 MiB. This size
/// is large enough for streaming reads and small enough to move.
std::int64_t number_of_shards(const ShardCommand& command, std::int64_t bytes);

}  // namespace trireme::app
