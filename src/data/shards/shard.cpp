// SPDX-License-Identifier: Apache-2.0
//
// Reads and validates the header of a shard: format, version, kind, extents and attributes.
//
// Shards are untrusted files, also those with a seal: it shows damage, not origin. The order is:
// check_seal_head() compares the seal with the size of the file; io::index_hdf5() opens the file in
// a child process and checks every extent; read_header() checks what makes it a shard, with the
// function of its kind (shard_kind.hpp). `inspect`, `verify` and index_dataset() call them on one
// rank.
#include "trireme/data/shards/shard.hpp"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/ranges.h>

#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "shard_limits.hpp"
#include "stored_list.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/arrays/array_form.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_form.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::data {
namespace {

/// Returns the kind from the attribute `kind`; without it, from the datasets that exist.
DatasetKind kind_of(const io::Hdf5Index& file) {
  std::vector<std::string> names, datasets;
  const bool named = file.has_attribute("/", "kind");
  const std::string name = named ? file.attribute_string("/", "kind") : "";
  const auto count =
      std::count_if(shard_kinds().begin(), shard_kinds().end(),
                    [&](const ShardKind& kind) { return file.has(std::string(kind.dataset)); });
  validate(named || count <= 1,
           "{}: contains samples of {} kinds and no attribute kind that chooses one; add the "
           "attribute, or remove the others",
           file.path(), count);
  for (const ShardKind& kind : shard_kinds()) {
    if (named ? name == kind.name : file.has(std::string(kind.dataset))) return kind.kind;
    names.emplace_back(kind.name);
    datasets.push_back(fmt::format("/{}", kind.dataset));
  }
  validate(!named, "{}: attribute kind = \"{}\" is unknown; expected {}", file.path(),
           printable(name), fmt::join(names, ", "));
  throw InputError(fmt::format("{}: contains no dataset {}, so it is not a shard", file.path(),
                               fmt::join(datasets, " or ")));
}

/// Returns the format version; files without the attribute have version 1.
std::int64_t version_of(const io::Hdf5Index& file) {
  if (!file.has_attribute("/", "version")) return 1;
  const double version = file.attribute_double("/", "version");
  validate(version == 1,
           "{}: version {} of the shard format is not known to this program; it reads version 1",
           file.path(), version);
  return 1;
}

/// Returns whether a path is a staging folder whose shards are being moved to their places.
bool is_publishing(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.filename().string().starts_with(staging_prefix) &&
         std::filesystem::exists(path / publishing_name, ignored);
}

/// Throws InputError if a folder has such a staging folder; empty: it has none.
void refuse_incomplete(const std::string& folder, const std::string& staging) {
  validate(staging.empty(),
           "{}: is not complete: `trireme shard` was killed while it moved the shards into it, or "
           "does so now ({}); start the same command again",
           folder, staging);
}

/// Returns the names of the classes, which may be a dataset or an attribute. Throws InputError if
/// both are there and differ, or a name cannot stand for one class.
std::vector<std::string> classes_of(const io::Hdf5Index& file) {
  const bool has_attribute = file.has_attribute("/", "classes");
  std::vector<std::string> classes;
  if (has_attribute) classes = file.attribute_strings("/", "classes");
  if (file.has("classes")) {
    std::vector<std::string> dataset = file.strings("classes");
    validate(!has_attribute || dataset == classes,
             "{}: the dataset /classes and the attribute classes differ; remove one of them",
             file.path());
    classes = std::move(dataset);
  }
  validate(classes.size() <= max_classes, "{}: {} classes are too many", file.path(),
           classes.size());
  std::unordered_set<std::string_view> names;
  for (const std::string& name : classes) {
    validate(printable(name, name.size()) == name,
             "{}: the class name {} has control characters or is not UTF-8", file.path(),
             printable(name, 60));
    validate(names.insert(name).second, "{}: two classes have the name \"{}\"", file.path(),
             printable(name, 60));
  }
  return classes;
}

}  // namespace

std::int64_t length_of(const io::Hdf5Index& file, const std::string& name) {
  const io::StoredDataset& dataset = file.dataset(name);
  validate(dataset.shape.size() == 1, "{}: has {} dimensions, expected one", dataset.location,
           dataset.shape.size());
  return dataset.shape[0];
}

const char* storage_of(const io::StoredDataset& dataset) {
  switch (dataset.storage) {
    case io::StoredDataset::Storage::chunked: return "chunked";
    case io::StoredDataset::Storage::compact: return "compact";
    default: return "contiguous";
  }
}

