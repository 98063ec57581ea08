// SPDX-License-Identifier: Apache-2.0
//
// Describes a folder of shards for all ranks.
//
// index_dataset() checks the heads of the seals, lets io::index_hdf5() open the files in child
// processes, and reads the labels. The results arrive in any order; afterwards the shards are
// compared with each other in the order of their names. The parts that differ between kinds of
// shards are in their ShardKind. Called by rank 0 at a start, and by `inspect` and `check`.
#include "trireme/data/shards/dataset_index.hpp"

#include <filesystem>
#include <optional>
#include <utility>

#include "data/arrays/array_index.hpp"
#include "data/arrays/array_shard.hpp"
#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "stored_list.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/arrays/array_files.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t max_preparation = 300;  // bytes of it in a message

std::uint64_t hash_of(const std::vector<std::string>& classes) {
  io::Xxh3 hash;
  for (const std::string& name : classes) hash.update(name.c_str(), name.size() + 1);
  return hash.digest();
}

ShardChecksums checksums_of(const io::Hdf5Reader& reader, const IndexedShard& shard) {
  std::optional<ShardChecksums> checksums =
      read_checksums(reader, shard.index.samples(), shard.header.samples);
  validate(checksums.has_value(),
           "{}: has no checksums, which data.verify compares; make the shards with `trireme "
           "shard`, or set data.verify = 0",
           reader.path());
  return std::move(*checksums);
}

void put(ByteWriter& bytes, const std::vector<ArrayVariable>& variables) {
  bytes.put(std::ssize(variables));
  for (const ArrayVariable& variable : variables) {
    variable.rows.put(bytes);
    bytes.put(variable.scale);
    bytes.put(variable.offset);
    bytes.put_list(variable.missing);
    bytes.put(static_cast<std::uint8_t>(variable.has_scale));
  }
}

std::vector<ArrayVariable> get_variables(ByteReader& bytes) {
  std::vector<ArrayVariable> variables;
  for (auto count = bytes.get<std::ptrdiff_t>(); count > 0; --count) {
    ArrayVariable& variable = variables.emplace_back();
    variable.rows = io::StoredDataset::get(bytes);
    variable.scale = bytes.get<double>();
    variable.offset = bytes.get<double>();
    variable.missing = bytes.get_list<double>();
    variable.has_scale = bytes.get_bool();
  }
  return variables;
}

/// Collects the shards of folders, or the files of another program, and compares them.
class Folder {
 public:
  Folder(const std::vector<std::string>& places, const SampleForm& form, bool with_checksums)
      : form_(form), with_checksums_(with_checksums) {
    TRIREME_EXPECT(!places.empty());
    for (const std::string& place : places) {
      if (has_arrays() && std::filesystem::is_directory(place)) check_complete(place);
      const std::vector<std::string> paths = has_arrays() ? array_paths(place) : shard_paths(place);
      paths_.insert(paths_.end(), paths.begin(), paths.end());
    }
    index_.folder = places.size() == 1
                        ? places.front()
                        : fmt::format("{} and {} more", places.front(), places.size() - 1);
    folder_.shards.resize(paths_.size());
  }

  DatasetIndex index() {
    for (const std::string& path : paths_) check_seal_head(path);
    io::index_hdf5(paths_, [&](std::size_t i, io::Hdf5Index file) {
      within_memory(paths_[i], [&] { take(i, std::move(file)); });
    });
    compare_kinds();
    shard_kind(index_.info.kind).combine(folder_, index_.info);
    compare_preparations();
    compare_targets();
    DatasetInfo& info = index_.info;
    if (info.tokenizer == "sentencepiece")
      info.tokenizer_digest =
          check_tokenizer_beside(paths_.front(), info.tokenizer_digest, info.vocabulary);
    for (IndexedShard& shard : folder_.shards) index_.shards.push_back(std::move(shard.index));
    return std::move(index_);
  }

 private:
  void take(std::size_t i, io::Hdf5Index file) {
    IndexedShard& shard = folder_.shards[i];
    const io::Hdf5Reader reader(std::move(file));
    if (has_arrays() && !is_shard_of_table(reader, form_)) {
      shard = index_array_file(reader, form_);
      shard.index.is_of_other_program = true;
      validate(!with_checksums_,
               "{}: a file of another program has no checksums, which data.verify compares; make "
               "shards of it with `trireme shard hdf5`, or set data.verify = 0",
               paths_[i]);
      return;
    }
    shard.header = read_header(reader);
    shard.index = shard_kind(shard.header.kind).index(reader, shard.header, form_);
    if (with_checksums_) shard.index.checksums = checksums_of(reader, shard);
    const std::vector<std::string> classes = std::exchange(shard.header.classes, {});
    if (classes.empty()) return;
    shard.classes_hash = hash_of(classes);
    if (!folder_.classes.empty() && i > folder_.classes_from) return;
    folder_.classes_from = i;
    folder_.classes = classes;
  }

