// SPDX-License-Identifier: Apache-2.0
//
// `trireme shard`: makes a dataset of HDF5 shards from files of another format.
//
// This file has the options and the table of formats, and checks that an option belongs to the
// chosen format. The formats are in shard_images.cpp, shard_arrays.cpp (HDF5 files) and
// shard_tokens.cpp (texts and tokens).
// All ranks take part; each writes its share of the shards.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "shard_command.hpp"
#include "source_forms.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/data/sources/unpacking.hpp"

namespace trireme::app {
namespace {

constexpr std::int64_t default_shard_bytes = std::int64_t{256} << 20;
// Tokens are int32 in memory.
constexpr std::int64_t max_vocabulary = (std::int64_t{1} << 31) - 1;

/// A source format: its function and the options that only some formats have.
struct Format {
  std::string name;
  std::function<void(const ShardCommand&, const comm::Communicator&, Log&)> make;
  std::vector<std::string> options;
};

/// Returns the function of a format of images.
auto images_of(data::ImageCatalog (*catalog_of)(const std::vector<std::string>&)) {
  return [catalog_of](const ShardCommand& command, const comm::Communicator& world, Log& log) {
    shard_images(
        command, [=](const ShardCommand& of) { return catalog_of(of.sources); }, world, log);
  };
}
/// Returns the function of a format of files, among which --image chooses.
auto images_of(data::ImageCatalog (*catalog_of)(const std::vector<std::string>&,
                                                const std::string&)) {
  return [catalog_of](const ShardCommand& command, const comm::Communicator& world, Log& log) {
    shard_images(
        command, [=](const ShardCommand& of) { return catalog_of(of.sources, of.image); }, world,
        log);
  };
}

const std::vector<Format>& formats() {
  static const std::vector<std::string> of_records{"--range",  "--classes", "--resize",
                                                   "--encode", "--quality", "--shuffle"},
      of_files{"--range",  "--classes", "--labels",  "--image",   "--resize",
               "--encode", "--quality", "--shuffle", "--on-error"};
  static const std::vector<Format> all{
      {"idx", images_of(data::catalog_idx), of_records},
      {"npy", images_of(data::catalog_npy), of_records},
      {"cifar", images_of(data::catalog_cifar), of_records},
      {"folder", images_of(data::catalog_folder), of_files},
      {"tar", images_of(data::catalog_tar), of_files},
      {"hdf5", shard_arrays, {"--split", "--set", "--unset", "--range", "--classes", "--shuffle"}},
      {"text",
       shard_texts,
       {"--tokenizer", "--train-tokenizer", "--vocabulary", "--end-of-text", "--hold-out",
        "--hold-out-out"}},
      {"jsonl",
       shard_texts,
       {"--field", "--on-error", "--tokenizer", "--train-tokenizer", "--vocabulary",
        "--end-of-text", "--hold-out", "--hold-out-out"}},
      {"tokens",
       shard_tokens,
       {"--type", "--vocabulary", "--end-of-text", "--hold-out", "--hold-out-out"}}};
  return all;
}

/// Returns the format of the command. Throws InputError if it is unknown, or an option belongs to
/// other formats only.
const Format& format_of(const ShardCommand& command, const std::vector<std::string>& given) {
  const auto named = std::find_if(formats().begin(), formats().end(), [&](const Format& format) {
    return format.name == command.format;
  });
  if (named == formats().end()) {
    std::vector<std::string> names;
    for (const Format& format : formats()) names.push_back(format.name);
    const std::string advice = advice_for_format(command.format);
    validate(advice.empty(), "shard {}: is no format of `shard`: {}", command.format, advice);
    const std::string near = nearest(command.format, names);
    throw InputError(fmt::format("shard: unknown format \"{}\"{}; known: {}", command.format,
                                 near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near),
                                 fmt::join(names, ", ")));
  }
  for (const std::string& option : given) {
    bool of_others = false;
    for (const Format& format : formats())
      of_others = of_others || std::find(format.options.begin(), format.options.end(), option) !=
                                   format.options.end();
    const bool own =
        std::find(named->options.begin(), named->options.end(), option) != named->options.end();
    validate(own || !of_others,
             "shard {}: {} belongs to another format; the own options of {} are {}", command.format,
             option, command.format, fmt::join(named->options, ", "));
  }
  return *named;
}

ExitCode shard_command(const ShardCommand& command, const std::vector<std::string>& given) {
  comm::Environment environment;
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] {
    const Format& format = format_of(command, given);
    comm::together(environment.world(), [&] {
      if (environment.world().rank() == 0) check_source_forms(command);
    });
    data::allow_unpacked_bytes(command.max_unpacked);
    format.make(command, environment.world(), log);
    return ExitCode::done;
  });
}

