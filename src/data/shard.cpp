// Reads and validates the header of a shard: format, version, kind, extents and attributes.
//
// Shards are untrusted files, also those with a seal: it shows damage, not origin. The order is:
// check_seal_head() compares the seal with the size of the file; io::index_hdf5() opens the file in
// a child process and checks every extent; read_header() checks what makes it a shard;
// check_document_offsets() checks the document offsets. `inspect`, `verify` and index_dataset()
// call them on one rank.
#include "trireme/data/shard.hpp"

#include <algorithm>
#include <filesystem>
#include <span>

#include <fmt/ranges.h>

#include "shard_header.hpp"
#include "shard_limits.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5_values.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::data {
namespace {

/// Returns the length of a dataset with one dimension.
std::int64_t length_of(const io::Hdf5Index& file, const std::string& name) {
  const io::StoredDataset& dataset = file.dataset(name);
  validate(dataset.shape.size() == 1, "{}: has {} dimensions, expected one", dataset.location,
           dataset.shape.size());
  return dataset.shape[0];
}

/// Returns the kind from the attribute `kind`; without it, from the datasets that exist.
DatasetKind kind_of(const io::Hdf5Index& file) {
  if (file.has_attribute("/", "kind")) {
    const std::string kind = file.attribute_string("/", "kind");
    for (const DatasetKind known :
         {DatasetKind::images, DatasetKind::encoded_images, DatasetKind::tokens}) {
      if (kind == to_string(known)) return known;
    }
    throw InputError(fmt::format(
        "{}: attribute kind = \"{}\" is unknown; expected images, encoded-images or tokens",
        file.path(), printable(kind)));
  }
  if (file.has("images")) return DatasetKind::images;
  if (file.has("bytes")) return DatasetKind::encoded_images;
  if (file.has("tokens")) return DatasetKind::tokens;
  throw InputError(file.path() +
                   ": contains no dataset /images, /bytes or /tokens, so it is not a shard");
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

/// Returns the word for the storage of a dataset in descriptions.
const char* storage_of(const io::StoredDataset& dataset) {
  switch (dataset.storage) {
    case io::StoredDataset::Storage::chunked: return "chunked";
    case io::StoredDataset::Storage::compact: return "compact";
    default: return "contiguous";
  }
}

void describe_images(const io::Hdf5Index& file, ShardDescription& shard) {
  const io::StoredDataset& stored = file.dataset("images");
  validate(stored.kind == io::StoredDataset::Kind::integer && stored.element_bytes == 1 &&
               !stored.is_signed,
           "{}: is not uint8; images are uint8 [samples, height, width, channels]",
           stored.location);
  validate(stored.shape.size() == 4,
           "{}: has {} dimensions [{}]; images are [samples, height, width, channels] (gray ones: "
           "channels = 1)",
           stored.location, stored.shape.size(), fmt::join(stored.shape, ", "));
  for (int i = 1; i < 4; ++i) {
    validate(stored.shape[i] >= 1 && stored.shape[i] <= max_extent,
             "{}: extents [{}] are invalid for images", stored.location,
             fmt::join(stored.shape, ", "));
  }
  shard.samples = stored.shape[0];
  shard.height = stored.shape[1];
  shard.width = stored.shape[2];
  shard.channels = stored.shape[3];
  shard.storage = storage_of(stored);
}

/// Returns the vocabulary from the attribute of /tokens or of the file. Without it, returns the
/// range of the stored type.
std::int64_t vocabulary_of(const io::Hdf5Index& file, std::int64_t token_bytes) {
  const std::int64_t default_vocabulary =
      token_bytes < 4 ? std::int64_t{1} << (8 * token_bytes) : max_vocabulary;
  const std::string owner = file.has_attribute("tokens", "vocabulary") ? "tokens" : "/";
  if (!file.has_attribute(owner, "vocabulary")) return default_vocabulary;
  const std::int64_t vocabulary = file.attribute_int(owner, "vocabulary");
  validate(vocabulary >= 1 && vocabulary <= max_vocabulary,
           "{}: attribute vocabulary is {}; tokens are 0 to vocabulary - 1, so it must be 1 to {}",
           file.path(), vocabulary, max_vocabulary);
  return vocabulary;
}

/// Returns the number of documents. check_document_offsets() checks their offsets.
std::int64_t documents_of(const io::Hdf5Index& file) {
  const io::StoredDataset& dataset = file.dataset("documents");
  validate(dataset.kind == io::StoredDataset::Kind::integer,
           "{}: offsets must be whole numbers (uint64)", dataset.location);
  const std::int64_t count = length_of(file, "documents");
  validate(
      count >= 1,
      "{}: is empty; it must have documents + 1 offsets, the last one being the number of tokens",
      dataset.location);
  return count - 1;
}

void describe_tokens(const io::Hdf5Index& file, ShardDescription& shard) {
  const io::StoredDataset& stored = file.dataset("tokens");
  const bool right_type =
      stored.kind == io::StoredDataset::Kind::integer && !stored.is_signed &&
      (stored.element_bytes == 1 || stored.element_bytes == 2 || stored.element_bytes == 4);
  validate(right_type, "{}: tokens must be uint8, uint16 or uint32", stored.location);
  validate(stored.shape.size() == 1,
           "{}: has {} dimensions [{}]; tokens must have one dimension [count]", stored.location,
           stored.shape.size(), fmt::join(stored.shape, ", "));
  shard.samples = stored.shape[0];
  shard.token_bytes = stored.element_bytes;
  shard.vocabulary = vocabulary_of(file, stored.element_bytes);
  shard.storage = storage_of(stored);
  if (file.has_attribute("/", "tokenizer"))
    shard.tokenizer = file.attribute_string("/", "tokenizer");
  if (file.has("documents")) shard.documents = documents_of(file);
}

}  // namespace

std::string_view to_string(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::images: return "images";
    case DatasetKind::encoded_images: return "encoded-images";
    case DatasetKind::tokens: return "tokens";
  }
  return "";
}