  void compare_kinds() {
    index_.info.kind = folder_.shards.front().header.kind;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      const DatasetKind kind = folder_.shards[i].header.kind;
      validate(
          kind == index_.info.kind,
          "{}: contains {}, but {} contains {}: all shards of a folder must be of the same kind",
          paths_[i], to_string(kind), paths_.front(), to_string(index_.info.kind));
    }
  }

  bool has_arrays() const { return form_.arrays.is_used(); }

  /// Compares how samples were made of files of other programs, where it is known.
  void compare_preparations() {
    std::size_t known = 0;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      const std::string& here = folder_.shards[i].header.preparation;
      std::string& first = index_.info.preparation;
      if (here.empty()) continue;
      if (first.empty()) {
        first = here;
        known = i;
      }
      validate(here == first, "{}: was made with {}, but {} with {}; make the shards again",
               paths_[i], printable(here, max_preparation), paths_[known],
               printable(first, max_preparation));
    }
  }

  /// Compares the kinds and extents of the targets.
  void compare_targets() {
    DatasetInfo& info = index_.info;
    if (form_.target_use == TargetUse::none) return;
    const StoredTarget& first = folder_.shards.front().header.target;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      const StoredTarget& here = folder_.shards[i].header.target;
      validate(here.kind == first.kind, "{}: has targets of kind \"{}\", but {} of \"{}\"",
               paths_[i], answer_of(here.kind).word, paths_.front(), answer_of(first.kind).word);
      validate(here.extents == first.extents, "{}: has {} in the target of a sample, but {} has {}",
               paths_[i], to_text(here.extents), paths_.front(), to_text(first.extents));
    }
    info.target_kind = first.kind;
    if (first.extents.count > 0) info.target = first.extents;
    if (info.kind == DatasetKind::tokens || form_.target_use == TargetUse::of_shards) return;
    const Answer& stored = answer_of(first.kind);
    validate(stored.kind == form_.target.kind,
             "{}: has targets of kind \"{}\", but target.kind = \"{}\"; {}", paths_.front(),
             stored.word, form_.target.answer().word,
             stored.is_one_class() ? "`trireme shard hdf5` makes shards of other targets from HDF5 "
                                     "files"
                                   : "set that kind in the table [target] of the deck");
    if (!stored.has_classes_of_pixels()) return;
    validate(first.extents.count <= form_.target.classes,
             "{}: has {} classes of pixels, but target.classes = {}", paths_.front(),
             first.extents.count, form_.target.classes);
    info.target.count = form_.target.classes;
  }

  const SampleForm& form_;
  bool with_checksums_;
  std::vector<std::string> paths_;
  FolderShards folder_;
  DatasetIndex index_;
};

}  // namespace

std::int64_t ShardIndex::bytes() const {
  std::int64_t sum = rows.bytes();
  for (const ArrayVariable& input : inputs) sum += input.rows.bytes();
  return sum;
}

DatasetIndex index_dataset(const std::vector<std::string>& places, const SampleForm& form,
                           bool with_checksums) {
  return Folder(places, form, with_checksums).index();
}

DatasetIndex index_dataset(const std::string& place, const SampleForm& form, bool with_checksums) {
  return index_dataset(std::vector{place}, form, with_checksums);
}

std::string to_bytes(const DatasetIndex& index) {
  const DatasetInfo& info = index.info;
  ByteWriter bytes;
  bytes.put_string(index.folder);
  bytes.put(static_cast<std::uint8_t>(info.kind));
  bytes.put(static_cast<std::uint8_t>(info.pixel_type));
  for (const std::int64_t number :
       {info.height, info.width, info.channels, info.target.count, info.target.height,
        info.target.width, info.vocabulary, info.tokens, info.documents, info.end_of_text})
    bytes.put(number);
  bytes.put_string(info.preparation);
  bytes.put(static_cast<std::uint8_t>(info.target_kind));
  bytes.put_strings(info.classes);
  bytes.put_string(info.tokenizer);
  bytes.put_string(info.tokenizer_digest);
  for (const ShardIndex& shard : index.shards) {
    bytes.put_string(shard.path);
    for (const std::int64_t number :
         {shard.stamp.bytes, shard.stamp.seconds, shard.stamp.nanoseconds})
      bytes.put(number);
    shard.rows.put(bytes);
    bytes.put(static_cast<std::uint8_t>(shard.is_of_other_program));
    put(bytes, shard.inputs);
    put(bytes, shard.targets);
    bytes.put_list(shard.labels);
    bytes.put_list(shard.offsets);
    bytes.put(shard.checksums.block);
    bytes.put_list(shard.checksums.values);
  }
  return bytes.take();
}

DatasetIndex dataset_index_from_bytes(const std::string& text) {
  ByteReader bytes(text);
  DatasetIndex index;
  DatasetInfo& info = index.info;
  index.folder = bytes.get_string();
  info.kind = bytes.get_enum(shard_kinds().back().kind);
  info.pixel_type = bytes.get_enum(DType::int64);
  for (std::int64_t* number :
       {&info.height, &info.width, &info.channels, &info.target.count, &info.target.height,
        &info.target.width, &info.vocabulary, &info.tokens, &info.documents, &info.end_of_text})
    *number = bytes.get<std::int64_t>();
  info.preparation = bytes.get_string();
  info.target_kind = bytes.get_enum(AnswerKind::field);
  info.classes = bytes.get_strings();
  info.tokenizer = bytes.get_string();
  info.tokenizer_digest = bytes.get_string();
  while (!bytes.at_end()) {
    ShardIndex& shard = index.shards.emplace_back();
    shard.path = bytes.get_string();
    for (std::int64_t* number :
         {&shard.stamp.bytes, &shard.stamp.seconds, &shard.stamp.nanoseconds})
      *number = bytes.get<std::int64_t>();
    shard.rows = io::StoredDataset::get(bytes);
    shard.is_of_other_program = bytes.get_bool();
    shard.inputs = get_variables(bytes);
    shard.targets = get_variables(bytes);
    shard.labels = bytes.get_list<std::int32_t>();
    shard.offsets = bytes.get_list<std::uint64_t>();
    shard.checksums.block = bytes.get<std::int64_t>();
    shard.checksums.values = bytes.get_list<std::uint64_t>();
  }
  return index;
}

}  // namespace trireme::data
