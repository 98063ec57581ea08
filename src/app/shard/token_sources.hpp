// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shard_command.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/data/tokens/tokenizer.hpp"

namespace trireme::app {

/// A tokenizer and the bytes of its model file; empty for byte tokens.
struct ChosenTokenizer {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::string model;
};

/// Returns the tokenizer of the command: rank 0 reads or trains the model and broadcasts it. The
/// model is kept in the staging folder at once: shards of a run that was killed are only kept
/// together with the model that encoded them. Collective. Throws InputError.
ChosenTokenizer choose_tokenizer(const ShardCommand& command, const std::filesystem::path& staging,
                                 const comm::Communicator& world);

/// Returns the token of --end-of-text, or -1. `tokenizer`: null for files of tokens. Throws
/// InputError if it is not in the vocabulary, or the tokenizer uses it for text.
std::int64_t end_of_text(const ShardCommand& command, std::int64_t vocabulary,
                         const data::Tokenizer* tokenizer);

/// The sources of texts as tokens.
struct EncodedSources {
  std::vector<data::TokenFile> files;
  std::vector<data::SkippedLine> skipped;
};
/// Encodes the texts into the folder `spools`, source i on rank i % ranks, and returns all of them
/// on every rank. Collective. Throws InputError.
EncodedSources encode_sources(const ShardCommand& command, const data::Tokenizer& tokenizer,
                              const std::filesystem::path& spools, const comm::Communicator& world);

/// Logs which sources of `shard text` have names of JSON Lines.
void report_texts_of_lines(const ShardCommand& command, Log& log);

/// Opens the sources of `shard tokens`. Throws InputError if --type is missing or superfluous, or a
/// file contradicts itself.
std::vector<data::TokenFile> open_token_files(const ShardCommand& command, Log& log);

}  // namespace trireme::app
