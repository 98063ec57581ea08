// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/deck_source.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::app {

/// The options of `trireme shard`. Options of other formats stay empty (command_shard.cpp checks
/// that).
struct ShardCommand {
  std::string format;
  std::vector<std::string> sources;
  std::string out;
  std::int64_t shards = 0;  // 0: chosen by size
  bool overwrite = false;
  std::int64_t max_unpacked = 0;  // bytes; 0: the default
  // Images.
  std::string range;                 // BEGIN:END of the source; empty: all
  std::vector<std::string> classes;  // names, or one path of a file or dataset
  std::string labels;                // file of lines NAME LABEL; empty: none
  std::string image;                 // how the names of the images end; empty: all are taken
  std::string resize = "none";
  std::string encode = "raw";  // raw, jpeg, png or keep
  int quality = 0;             // of JPEG; 0: the default
  std::int64_t shuffle = -1;   // seed of the order; -1: that of the source
  std::string on_error = "stop";
  std::uint64_t source_identity = 0;  // hash of what is read from the source; set by its format
  // HDF5 files.
  std::string split = "train";  // set of the deck
  DeckSource deck;              // its overrides; the source is its path
  // Texts and tokens.
  std::string field = "text";  // jsonl: the member with the text
  // Texts: "bytes" or the path of a model; empty: bytes, or the trained one.
  std::string tokenizer;
  std::int64_t train_tokenizer = 0;  // texts: vocabulary of the tokenizer to train; 0: train none
  std::string end_of_text;           // number or piece of the token after every document
  // tokens: "uint8", "uint16", "uint32"; empty for .npy files, which contain their type.
  std::string type;
  std::int64_t vocabulary = 0;             // 0: that of the tokenizer
  std::vector<std::string> further_files;  // tokens, hdf5: the files that belong to the sources
  double hold_out = 0;                     // a fraction if below 1, else a number of tokens
  std::string hold_out_folder;
};

// Each function makes a dataset and prints a summary on rank 0. Collective over `world`. Throws
// InputError or Failure.
void shard_texts(const ShardCommand& command, const comm::Communicator& world, Log& log);
void shard_arrays(const ShardCommand& command, const comm::Communicator& world, Log& log);
void shard_tokens(const ShardCommand& command, const comm::Communicator& world, Log& log);

/// Catalogs the source of a format of images.
using CatalogMaker = std::function<data::ImageCatalog(const ShardCommand&)>;
void shard_images(const ShardCommand& command, const CatalogMaker& catalog_of,
                  const comm::Communicator& world, Log& log);

/// Returns the number of shards for `bytes` of data: --shards, else one for each 256 MiB. This size
/// is large enough for streaming reads and small enough to move.
std::int64_t number_of_shards(const ShardCommand& command, std::int64_t bytes);

}  // namespace trireme::app
