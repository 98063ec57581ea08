// SPDX-License-Identifier: Apache-2.0
//
// `trireme shard text`, `shard jsonl` and `shard tokens`: datasets of tokens from texts and from
// files of tokens.
//
// 1. Each source becomes a data::TokenFile (token_sources.hpp). Texts are encoded into the staging
//    folder. With --end-of-text each document gets its last token.
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
#include "skipped_list.hpp"
#include "token_sources.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard_writer.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

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
/// that does not list its documents is one. `skipped`: the lines that were left out.
void make_datasets(const ShardCommand& command, std::vector<data::TokenFile> files,
                   const std::vector<data::SkippedLine>& skipped, const data::TokenSetOptions& set,
                   const std::string& model, bool documents, ShardFolder& out, ShardFolder* held,
                   const comm::Communicator& world, Log& log) {
  const double began = monotonic_seconds();
  std::vector<Output> outputs;
  comm::together(world, [&] {
    // 1. Divide the tokens between the datasets.
    if (set.end_of_text >= 0)
      for (data::TokenFile& file : files) data::end_documents(file, set.end_of_text);
    std::int64_t total = 0;
    for (const data::TokenFile& file : files) total += file.count;
    validate(total > 0, "{}{}: no tokens found", command.sources.front(),
             command.sources.size() == 1 ? "" : " and the other sources");
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
    if (world.rank() != 0) return;
    std::string lines;
    for (const data::SkippedLine& line : skipped) lines += skipped_line(line.place, line.reason);
    if (!lines.empty()) write_skipped_list(out, "line", lines);
    if (model.empty()) return;
    for (const Output& output : outputs)
      io::replace_file((output.folder.staging() / data::tokenizer_file_name).string(), model);
  });
  // 3. Publish, then print the summary. The folder with the tokenizer of a killed run is the last.
  if (held != nullptr) held->publish();
  out.publish();
  if (world.rank() != 0) return;
  if (skipped.empty()) remove_old_skipped_list(command.out);
  for (const Output& output : outputs) {
    fmt::print(
        "{}: {} tokens, vocabulary {} (uint{}), {}{}{}, {}\n", output.folder.folder(),
        data::count_tokens(output.runs), set.vocabulary, 8 * set.token_bytes(),
        documents
            ? counted(data::count_documents(files, output.runs), "document", "documents") + ", "
            : "",
        set.end_of_text < 0 ? "" : fmt::format("documents end with token {}, ", set.end_of_text),
        counted(output.shards, "shard", "shards"), format_bytes(output.written.bytes));
  }
  if (!skipped.empty())
    fmt::print("{}: skipped, as {}/{} says\n", counted(std::ssize(skipped), "line", "lines"),
               command.out, skipped_file_name);
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

void shard_texts(const ShardCommand& command, const comm::Communicator& world, Log& log) {
  validate(command.train_tokenizer == 0 || command.tokenizer.empty(),
           "--tokenizer names a tokenizer, --train-tokenizer makes one: use only one of them");
  report_texts_of_lines(command, log);
  ShardFolder out(world, command, "--out", command.out, log);
  const std::unique_ptr<ShardFolder> held = held_out_folder(command, world, log);
  const ChosenTokenizer chosen = choose_tokenizer(command, out.staging(), world);
  comm::together(world, [&] {
    if (world.rank() != 0 || chosen.model.empty()) return;
    check_tokenizer_in_folder("--out", command.out, chosen.model, command.overwrite);
    if (held != nullptr)
      check_tokenizer_in_folder("--hold-out-out", command.hold_out_folder, chosen.model,
                                command.overwrite);
  });
  data::TokenSetOptions set{.vocabulary = chosen.tokenizer->vocabulary(),
                            .tokenizer = chosen.tokenizer->name(),
                            .tokenizer_digest = data::digest_of_model(chosen.model)};
  if (command.vocabulary > 0) {
    validate(command.vocabulary >= set.vocabulary,
             "--vocabulary {}: the tokenizer has {} tokens; give at least so many, or leave the "
             "option out",
             command.vocabulary, set.vocabulary);
    set.vocabulary = command.vocabulary;
  }
  set.end_of_text = end_of_text(command, set.vocabulary, chosen.tokenizer.get());
  EncodedSources sources =
      encode_sources(command, *chosen.tokenizer, out.staging() / "encoded", world);
  make_datasets(command, sources.files, sources.skipped, set, chosen.model, true, out, held.get(),
                world, log);
}

void shard_tokens(const ShardCommand& given, const comm::Communicator& world, Log& log) {
  validate(given.vocabulary > 0, "shard tokens: --vocabulary N is missing: tokens are 0 to N - 1");
  ShardCommand command = given;
  std::vector<data::TokenFile> files;
  comm::together(world, [&] { files = open_token_files(command, log); });
  for (const data::TokenFile& file : files)
    if (!file.index_path.empty())
      for (const std::string& path : {file.path, file.index_path})
        command.further_files.push_back(path);
  const data::TokenSetOptions set{.vocabulary = command.vocabulary,
                                  .tokenizer = {},
                                  .end_of_text = end_of_text(command, command.vocabulary, nullptr)};
  ShardFolder out(world, command, "--out", command.out, log);
  const std::unique_ptr<ShardFolder> held = held_out_folder(command, world, log);
  const bool documents = list_documents(files, log);
  make_datasets(command, files, {}, set, "", documents, out, held.get(), world, log);
}

}  // namespace trireme::app
