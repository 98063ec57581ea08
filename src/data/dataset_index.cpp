// Describes a folder of shards for all ranks.
//
// index_dataset() checks the heads of the seals, lets io::index_hdf5() open the files in child
// processes, and reads the labels. The results arrive in any order; afterwards the shards are
// compared with each other in the order of their names. Called by rank 0 at a start, and by
// `inspect` and `check`.
#include "trireme/data/dataset_index.hpp"

#include <algorithm>

#include "shard_header.hpp"
#include "shard_limits.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5_values.hpp"

namespace trireme::data {
namespace {

/// A shard while the folder is indexed.
struct Shard {
  ShardDescription header;  ///< without classes, which many shards repeat
  std::uint64_t classes_hash = 0;
  ShardIndex index;
};

std::uint64_t hash_of(const std::vector<std::string>& classes) {
  io::Xxh3 hash;
  for (const std::string& name : classes) hash.update(name.c_str(), name.size() + 1);
  return hash.digest();
}

/// Collects the shards of a folder and compares them.
class Folder {
 public:
  explicit Folder(const std::string& folder) : paths_(shard_paths(folder)), shards_(paths_.size()) {
    index_.folder = folder;
  }

  DatasetIndex index() {
    for (const std::string& path : paths_) check_seal_head(path);
    io::index_hdf5(paths_, [&](std::size_t i, io::Hdf5Index file) { take(i, std::move(file)); });
    compare_kinds();
    if (index_.info.kind == DatasetKind::images)
      compare_images();
    else
      compare_tokens();
    for (Shard& shard : shards_) index_.shards.push_back(std::move(shard.index));
    return std::move(index_);
  }

 private:
  void take(std::size_t i, io::Hdf5Index file) {
    Shard& shard = shards_[i];
    shard.header = read_header(file);
    const io::Hdf5Reader reader(std::move(file));
    check_document_offsets(reader, shard.header);
    shard.index = index_shard(reader, shard.header);
    const std::vector<std::string> classes = std::exchange(shard.header.classes, {});
    if (classes.empty()) return;
    shard.classes_hash = hash_of(classes);
    if (!index_.info.classes.empty() && i > classes_from_) return;
    classes_from_ = i;
    index_.info.classes = classes;
  }

  void compare_kinds() {
    index_.info.kind = shards_.front().header.kind;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const DatasetKind kind = shards_[i].header.kind;
      validate(
          kind == index_.info.kind,
          "{}: contains {}, but {} contains {}: all shards of a folder must be of the same kind",
          paths_[i], to_string(kind), paths_.front(), to_string(index_.info.kind));
    }
  }

  /// Compares the properties of image shards, and determines the number of classes.
  void compare_images() {
    DatasetInfo& info = index_.info;
    const ShardDescription& first = shards_.front().header;
    info.height = first.height;
    info.width = first.width;
    info.channels = first.channels;
    validate(first.channels <= max_channels,
             "{}: images of {} channels are not supported; 1 to {} are", paths_.front(),
             first.channels, max_channels);
    std::int32_t largest_label = -1;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const ShardDescription& header = shards_[i].header;
      validate(header.height == info.height && header.width == info.width &&
                   header.channels == info.channels,
               "{}: images of {} x {} x {} among images of {} x {} x {} ({}): all shards of a "
               "folder must have the same size",
               paths_[i], header.height, header.width, header.channels, info.height, info.width,
               info.channels, paths_.front());
      validate(shards_[i].classes_hash == 0 ||
                   shards_[i].classes_hash == shards_[classes_from_].classes_hash,
               "{}: /classes differs from that of {}", paths_[i], paths_[classes_from_]);
      for (const std::int32_t label : shards_[i].index.labels)
        largest_label = std::max(largest_label, label);
    }
    const std::int64_t classes = static_cast<std::int64_t>(info.classes.size());
    validate(classes == 0 || largest_label < classes,
             "{}: label {} is not one of the {} classes (/classes of {})", index_.folder,
             largest_label, classes, paths_[classes_from_]);
    info.class_count = classes == 0 ? std::int64_t{largest_label} + 1 : classes;
  }

  /// Compares the properties of token shards.
  void compare_tokens() {
    DatasetInfo& info = index_.info;
    const ShardDescription& first = shards_.front().header;
    info.vocabulary = first.vocabulary;
    info.tokenizer = first.tokenizer;
    info.classes.clear();
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const ShardDescription& header = shards_[i].header;
      validate(header.vocabulary == info.vocabulary && header.tokenizer == info.tokenizer,
               "{}: tokens of vocabulary {} (tokenizer \"{}\") among tokens of vocabulary {} "
               "(tokenizer \"{}\", {}): all shards of a folder must have the same vocabulary",
               paths_[i], header.vocabulary, header.tokenizer, info.vocabulary, info.tokenizer,
               paths_.front());
      info.tokens += header.samples;
      info.documents += header.documents;
    }
  }

  std::vector<std::string> paths_;
  std::vector<Shard> shards_;
  std::size_t classes_from_ = 0;  ///< the first shard with classes
  DatasetIndex index_;
};

}  // namespace

DatasetIndex index_dataset(const std::string& folder) { return Folder(folder).index(); }

std::string to_bytes(const DatasetIndex& index) {
  const DatasetInfo& info = index.info;
  ByteWriter bytes;
  bytes.put_string(index.folder);
  bytes.put(static_cast<std::uint8_t>(info.kind));
  for (const std::int64_t number : {info.height, info.width, info.channels, info.class_count,
                                    info.vocabulary, info.tokens, info.documents})
    bytes.put(number);
  bytes.put_strings(info.classes);
  bytes.put_string(info.tokenizer);
  for (const ShardIndex& shard : index.shards) {
    bytes.put_string(shard.path);
    for (const std::int64_t number :
         {shard.stamp.bytes, shard.stamp.seconds, shard.stamp.nanoseconds})
      bytes.put(number);
    shard.rows.put(bytes);
    bytes.put_list(shard.labels);
  }
  return bytes.take();
}

DatasetIndex dataset_index_from_bytes(const std::string& text) {
  ByteReader bytes(text);
  DatasetIndex index;
  DatasetInfo& info = index.info;
  index.folder = bytes.get_string();
  info.kind = bytes.get_enum(DatasetKind::tokens);
  for (std::int64_t* number : {&info.height, &info.width, &info.channels, &info.class_count,
                               &info.vocabulary, &info.tokens, &info.documents})
    *number = bytes.get<std::int64_t>();
  info.classes = bytes.get_strings();
  info.tokenizer = bytes.get_string();
  while (!bytes.at_end()) {
    ShardIndex& shard = index.shards.emplace_back();
    shard.path = bytes.get_string();
    for (std::int64_t* number :
         {&shard.stamp.bytes, &shard.stamp.seconds, &shard.stamp.nanoseconds})
      *number = bytes.get<std::int64_t>();
    shard.rows = io::StoredDataset::get(bytes);
    shard.labels = bytes.get_list<std::int32_t>();
  }
  return index;
}

}  // namespace trireme::data
