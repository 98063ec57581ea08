// `trireme shard text` and `trireme shard tokens`: datasets of tokens from texts and from files of
// tokens.
//
// 1. Each source becomes a data::TokenFile. Texts are encoded into the staging folder, source i by
//    rank i % ranks.
// 2. The end of each source is held out for validation, if requested.
// 3. All files, one after the other, are cut into shards, which the ranks write in turn. Shards
//    that a killed run has sealed are kept.
// 4. The files are published; rank 0 prints a summary.
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shard_command.hpp"
#include "shard_folder.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shard_writer.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

// Lines of at most 1 KiB that train a tokenizer. More lines hardly change the vocabulary, but need
// more memory.
constexpr std::int64_t training_lines = 200'000;

/// A tokenizer and the bytes of its model file; empty for byte tokens.
struct ChosenTokenizer {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::string model;
};

/// Returns the tokenizer of the command: rank 0 reads or trains the model and broadcasts it. The
/// model is kept in the staging folder at once: shards of a run that was killed are only kept
/// together with the model that encoded them. Collective. Throws InputError.
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
          train ? data::train_tokenizer(data::sample_lines(command.sources, training_lines),
                                        command.train_tokenizer)
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

/// Returns the number of tokens to hold out of `total`. Throws InputError if that is none or all.
std::int64_t held_out_tokens(const ShardCommand& command, std::int64_t total) {
  const auto tokens = static_cast<std::int64_t>(
      command.hold_out < 1 ? std::floor(command.hold_out * static_cast<double>(total))
                           : command.hold_out);
  validate(command.hold_out == 0 || (tokens > 0 && tokens < total),
           "--hold-out {}: that is {} of {} tokens; some must be held out and some must remain",
           command.hold_out, tokens, total);
  return tokens;
}

/// One dataset to write: shard s contains the s-th equal part of its runs.
struct Output {
  const ShardFolder& folder;
  std::vector<data::TokenRange> runs;
  std::int64_t shards = 1;
  WrittenShards written{};
};

/// Writes the shards of all outputs, one rank after the other in turn. Collective.
void write_outputs(const std::vector<data::TokenFile>& files, const data::TokenSetOptions& set,
                   bool documents, std::vector<Output>& outputs, const comm::Communicator& world,
                   Log& log) {
  comm::together(world, [&] {
    std::int64_t turn = 0;
    for (Output& output : outputs) {
      const std::int64_t total = data::count_tokens(output.runs);
      for (std::int64_t shard = 0; shard < output.shards; ++shard, ++turn) {
        if (turn % world.size() != world.rank()) continue;
        const fs::path path = output.folder.staging() / data::shard_file_name(shard);
        if (output.written.keep(path)) continue;
        const std::vector<data::TokenRange> part = data::slice_ranges(
            output.runs, total * shard / output.shards, total * (shard + 1) / output.shards);
        output.written.bytes +=
            data::write_token_ranges(path.string(), set, files, part, documents);
      }
    }
  });
  for (Output& output : outputs)
    output.written.sum_over_ranks(world, output.folder.folder(), output.shards, log);
}