/// Returns the words between commas; empty ones too, which make_plan() refuses.
std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> words;
  for (;;) {
    const std::size_t comma = names.find(',');
    words.emplace_back(names.substr(0, comma));
    if (comma == std::string_view::npos) return words;
    names.remove_prefix(comma + 1);
  }
}

/// Adds the options of sources of images.
void add_image_options(Command& shard, ShardCommand& command) {
  shard.option("--range", command.range,
               "images: only samples BEGIN:END of the source (END not included)");
  shard
      .option(
          "--classes", [&command](const std::string& names) { command.classes = split(names); },
          "images: names of the classes: between commas, one a line of a file, or those of a "
          "dataset")
      .type_name("NAME,NAME,...|FILE|DATASET");
  shard
      .option("--labels", command.labels,
              "folder, tar: file of lines NAME LABEL; a label is a number or the name of a class")
      .type_name("FILE");
  shard
      .option("--image", command.image,
              "folder, tar: of the images of a sample take the one whose name ends with EXT after "
              "the key, as jpg or left.jpg (default: all)")
      .type_name("EXT");
  shard
      .option("--resize", command.resize,
              "images: scale each to cover this size and keep the center, or its shorter side to "
              "N pixels (default: none)")
      .type_name("HEIGHTxWIDTH|shorter=N|none");
  shard
      .option("--encode", command.encode,
              "images: store pixels of one size (raw, default), JPEG or PNG files of any size, or "
              "the files of the source (keep)")
      .one_of({"raw", "jpeg", "png", "keep"});
  shard.option("--quality", command.quality, "images: quality of --encode jpeg (default: 90)")
      .range(1, 100)
      .type_name("Q");
  shard
      .option("--shuffle", command.shuffle,
              "images: store them in a random order that follows from the seed")
      .range(0, (std::int64_t{1} << 62))
      .type_name("SEED");
}

/// Adds the options of sources that a deck describes.
void add_array_options(Command& shard, ShardCommand& command) {
  shard.option("--split", command.split, "hdf5: the set of the deck (default: train)")
      .type_name("train|validation|test");
  add_deck_overrides(shard, command.deck);
}

/// Adds the options of sources of texts and tokens.
void add_text_options(Command& shard, ShardCommand& command) {
  shard
      .option("--field", command.field,
              "jsonl: the member of each line that has the text (default: text)")
      .type_name("NAME");
  shard
      .option(
          "--tokenizer", command.tokenizer,
          "text, jsonl: \"bytes\" (default: a token is a byte) or a SentencePiece model, which is "
          "copied beside the shards")
      .type_name("bytes|FILE.model");
  shard
      .option("--train-tokenizer", command.train_tokenizer,
              "text, jsonl: train a SentencePiece model of so many pieces on the sources, kept as "
              "tokenizer.model beside the shards")
      .range(1, max_vocabulary)
      .type_name("VOCABULARY");
  shard
      .option("--type", command.type,
              "tokens: type of the numbers in raw files (little-endian); .npy "
              "files, the header of llm.c and the index of Megatron-LM state it")
      .one_of({"uint8", "uint16", "uint32"});
  shard
      .option("--vocabulary", command.vocabulary,
              "tokens: the tokens are 0 to N - 1; text, jsonl: the same, with room for more than "
              "the tokenizer has")
      .range(1, max_vocabulary)
      .type_name("N");
  shard
      .option("--end-of-text", command.end_of_text,
              "text, jsonl, tokens: write this token after every document: a number, or a piece of "
              "a SentencePiece model, as in \"</s>\"")
      .type_name("TOKEN");
  shard
      .option("--hold-out", command.hold_out,
              "text, jsonl, tokens: hold out the end of every source for validation, in "
              "total this fraction of the "
              "tokens (below 1) or this many tokens")
      .positive()
      .type_name("FRACTION|TOKENS");
  shard
      .option("--hold-out-out", command.hold_out_folder,
              "text, jsonl, tokens: folder of the shards held out")
      .type_name("FOLDER");
}

