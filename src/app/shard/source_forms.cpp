// SPDX-License-Identifier: Apache-2.0
//
// Finds sources of `trireme shard`, and files of its options, that are of another well-known form
// than the command reads, and says what to do instead. Rank 0 calls it before anything is read.
#include "source_forms.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file_form.hpp"

namespace trireme::app {
namespace {

using Kind = io::FileForm::Kind;

/// The well-known forms among the sources of a format.
struct ReadForms {
  std::string_view format;
  std::vector<Kind> kinds;
};
const std::vector<ReadForms>& read_forms() {
  static const std::vector<ReadForms> all{{"idx", {Kind::gzip}},
                                          {"npy", {Kind::npy}},
                                          {"cifar", {}},
                                          {"folder", {}},
                                          {"tar", {Kind::gzip, Kind::packed, Kind::tar}},
                                          {"hdf5", {}},
                                          {"text", {Kind::gzip, Kind::json}},
                                          {"jsonl", {Kind::gzip, Kind::json}},
                                          {"tokens", {Kind::npy, Kind::json}}};
  return all;
}

/// A word that people use for a form of data.
struct OtherWord {
  std::string_view word;
  const char* advice;
};
constexpr const char* store_again =
    "it is not read; write its samples as files in a tar archive (`shard tar`), as JSON Lines "
    "(`shard jsonl`), or with h5py; docs/guides/convert_a_dataset.md has the scripts";
constexpr OtherWord other_words[] = {
    {"webdataset", "use `shard tar`, which reads WebDataset"},
    {"wds", "use `shard tar`, which reads WebDataset"},
    {"imagenet", "use `shard tar` with ILSVRC2012_img_train.tar, or `shard folder`"},
    {"imagefolder", "use `shard folder`"},
    {"mnist", "use `shard idx` with the files of images and labels"},
    {"cifar10", "use `shard cifar`"},
    {"cifar100", "use `shard cifar`"},
    {"npz",
     "save the arrays alone with numpy.save, and use `shard npy` for images, `shard tokens` for "
     "tokens"},
    {"megatron", "use `shard tokens` with NAME.bin beside NAME.idx"},
    {"nanogpt", "use `shard tokens` with --type uint16"},
    {"lmdb", store_again},
    {"tfrecord", store_again},
    {"tfrecords", store_again},
    {"parquet", store_again},
    {"arrow", store_again},
    {"csv", store_again},
};

/// Throws InputError if a file that an option names is packed, a pointer of git-lfs or the like.
/// JSON is left to the reader of the file: words of texts may look like a form of it.
void check_option_form(const char* option, const std::string& path) {
  const std::optional<io::FileForm> form = io::recognize_form(path);
  validate(!form || form->kind == Kind::json, "{} {}: is {}, which is not read; {}", option,
           printable(path), form ? form->name : "", form ? form->advice : "");
}

/// Returns whether the samples of a format are texts or tokens.
bool takes_texts(const std::string& format) {
  return format == "text" || format == "jsonl" || format == "tokens";
}

}  // namespace

void check_source_forms(const ShardCommand& command) {
  const auto read =
      std::find_if(read_forms().begin(), read_forms().end(),
                   [&](const ReadForms& forms) { return forms.format == command.format; });
  TRIREME_EXPECT(read != read_forms().end());
  if (command.classes.size() == 1) check_option_form("--classes", command.classes[0]);
  check_option_form("--labels", command.labels);
  // The reader of a tokenizer says what form a file has.
  std::error_code error;
  if (!std::filesystem::exists(command.tokenizer, error))
    check_option_form("--tokenizer", command.tokenizer);
  for (const std::string& source : command.sources) {
    const std::optional<io::FileForm> form = io::recognize_form(source);
    if (!form) continue;
    const bool is_npy = form->kind == Kind::npy, is_named_npy = source.ends_with(".npy");
    const bool is_read =
        std::find(read->kinds.begin(), read->kinds.end(), form->kind) != read->kinds.end();
    const bool are_images = form->kind == Kind::hdf5 && !takes_texts(command.format);
    validate(
        !are_images || command.format == "hdf5",
        "{}: is {}, which `shard {}` does not read; a deck reads it as it is: `trireme inspect "
        "FILE` proposes the table [data.hdf5]",
        source, form->name, command.format);
    validate(command.format != "hdf5",
             "{}: is {}, but `shard hdf5` takes the deck that describes such files in a table "
             "[data.hdf5] (trireme inspect FILE proposes it)",
             source, form->name);
    validate(is_read && (!is_npy || is_named_npy),
             "{}: is {}{}, which `shard {}` does not read; {}", source, form->name,
             is_npy && !is_named_npy ? " under another name" : "", command.format, form->advice);
  }
}

std::string advice_for_format(const std::string& word) {
  const auto* const found =
      std::find_if(std::begin(other_words), std::end(other_words),
                   [&](const OtherWord& other) { return other.word == word; });
  return found == std::end(other_words) ? "" : found->advice;
}

}  // namespace trireme::app