/// Makes the published datasets from token files and prints a summary. Collective. `model` is
/// stored beside the shards, unless it is empty. `documents`: they are listed in the shards; a file
/// that does not list its documents is one.
void make_datasets(const ShardCommand& command, const std::vector<data::TokenFile>& files,
                   const data::TokenSetOptions& set, const std::string& model, bool documents,
                   ShardFolder& out, ShardFolder* held, const comm::Communicator& world, Log& log) {
  const double began = monotonic_seconds();
  std::vector<Output> outputs;
  comm::together(world, [&] {
    // 1. Divide the tokens between the datasets.
    std::int64_t total = 0;
    for (const data::TokenFile& file : files) total += file.count;
    validate(total > 0, "{}{}: no tokens found", files.front().path,
             files.size() == 1 ? "" : " and the other sources");
    data::TokenSplit split = data::hold_out_ends(files, held_out_tokens(command, total));
    const auto add = [&](const ShardFolder& folder, std::vector<data::TokenRange> runs,
                         std::int64_t shards) {
      const std::int64_t tokens = data::count_tokens(runs);
      if (shards == 0) shards = number_of_shards({}, tokens * set.token_bytes());
      validate(shards <= tokens, "--shards {}: there are only {} tokens", shards, tokens);
      outputs.push_back({folder, std::move(runs), shards});
    };
    add(out, std::move(split.training), command.shards);
    if (held != nullptr) add(*held, std::move(split.held_out), 0);
  });
  // 2. Write shards and tokenizer to the staging folders.
  write_outputs(files, set, documents, outputs, world, log);
  comm::together(world, [&] {
    if (world.rank() != 0 || model.empty()) return;
    for (const Output& output : outputs)
      io::replace_file((output.folder.staging() / data::tokenizer_file_name).string(), model);
  });
  // 3. Publish, then print the summary. The folder with the tokenizer of a killed run is the last.
  if (held != nullptr) held->publish();
  out.publish();
  if (world.rank() != 0) return;
  for (const Output& output : outputs) {
    fmt::print(
        "{}: {} tokens, vocabulary {} (uint{}), {}{}, {}\n", output.folder.folder(),
        data::count_tokens(output.runs), set.vocabulary, 8 * set.token_bytes(),
        documents
            ? counted(data::count_documents(files, output.runs), "document", "documents") + ", "
            : "",
        counted(output.shards, "shard", "shards"),
        format_bytes(static_cast<double>(output.written.bytes)));
  }
  fmt::print("written in {:.1f} s\n", monotonic_seconds() - began);
}

/// Returns the folder of the held-out tokens; null if nothing is held out. Collective.
std::unique_ptr<ShardFolder> held_out_folder(const ShardCommand& command,
                                             const comm::Communicator& world, Log& log) {
  validate(
      (command.hold_out > 0) == !command.hold_out_folder.empty(),
      "--hold-out sets how much is held out, --hold-out-out the folder for it: use both or none");
  constexpr double most = 1e15;  // exact as a double
  validate(command.hold_out < 1 ||
               (command.hold_out <= most && command.hold_out == std::floor(command.hold_out)),
           "--hold-out {}: must be a fraction below 1 or a whole number of tokens",
           command.hold_out);
  if (command.hold_out_folder.empty()) return nullptr;
  validate(fs::weakly_canonical(command.hold_out_folder) != fs::weakly_canonical(command.out),
           "--hold-out-out {}: is also the folder of --out; name another one",
           command.hold_out_folder);
  return std::make_unique<ShardFolder>(world, command, "--hold-out-out", command.hold_out_folder,
                                       log);
}

/// Encodes the texts, source i on rank i % ranks, and returns the token files on all ranks.
/// Collective.
std::vector<data::TokenFile> encode_sources(const ShardCommand& command,
                                            const data::Tokenizer& tokenizer,
                                            const fs::path& spools,
                                            const comm::Communicator& world) {
  std::vector<data::TokenFile> files(command.sources.size());
  std::vector<std::int64_t> counts(files.size()), spooled(files.size());
  const auto spool_of = [&](std::size_t i) { return (spools / std::to_string(i)).string(); };
  comm::together(world, [&] {
    if (world.rank() == 0) fs::create_directory(spools);
  });
  comm::together(world, [&] {
    for (auto i = static_cast<std::size_t>(world.rank()); i < files.size();
         i += static_cast<std::size_t>(world.size())) {
      files[i] = data::encode_text_file(command.sources[i], tokenizer, spool_of(i));
      counts[i] = files[i].count;
      spooled[i] = files[i].path != command.sources[i];
    }
  });
  world.all_reduce(counts, comm::Reduction::sum);
  world.all_reduce(spooled, comm::Reduction::sum);
  const std::int64_t token_bytes =
      data::TokenSetOptions{.vocabulary = tokenizer.vocabulary(), .tokenizer = {}}.token_bytes();
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i] = {spooled[i] != 0 ? spool_of(i) : command.sources[i], 0, token_bytes, false,
                counts[i]};
  return files;
}