void add_options(Command& shard, ShardCommand& command) {
  shard
      .option("FORMAT", command.format,
              "Form of the source: idx (MNIST-style), npy (NumPy), cifar (binary version), folder "
              "(JPEG, PNG), "
              "tar (WebDataset, ImageNet), hdf5 (files of other programs, netCDF-4), text, jsonl "
              "(JSON Lines), tokens (numbers)")
      .type_name("idx|npy|cifar|folder|tar|hdf5|text|jsonl|tokens")
      .required();
  shard
      .option("SOURCE", command.sources,
              "idx, npy: IMAGES LABELS; folder: one folder with a folder of files for each class; "
              "cifar, tar, tokens: files; hdf5: a deck with [data.hdf5]; text: files, each of "
              "which is one "
              "document; jsonl: files, each line of which is one")
      .required();
  shard.option("--out", command.out, "Folder of the shards").required();
  shard.option("--shards", command.shards, "Number of files (default: one for each 256 MiB)")
      .range(1, std::int64_t{1} << 30);
  shard.flag("--overwrite", command.overwrite, "Replace the shards that the folders hold");
  shard
      .option("--max-unpacked", command.max_unpacked,
              "Bytes that a packed source may unpack to (default: 1 GB, or 200 times its size)")
      .size_in_bytes();
  add_image_options(shard, command);
  shard
      .option("--on-error", command.on_error,
              "folder, tar, jsonl: what to do with an image or line that cannot be used: stop "
              "(default), or skip, which lists it in skipped.csv")
      .one_of({"stop", "skip"});
  add_array_options(shard, command);
  add_text_options(shard, command);
}

}  // namespace

std::int64_t number_of_shards(const ShardCommand& command, std::int64_t bytes) {
  return command.shards > 0
             ? command.shards
             : std::max<std::int64_t>(1, (bytes + default_shard_bytes - 1) / default_shard_bytes);
}

void add_shard(CommandLine& line) {
  Command shard = line.add("shard", "Make a dataset of HDF5 shards");
  const auto command = std::make_shared<ShardCommand>();
  add_options(shard, *command);
  shard.footer(
      "Examples:\n"
      "  the last 10,000 of 60,000 images kept for validation\n"
      "  trireme shard idx train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --range 0:50000 "
      "--out data/fashion/train\n"
      "  trireme shard idx train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --range "
      "50000:60000 --out data/fashion/validation\n"
      "  JPEG files in a folder for each class, and ImageNet's archives\n"
      "  trireme shard folder photos/train --resize 256x256 --shuffle 1 --out data/photos/train\n"
      "  trireme shard tar ILSVRC2012_img_train.tar --resize shorter=256 --encode jpeg --shuffle 1 "
      "--out data/imagenet/train\n"
      "  fields of a simulation, as a deck reads them from its files\n"
      "  trireme shard hdf5 inputs/examples/fields.toml --split validation --out "
      "data/sharded/validation\n"
      "  a tokenizer trained on texts, the last twentieth of each text kept for validation\n"
      "  trireme shard text books/*.txt --train-tokenizer 8000 --out data/books/train --hold-out "
      "0.05 --hold-out-out data/books/validation\n"
      "  texts in JSON Lines, with a token of its own after each text\n"
      "  trireme shard jsonl part*.jsonl.gz --field text --vocabulary 257 --end-of-text 256 "
      "--out data/web\n"
      "  tokens of another program\n"
      "  trireme shard tokens part0.npy part1.npy --vocabulary 50257 --out data/web\n"
      "  trireme shard tokens train.bin --type uint16 --vocabulary 50257 --out data/web\n"
      "Under mpirun each rank writes its share of the shards (--shards), and decodes or encodes "
      "its "
      "share of the source.");
  shard.set_action([shard, command] { return shard_command(*command, shard.given_options()); });
}

}  // namespace trireme::app
