// SPDX-License-Identifier: Apache-2.0
//
// The sources of datasets of tokens: texts, which a tokenizer encodes, and files of tokens.
//
// Each rank encodes some of the texts; then all ranks learn of all of them. Files of tokens are
// opened by every rank. Their form is found in this order: the index of Megatron-LM beside a file,
// the name (.npy), the header of llm.c, then --type. check_source_forms() has refused other forms.
#include "token_sources.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <sys/stat.h>

#include "tokenizer_training.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard_writer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

// Lines of at most 1 KiB that train a tokenizer. More lines hardly change the vocabulary, but need
// more memory.
constexpr std::int64_t training_lines = 200'000;

std::vector<data::TextSource> text_sources(const ShardCommand& command) {
  std::vector<data::TextSource> sources;
  for (const std::string& path : command.sources) {
    data::TextSource& source = sources.emplace_back(data::TextSource{path});
    if (command.format != "jsonl") continue;
    validate(!command.field.empty(), "--field: must not be empty; give a member, as in text");
    source.member = command.field;
    source.skip_wrong_lines = command.on_error == "skip";
  }
  return sources;
}

/// Finds sources that name the same files of Megatron-LM.
class MegatronSources {
 public:
  /// Returns whether a source is the other file of a set that was given already.
  bool is_other_file(const std::string& source, const data::TokenFile& file) {
    struct stat status{};
    ensure(::stat(file.path.c_str(), &status) == 0, "{}: is gone", file.path);
    auto& [bins, indices] = counts_[{status.st_dev, status.st_ino}];
    const int before = std::max(bins, indices);
    ++(source.ends_with(".idx") ? indices : bins);
    // A file that is given twice is read twice, as in the other formats.
    return std::max(bins, indices) == before;
  }

 private:
  std::map<std::pair<dev_t, ino_t>, std::pair<int, int>> counts_;
};

/// Opens a file of tokens without an index. Throws InputError.
data::TokenFile open_token_file(const ShardCommand& command, const std::string& source) {
  const bool npy = source.ends_with(".npy");
  validate(!npy || command.type.empty(), "{}: a .npy file contains its type; leave --type out",
           source);
  if (npy) return data::npy_token_file(source);
  const std::int64_t bytes = command.type == "uint8" ? 1 : command.type == "uint16" ? 2 : 4;
  if (const std::optional<data::TokenFile> file = data::llm_c_token_file(source)) {
    validate(command.type.empty() || bytes == file->token_bytes,
             "{}: its header of llm.c says uint{}, but --type is {}; leave --type out", source,
             8 * file->token_bytes, command.type);
    return *file;
  }
  validate(!command.type.empty(),
           "{}: --type uint8, uint16 or uint32 is required (only .npy files, files with the header "
           "of llm.c, and NAME.bin beside NAME.idx of Megatron-LM state their type)",
           source);
  return data::raw_token_file(source, bytes);
}

/// Converts the sources that a rank has encoded to bytes and back.
std::string to_bytes(const std::vector<data::EncodedText>& texts) {
  ByteWriter bytes;
  for (const data::EncodedText& text : texts) {
    bytes.put_string(text.tokens.path);
    bytes.put(text.tokens.token_bytes);
    bytes.put(text.tokens.count);
    bytes.put_list(text.tokens.document_ends);
    std::vector<std::string> skipped;
    for (const data::SkippedLine& line : text.skipped) {
      skipped.push_back(line.place);
      skipped.push_back(line.reason);
    }
    bytes.put_strings(skipped);
  }
  return bytes.take();
}

data::EncodedText encoded_text_from(ByteReader& bytes) {
  data::EncodedText text;
  text.tokens.path = bytes.get_string();
  text.tokens.token_bytes = bytes.get<std::int64_t>();
  text.tokens.count = bytes.get<std::int64_t>();
  text.tokens.document_ends = bytes.get_list<std::int64_t>();
  const std::vector<std::string> skipped = bytes.get_strings();
  for (std::size_t i = 0; i + 1 < skipped.size(); i += 2)
    text.skipped.push_back({skipped[i], skipped[i + 1]});
  return text;
}

}  // namespace