ShardDescription read_header(const io::Hdf5Index& file) {
  validate(file.has_attribute("/", "format"),
           "{}: the attribute format = \"trireme-shard\" of the root group is missing",
           file.path());
  const std::string format = file.attribute_string("/", "format");
  validate(format == "trireme-shard", "{}: has the format \"{}\", expected \"trireme-shard\"",
           file.path(), printable(format));
  ShardDescription shard;
  shard.version = version_of(file);
  shard.kind = kind_of(file);
  switch (shard.kind) {
    case DatasetKind::images: describe_images(file, shard); break;
    case DatasetKind::encoded_images: shard.samples = length_of(file, "labels"); break;
    case DatasetKind::tokens: describe_tokens(file, shard); break;
  }
  if (file.has("classes")) {
    shard.classes = file.strings("classes");
  } else if (file.has_attribute("/", "classes")) {
    shard.classes = file.attribute_strings("/", "classes");
  }
  validate(shard.classes.size() <= max_classes, "{}: {} classes are too many", file.path(),
           shard.classes.size());
  shard.checksums = file.has("checksums");
  shard.file_bytes = file.file_bytes();
  return shard;
}

bool check_seal_head(const std::string& path) {
  const std::string seal = io::check_seal(path, io::SealCheck::head);
  validate(!io::is_damage(seal), "{}: {}; make or copy this shard again", path, seal);
  return seal.empty();
}

void check_document_offsets(const io::Hdf5Reader& reader, const ShardDescription& shard) {
  if (shard.kind != DatasetKind::tokens || !reader.index().has("documents")) return;
  // Offsets are read in pieces, so memory does not grow with the number of documents.
  constexpr std::int64_t piece = 1 << 20;
  const io::StoredDataset& dataset = reader.index().dataset("documents");
  const std::int64_t count = shard.documents + 1, tokens = shard.samples;
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(std::min(count, piece)));
  std::int64_t last = 0;
  for (std::int64_t first = 0; first < count; first += piece) {
    const std::int64_t rows = std::min(piece, count - first);
    reader.read(dataset, std::span(&first, 1), std::span(&rows, 1), io::Hdf5Number::int64,
                offsets.data());
    validate(first > 0 || offsets[0] == 0,
             "{}: its first offset is {}; the first document begins at token 0", dataset.location,
             offsets[0]);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t offset = offsets[static_cast<std::size_t>(i)];
      validate(last <= offset && offset <= tokens,
               "{}: offset {} is {} after {}; offsets must ascend from 0 to the {} tokens",
               dataset.location, first + i, offset, last, tokens);
      last = offset;
    }
  }
  validate(last == tokens, "{}: its last offset is {}, but the shard has {} tokens",
           dataset.location, last, tokens);
}

ShardDescription describe_shard(const std::string& path) {
  check_seal_head(path);
  return describe_shard(io::index_hdf5(path));
}

ShardDescription describe_shard(io::Hdf5Index file) {
  const io::Hdf5Reader reader(std::move(file));
  ShardDescription shard = read_header(reader.index());
  shard.sealed = check_seal_head(reader.path());
  check_document_offsets(reader, shard);
  return shard;
}

bool is_shard_name(const std::filesystem::path& path) {
  return path.extension() == ".h5" && !path.filename().string().starts_with('.');
}

std::vector<std::string> shard_paths(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  validate(
      fs::is_directory(folder, error),
      "{}: there is no such folder (expected a folder of *.h5 shards; `trireme shard` makes one)",
      folder);
  std::vector<std::string> paths;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_shard_name(entry->path())) paths.push_back(entry->path().string());
  }
  validate(!error, "{}: cannot be listed: {}", folder, error.message());
  validate(!paths.empty(), "{}: contains no *.h5 shard (`trireme shard` makes them)", folder);
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string to_text(const ShardDescription& shard) {
  std::string text = fmt::format("shard of {}, version {}\n", to_string(shard.kind), shard.version);
  text += fmt::format("{}: {}\n", shard.kind == DatasetKind::tokens ? "tokens" : "samples",
                      shard.samples);
  if (shard.kind == DatasetKind::images) {
    text += fmt::format("images: uint8, {} x {} x {} (height, width, channels), {}\n", shard.height,
                        shard.width, shard.channels, shard.storage);
  }
  if (shard.kind == DatasetKind::tokens) {
    text += fmt::format("type: uint{}, {}\nvocabulary: {}\n", 8 * shard.token_bytes, shard.storage,
                        shard.vocabulary);
    text += fmt::format("documents: {}\ntokenizer: {}\n",
                        shard.documents > 0 ? std::to_string(shard.documents) : "not named",
                        shard.tokenizer.empty() ? "not named" : shard.tokenizer);
  }
  if (!shard.classes.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : shard.classes) names.push_back(printable(name));
    text += fmt::format("classes: {} ({})\n", names.size(), fmt::join(names, ", "));
  }
  text += fmt::format("checksums: {}\nseal: {}\nfile: {}\n", shard.checksums ? "yes" : "none",
                      shard.sealed ? "yes (`trireme verify` checks every byte)" : "none",
                      format_bytes(static_cast<double>(shard.file_bytes)));
  return text;
}

}  // namespace trireme::data