ShardDescription read_header(const io::Hdf5Reader& reader) {
  const io::Hdf5Index& file = reader.index();
  file.refuse_places_outside();
  validate(
      file.has_attribute("/", "format"),
      "{}: is no shard: the attribute format = \"trireme-shard\" of its root group is missing; "
      "to train on HDF5 files of other programs, give the deck a table [data.hdf5] (trireme "
      "inspect FILE proposes one)",
      file.path());
  const std::string format = file.attribute_string("/", "format");
  validate(format == "trireme-shard", "{}: has the format \"{}\", expected \"trireme-shard\"",
           file.path(), printable(format));
  ShardDescription shard;
  shard.version = version_of(file);
  shard.kind = kind_of(file);
  shard_kind(shard.kind).describe(reader, shard);
  shard.classes = classes_of(file);
  shard.checksums = file.has("checksums");
  shard.file_bytes = file.file_bytes();
  return shard;
}

bool check_seal_head(const std::string& path) {
  const std::string seal = io::check_seal(path, io::SealCheck::head);
  validate(!io::is_damage(seal), "{}: {}; make or copy this shard again", path, seal);
  return seal.empty();
}

ShardDescription describe_shard(const std::string& path) {
  check_seal_head(path);
  return describe_shard(io::index_hdf5(path));
}

ShardDescription describe_shard(io::Hdf5Index file) {
  const io::Hdf5Reader reader(std::move(file));
  ShardDescription shard = within_memory(reader.path(), [&] { return read_header(reader); });
  shard.sealed = check_seal_head(reader.path());
  return shard;
}

std::string end_of_text_name(std::int64_t token) {
  return token < 0 ? "no token of their own" : fmt::format("token {}", token);
}

bool is_shard_name(const std::filesystem::path& path) {
  return path.extension() == ".h5" && !path.filename().string().starts_with('.');
}

std::string no_folder_hint(const std::string& path) {
  std::error_code error;
  if (is_shard_name(path) && std::filesystem::is_regular_file(path, error))
    return ": it is a file; name the folder that holds it, or describe it in [data.hdf5] if "
           "another "
           "program wrote it";
  if (path.find_first_of("*?[") != std::string::npos)
    return ": patterns need a table [data.hdf5]; name a folder";
  return io::form_hint(io::recognize_form(path));
}

std::string unfinished_staging(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_publishing(entry->path())) return entry->path().string();
  }
  return "";
}

void check_complete(const std::string& folder) {
  refuse_incomplete(folder, unfinished_staging(folder));
}

std::vector<std::string> shard_paths(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  validate(
      fs::is_directory(folder, error),
      "{}: there is no such folder (expected a folder of *.h5 shards; `trireme shard` makes one){}",
      folder, no_folder_hint(folder));
  std::vector<std::string> paths;
  std::string staging;
  bool has_arrays = false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    has_arrays = has_arrays || is_array_file_name(entry->path());
    if (is_shard_name(entry->path())) paths.push_back(entry->path().string());
    if (is_publishing(entry->path())) staging = entry->path().string();
  }
  validate_path(error.value(), "{}: cannot be listed: {}", folder, error.message());
  validate(!paths.empty(), "{}: contains no *.h5 shard (`trireme shard` makes them){}{}", folder,
           io::form_hint(io::recognize_form(folder)),
           has_arrays
               ? "; HDF5 and netCDF files of other programs are read with [data.hdf5], which "
                 "trireme inspect FILE proposes"
               : "");
  refuse_incomplete(folder, staging);
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string to_text(const StoredTarget& target) {
  const Answer& answer = answer_of(target.kind);
  return fmt::format("{} ({})", answer.word, outputs_in_words(target.extents, answer));
}

std::string to_text(const ShardDescription& shard) {
  std::string text = fmt::format("shard of {}, version {}\n", to_string(shard.kind), shard.version);
  text += fmt::format("{}: {}\n", shard.kind == DatasetKind::tokens ? "tokens" : "samples",
                      shard.samples);
  if (shard.kind == DatasetKind::images) {
    text += fmt::format("images: {}, {} x {} x {} (height, width, channels), {}\n",
                        to_string(shard.pixel_type), shard.height, shard.width, shard.channels,
                        shard.storage);
  }
  if (!shard.target.is_one_class()) text += fmt::format("targets: {}\n", to_text(shard.target));
  if (shard.kind == DatasetKind::tokens) {
    text += fmt::format("type: uint{}, {}\nvocabulary: {}\n", 8 * shard.token_bytes, shard.storage,
                        shard.vocabulary);
    text += fmt::format("documents: {}\ntokenizer: {}\n",
                        shard.documents > 0 ? std::to_string(shard.documents) : "not named",
                        shard.tokenizer.empty() ? "not named" : printable(shard.tokenizer));
    if (shard.end_of_text >= 0)
      text += fmt::format("documents end with: {}\n", end_of_text_name(shard.end_of_text));
  }
  if (!shard.classes.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : shard.classes) names.push_back(printable(name));
    text += fmt::format("classes: {} ({})\n", names.size(), fmt::join(names, ", "));
  }
  text += fmt::format("checksums: {}\nseal: {}\nfile: {}\n", shard.checksums ? "yes" : "none",
                      shard.sealed ? "yes (`trireme verify` checks every byte)" : "none",
                      format_bytes(shard.file_bytes));
  return text;
}

}  // namespace trireme::data