ChosenTokenizer choose_tokenizer(const ShardCommand& command, const fs::path& staging,
                                 const comm::Communicator& world) {
  ChosenTokenizer chosen;
  const bool train = command.train_tokenizer > 0;
  if (train || (!command.tokenizer.empty() && command.tokenizer != "bytes")) {
    comm::together(world, [&] {
      if (world.rank() != 0) return;
      const std::string kept = (staging / data::tokenizer_file_name).string();
      if (fs::exists(kept)) {
        chosen.model = io::read_text_file(kept);
        return;
      }
      chosen.model =
          train ? train_tokenizer_apart(data::sample_lines(text_sources(command), training_lines),
                                        command.train_tokenizer, staging, command.sources)
                : io::read_text_file(command.tokenizer);
      io::replace_file(kept, chosen.model);
    });
    chosen.model = world.broadcast(chosen.model, 0);
    comm::together(world, [&] {
      chosen.tokenizer = data::sentencepiece_tokenizer(
          chosen.model, train ? "--train-tokenizer" : command.tokenizer);
    });
  } else {
    chosen.tokenizer = data::byte_tokenizer();
  }
  return chosen;
}

std::int64_t end_of_text(const ShardCommand& command, std::int64_t vocabulary,
                         const data::Tokenizer* tokenizer) {
  const std::string& wanted = command.end_of_text;
  if (wanted.empty()) return -1;
  const bool pieces = tokenizer != nullptr && tokenizer->name() != "bytes";
  // A number is that of a token, though a piece may have it as its name.
  std::optional<std::int64_t> token = parse_integer(wanted);
  if (!token && pieces)
    if (const std::int32_t id = tokenizer->id_of(wanted); id >= 0) token = id;
  validate(token.has_value(), "--end-of-text {}: {}", printable(wanted),
           pieces ? "the model has no such piece; give one of its pieces, or a number"
                  : "must be the number of a token");
  const std::string remedy =
      !pieces ? fmt::format("--vocabulary {} --end-of-text {}", vocabulary + 1, vocabulary)
              : "the number of a control piece, as that of </s>, or a larger --vocabulary";
  validate(*token >= 0 && *token < vocabulary,
           "--end-of-text {}: is not in the vocabulary, whose tokens are 0 to {}; give {}",
           printable(wanted), vocabulary - 1, remedy);
  validate(tokenizer == nullptr || !tokenizer->is_text(static_cast<std::int32_t>(*token)),
           "--end-of-text {}: the tokenizer uses this token for text, so it cannot mark an end; "
           "give {}",
           printable(wanted), remedy);
  return *token;
}

EncodedSources encode_sources(const ShardCommand& command, const data::Tokenizer& tokenizer,
                              const fs::path& spools, const comm::Communicator& world) {
  const std::vector<data::TextSource> sources = text_sources(command);
  std::vector<data::EncodedText> own;
  comm::together(world, [&] {
    if (world.rank() == 0) fs::create_directory(spools);
  });
  comm::together(world, [&] {
    for (auto i = static_cast<std::size_t>(world.rank()); i < sources.size();
         i += static_cast<std::size_t>(world.size()))
      own.push_back(
          data::encode_text_file(sources[i], tokenizer, (spools / std::to_string(i)).string()));
  });
  EncodedSources encoded;
  encoded.files.resize(sources.size());
  std::vector<std::vector<data::SkippedLine>> skipped(sources.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string text = world.broadcast(rank == world.rank() ? to_bytes(own) : "", rank);
    ByteReader bytes(text);
    for (auto i = static_cast<std::size_t>(rank); i < sources.size();
         i += static_cast<std::size_t>(world.size())) {
      data::EncodedText each = encoded_text_from(bytes);
      encoded.files[i] = std::move(each.tokens);
      skipped[i] = std::move(each.skipped);
    }
  }
  for (const std::vector<data::SkippedLine>& lines : skipped)
    encoded.skipped.insert(encoded.skipped.end(), lines.begin(), lines.end());
  return encoded;
}

void report_texts_of_lines(const ShardCommand& command, Log& log) {
  if (command.format == "jsonl") return;
  for (std::string_view name : command.sources) {
    const std::string_view whole = name;
    if (name.ends_with(".gz")) name.remove_suffix(3);
    if (name.ends_with(".jsonl") || name.ends_with(".ndjson"))
      log.warn(
          "{}: is read as one document, with all its marks; `shard jsonl` takes a text from "
          "each line",
          whole);
  }
}

std::vector<data::TokenFile> open_token_files(const ShardCommand& command, Log& log) {
  std::vector<data::TokenFile> files;
  MegatronSources megatron;
  for (const std::string& source : command.sources) {
    const std::optional<data::TokenFile> file = data::megatron_token_file(source);
    if (!file) {
      files.push_back(open_token_file(command, source));
      continue;
    }
    validate(command.type.empty(), "{}: its index of Megatron-LM states the type; leave --type out",
             source);
    if (megatron.is_other_file(source, *file))
      log.info("{}: belongs to another source of the command, and is read with it", source);
    else
      files.push_back(*file);
  }
  return files;
}

}  // namespace trireme::app
