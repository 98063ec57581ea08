// SPDX-License-Identifier: Apache-2.0
#include "trireme/data/tokens/tokenizer.hpp"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"

namespace trireme::data {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::int64_t vocabulary() const override { return 256; }
  bool is_text(std::int32_t id) const override { return id >= 0 && id < vocabulary(); }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids)
      if (id >= 0 && id < vocabulary()) text += static_cast<char>(id);
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  return name == "bytes" ? byte_tokenizer()
                         : sentencepiece_tokenizer(io::read_text_file(name), name);
}

std::string digest_of_tokenizer(const std::string& name) {
  std::error_code error;
  if (name == "bytes" || !std::filesystem::exists(name, error)) return "";
  return digest_of_model(io::read_text_file(name));
}

std::string digest_of_model(std::string_view model) {
  if (model.empty()) return "";
  io::Xxh3 hash;
  hash.update(model.data(), model.size());
  return fmt::format("{:016x}", hash.digest());
}

std::string check_tokenizer_beside(const std::string& shard, const std::string& digest,
                                   std::int64_t vocabulary) {
  const std::string path =
      (std::filesystem::path(shard).parent_path() / tokenizer_file_name).string();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return digest;
  const std::string model = io::read_text_file(path), found = digest_of_model(model);
  if (!digest.empty()) {
    validate(found == digest,
             "{}: is not the model that encoded {}, whose attribute tokenizer_digest is \"{}\"; "
             "that of this file is \"{}\": put the model of the shards back",
             path, shard, printable(digest), found);
    return found;
  }
  if (!has_sentencepiece()) return found;
  const std::int64_t pieces =
      sentencepiece_tokenizer(model, fmt::format("{} (beside {})", path, shard))->vocabulary();
  validate(pieces <= vocabulary,
           "{}: is not the model that encoded {}: it has {} pieces, but the vocabulary of the "
           "shard is {}; put the model of the shards back",
           path, shard, pieces, vocabulary);
  return found;
}

TextEncoding encoding_of_dataset(const std::string& folder) {
  const std::string first = shard_paths(folder).front();
  const ShardDescription shard = describe_shard(first);
  validate(shard.tokenizer == "bytes" || shard.tokenizer == "sentencepiece",
           "{}: contains {} whose attribute tokenizer is \"{}\"; \"bytes\" and \"sentencepiece\" "
           "are known: it cannot be decoded as text",
           first, to_string(shard.kind), shard.tokenizer);
  if (shard.tokenizer == "sentencepiece")
    check_tokenizer_beside(first, shard.tokenizer_digest, shard.vocabulary);
  return {open_tokenizer(shard.tokenizer == "bytes" ? "bytes" : folder + "/" + tokenizer_file_name),
          shard.end_of_text};
}

}  // namespace trireme::data