/// Opens the sources of `shard tokens`. Throws InputError if --type is missing or superfluous.
std::vector<data::TokenFile> open_token_files(const ShardCommand& command) {
  std::vector<data::TokenFile> files;
  for (const std::string& source : command.sources) {
    if (const std::optional<data::TokenFile> file = data::megatron_token_file(source)) {
      validate(command.type.empty(),
               "{}: its index of Megatron-LM states the type; leave --type out", source);
      files.push_back(*file);
      continue;
    }
    const bool npy = source.ends_with(".npy");
    validate(!npy || command.type.empty(), "{}: a .npy file contains its type; leave --type out",
             source);
    if (npy) {
      files.push_back(data::npy_token_file(source));
      continue;
    }
    const std::int64_t bytes = command.type == "uint8" ? 1 : command.type == "uint16" ? 2 : 4;
    if (const std::optional<data::TokenFile> file = data::llm_c_token_file(source)) {
      validate(command.type.empty() || bytes == file->token_bytes,
               "{}: its header of llm.c says uint{}, but --type is {}; leave --type out", source,
               8 * file->token_bytes, command.type);
      files.push_back(*file);
      continue;
    }
    validate(
        !command.type.empty(),
        "{}: --type uint8, uint16 or uint32 is required (only .npy files, files with the header "
        "of llm.c, and NAME.bin beside NAME.idx of Megatron-LM state their type)",
        source);
    files.push_back(data::raw_token_file(source, bytes));
  }
  return files;
}

/// Returns whether the documents of token files can be listed in the shards. Logs which file lists
/// none, if others do.
bool list_documents(const std::vector<data::TokenFile>& files, Log& log) {
  const data::TokenFile *listed = nullptr, *unlisted = nullptr;
  for (const data::TokenFile& file : files)
    if (file.count > 0) (file.document_ends.empty() ? unlisted : listed) = &file;
  if (listed != nullptr && unlisted != nullptr)
    log.warn("{}: lists no documents, so those of {} are not listed in the shards either",
             unlisted->path, listed->path);
  return unlisted == nullptr;
}

}  // namespace

void shard_text(const ShardCommand& command, const comm::Communicator& world, Log& log) {
  validate(command.train_tokenizer == 0 || command.tokenizer.empty(),
           "--tokenizer names a tokenizer, --train-tokenizer makes one: use only one of them");
  ShardFolder out(world, command, "--out", command.out, log);
  const std::unique_ptr<ShardFolder> held = held_out_folder(command, world, log);
  const ChosenTokenizer chosen = choose_tokenizer(command, out.staging(), world);
  const std::vector<data::TokenFile> files =
      encode_sources(command, *chosen.tokenizer, out.staging() / "encoded", world);
  make_datasets(
      command, files,
      {.vocabulary = chosen.tokenizer->vocabulary(), .tokenizer = chosen.tokenizer->name()},
      chosen.model, true, out, held.get(), world, log);
}

void shard_tokens(const ShardCommand& given, const comm::Communicator& world, Log& log) {
  validate(given.vocabulary > 0, "shard tokens: --vocabulary N is missing: tokens are 0 to N - 1");
  ShardCommand command = given;
  std::vector<data::TokenFile> files;
  comm::together(world, [&] { files = open_token_files(command); });
  for (const data::TokenFile& file : files)
    if (!file.index_path.empty())
      for (const std::string& path : {file.path, file.index_path})
        command.further_files.push_back(path);
  ShardFolder out(world, command, "--out", command.out, log);
  const std::unique_ptr<ShardFolder> held = held_out_folder(command, world, log);
  const bool documents = list_documents(files, log);
  make_datasets(command, files, {.vocabulary = command.vocabulary, .tokenizer = {}}, "", documents,
                out, held.get(), world, log);
}

}  // namespace trireme::app
