// Catalogs tar archives with libarchive, and decompresses files.
//
// An index pass reads the headers and notes where the bytes of each image are, so images can be
// read in any order afterwards. Nothing is extracted: names of entries are never paths of files.
// Archives are untrusted; each extent is compared with the file.
#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <archive.h>
#include <archive_entry.h>
#include <nlohmann/json.hpp>

#include "catalog_names.hpp"
#include "gzip_reader.hpp"
#include "shard_limits.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/image_catalog.hpp"
#include "trireme/data/unpacking.hpp"

namespace trireme::data {
namespace {

// The text of a class. Longer files are something else.
constexpr std::int64_t max_class_bytes = 64 << 10;
// ImageNet's training set is an archive of archives.
constexpr int max_depth = 2;

/// A part of a file that libarchive reads from front to back.
class ArchiveReader {
 public:
  enum class Format : std::uint8_t { tar, any_bytes };
  /// Reads `bytes` bytes from `offset` on. Throws InputError if it is no archive.
  ArchiveReader(const io::File& file, std::int64_t offset, std::int64_t bytes, std::string place,
                Format format)
      : file_(file),
        file_offset_(offset),
        end_(offset + bytes),
        name_(std::move(place)),
        archive_(archive_read_new()),
        // Images between the headers of a plain archive are skipped if they are larger.
        buffer_(format == Format::tar ? 1 << 14 : 1 << 18) {
    ensure(archive_ != nullptr, "libarchive: out of memory");
    if (format == Format::tar)
      archive_read_support_format_tar(get());
    else
      archive_read_support_format_raw(get());
    for (const auto support : {archive_read_support_filter_gzip, archive_read_support_filter_bzip2,
                               archive_read_support_filter_xz, archive_read_support_filter_zstd,
                               archive_read_support_filter_lz4})
      if (needs_no_program(support)) support(get());
    archive_read_set_read_callback(get(), read_next);
    archive_read_set_skip_callback(get(), skip);
    archive_read_set_callback_data(get(), this);
    // As `cat a.tar b.tar` makes them; otherwise the second one would be left out in silence.
    if (format == Format::tar) archive_read_set_options(get(), "read_concatenated_archives");
    check(archive_read_open1(get()));
  }

  archive* get() const { return archive_.get(); }
  bool compressed() const { return archive_filter_code(get(), 0) != ARCHIVE_FILTER_NONE; }
  /// Returns the next entry; null at the end.
  archive_entry* next() {
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(get(), &entry);
    if (status == ARCHIVE_EOF) return nullptr;
    check(status);
    return entry;
  }
  /// Reads up to `bytes` bytes of the entry; returns fewer only at its end.
  std::int64_t read(void* out, std::int64_t bytes) {
    const la_ssize_t got = archive_read_data(get(), out, static_cast<std::size_t>(bytes));
    if (got < 0) check(static_cast<int>(got));
    return got;
  }
  /// Returns the position in the decompressed content, which after next() is the entry's first
  /// byte.
  std::int64_t position() const { return archive_filter_bytes(get(), 0); }

 private:
  struct ArchiveDeleter {
    void operator()(archive* reader) const { archive_read_free(reader); }
  };

  /// Returns whether this libarchive decompresses without another program.
  static bool needs_no_program(int (*support)(archive*)) {
    const std::unique_ptr<archive, ArchiveDeleter> trial(archive_read_new());
    return trial != nullptr && support(trial.get()) == ARCHIVE_OK;
  }

  /// Throws InputError unless a call succeeded or only warned.
  void check(int status) const {
    if (disk_error_ != nullptr) std::rethrow_exception(disk_error_);
    if (status == ARCHIVE_OK || status == ARCHIVE_WARN) return;
    const char* const reason = archive_error_string(get());
    throw InputError(fmt::format("{}: cannot be read as an archive: {}", name_,
                                 printable(reason == nullptr ? "unknown error" : reason)));
  }

  static la_ssize_t read_next(archive*, void* self, const void** out) {
    auto& reader = *static_cast<ArchiveReader*>(self);
    const std::int64_t part = std::min(reader.end_ - reader.file_offset_,
                                       static_cast<std::int64_t>(reader.buffer_.size()));
    *out = reader.buffer_.data();
    try {
      if (reader.compressed())
        check_unpacked_bytes(reader.file_.path(), reader.file_.size(), reader.position());
      reader.file_.read_at(reader.file_offset_, reader.buffer_.data(), part);
    } catch (...) {
      // No exception may pass through libarchive.
      reader.disk_error_ = std::current_exception();
      return ARCHIVE_FATAL;
    }
    reader.file_offset_ += part;
    return part;
  }
  static la_int64_t skip(archive*, void* self, la_int64_t bytes) {
    auto& reader = *static_cast<ArchiveReader*>(self);
    const std::int64_t part = std::clamp<std::int64_t>(bytes, 0, reader.end_ - reader.file_offset_);
    reader.file_offset_ += part;
    return part;
  }

  const io::File& file_;
  std::int64_t file_offset_, end_;
  std::string name_;
  std::unique_ptr<archive, ArchiveDeleter> archive_;
  std::vector<char> buffer_;
  std::exception_ptr disk_error_;
};

/// The name of an entry: in the encoding of the archive, else in UTF-8.
std::string name_of(archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  if (name == nullptr) name = archive_entry_pathname_utf8(entry);
  std::string text = name == nullptr ? "" : name;
  while (text.starts_with("./")) text.erase(0, 2);
  return text;
}

/// Returns whether a part of a path begins with a dot, as those of hidden files do.
bool is_hidden(const std::string& path) {
  return path.starts_with('.')
             ? !path.starts_with("../")
             : path.find("/.") != std::string::npos && path.find("/../") == std::string::npos;
}

/// The part of a path before the first dot of its last component, which the files of one sample
/// share in WebDataset.
std::string sample_key(const std::string& path) {
  return path.substr(0, path.find('.', path.rfind('/') + 1));
}

/// A class that a file beside an image names.
struct SampleClass {
  std::string name;
  std::int32_t label = -1;
  std::string problem;
  int priority = 0;  ///< of the extension: cls before txt before json
};

/// Returns the class in a file of the extension .cls, .txt or .json; none if it names none.
std::optional<SampleClass> parse_class(const std::string& extension, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  SampleClass sample;
  std::optional<std::int64_t> number;
  if (extension == "json") {
    sample.priority = 2;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) return std::nullopt;
    auto member = json.find("label");
    if (member == json.end()) member = json.find("cls");
    if (member == json.end()) return std::nullopt;
    if (member->is_string()) sample.name = member->get<std::string>();
    if (member->is_number_integer()) number = member->get<std::int64_t>();
  } else {
    sample.priority = extension == "cls" ? 0 : 1;
    if (extension == "cls") number = parse_integer(text);
    if (!number) sample.name = text;
  }
  if (number && *number >= 0 && *number < static_cast<std::int64_t>(max_classes))
    sample.label = static_cast<std::int32_t>(*number);
  else if (sample.name.empty())
    sample.problem = fmt::format(
        "the file .{} beside it has \"{}\", which is neither the number of a "
        "class nor a name",
        extension, printable(text, 60));
  return sample;
}

/// Catalogs archives one after the other.
class TarCatalog {
 public:
  ImageCatalog make(const std::vector<std::string>& archives) {
    FileIdentity identity;
    for (const std::string& path : archives) {
      catalog_.files.push_back(path);
      const std::int64_t bytes = identity.add(path);
      const io::File file(path, io::File::Mode::read);
      add_archive(file, 0, bytes, path, path, 0);
    }
    catalog_.identity = identity.value();
    choose_classes();
    validate(!catalog_.entries.empty(), "{}{}: no JPEG or PNG file (.jpg, .jpeg, .png) found",
             archives.front(), archives.size() == 1 ? "" : " and the other archives");
    return std::move(catalog_);
  }

 private:
  /// Adds the images of an archive in the bytes [offset, offset + bytes) of a file. `depth`: the
  /// archives around it.
  void add_archive(const io::File& file, std::int64_t offset, std::int64_t bytes,
                   const std::string& path, const std::string& place, int depth) {
    validate(depth <= max_depth, "{}: is an archive in {} others", place, depth);
    ++archives_;
    ArchiveReader reader(file, offset, bytes, place, ArchiveReader::Format::tar);
    const std::size_t first = catalog_.entries.size();
    std::unordered_map<std::string, SampleClass> classes;
    std::int64_t listed_bytes = 0;  // memory for images and classes of this archive
    archive_entry* entry = reader.next();
    const bool compressed = reader.compressed();
    validate(!compressed || depth == 0,
             "{}: is a compressed archive in an archive; decompress it first", place);
    if (compressed)
      catalog_.compressed.push_back(static_cast<std::uint32_t>(catalog_.files.size() - 1));
    for (; entry != nullptr; entry = reader.next()) {
      const std::string name = name_of(entry);
      if (archive_entry_filetype(entry) == AE_IFDIR) continue;
      const bool is_file =
          archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == nullptr;
      const bool is_sparse = archive_entry_sparse_count(entry) > 0;
      const std::int64_t begin = offset + reader.position(), size = archive_entry_size(entry);
      validate(compressed || is_sparse || (size >= 0 && size <= offset + bytes - begin),
               "{}: {}: its header says {} bytes, but the archive ends before", place,
               printable(name), size);
      const std::string extension = extension_of(name);
      if (is_hidden(name)) {
        ++catalog_.ignored;  // as those that macOS puts into archives
      } else if (extension == "tar" && is_file) {
        validate(!compressed, "{}: {}: is an archive in a compressed archive; decompress it first",
                 place, printable(name));
        add_archive(file, begin, size, name, fmt::format("{}: {}", place, printable(name)),
                    depth + 1);
      } else if (is_image_name(name)) {
        CatalogEntry& image = catalog_.entries.emplace_back();
        image.name = name;
        archive_names_.push_back(path);
        image.file = static_cast<std::uint32_t>(catalog_.files.size() - 1);
        image.offset = begin;
        image.bytes = size;
        listed_bytes += catalog_entry_bytes + 2 * std::ssize(name);
        if (!is_file)
          image.problem = "is a link or device in the archive, not a file";
        else if (is_sparse)
          image.problem = "is a sparse file in the archive";
      } else if (extension == "cls" || extension == "txt" || extension == "json") {
        listed_bytes += add_class(reader, name, size, extension, classes);
      } else {
        ++catalog_.ignored;
      }
      validate(!compressed || may_list(listed_bytes, bytes),
               "{}: the names of its files and classes take {} bytes of memory, but the compressed "
               "archive has only {}; if that is right, decompress it first",
               place, listed_bytes, bytes);
    }
    note_classes(first, classes);
  }

  /// Reads the class of a sample. Returns the bytes of memory that it takes.
  static std::int64_t add_class(ArchiveReader& reader, const std::string& name, std::int64_t size,
                                const std::string& extension,
                                std::unordered_map<std::string, SampleClass>& classes) {
    if (size > max_class_bytes) return 0;
    std::string text(static_cast<std::size_t>(std::max<std::int64_t>(size, 0)), ' ');
    text.resize(static_cast<std::size_t>(reader.read(text.data(), std::ssize(text))));
    const std::optional<SampleClass> sample = parse_class(extension, std::move(text));
    if (!sample) return 0;
    const auto [at, is_new] = classes.try_emplace(sample_key(name), *sample);
    if (!is_new && sample->priority < at->second.priority) at->second = *sample;
    // The name of a class is kept here, for its sample, and for its image.
    return catalog_entry_bytes + std::ssize(name) + 3 * std::ssize(sample->name);
  }

  /// Notes the classes of the images from entry `first` on. Images of archives inside this one have
  /// theirs already.
  void note_classes(std::size_t first,
                    const std::unordered_map<std::string, SampleClass>& classes) {
    samples_.resize(catalog_.entries.size());
    for (std::size_t i = first; i < samples_.size(); ++i) {
      const auto found = classes.find(sample_key(catalog_.entries[i].name));
      if (found == classes.end() || samples_[i]) continue;
      samples_[i] = found->second;
      has_sample_classes_ = true;
    }
  }

  /// Decides where all classes come from, and sets them.
  void choose_classes() {
    bool folders = false;
    for (const CatalogEntry& entry : catalog_.entries)
      folders = folders || entry.name.find('/') != std::string::npos;
    catalog_.class_source = has_sample_classes_ ? "files beside the images"
                            : folders           ? "folders in the archive"
                            : archives_ > 1     ? "names of the archives"
                                                : "";
    for (std::size_t i = 0; i < catalog_.entries.size(); ++i) {
      CatalogEntry& entry = catalog_.entries[i];
      if (has_sample_classes_) {
        const SampleClass missing{
            "", -1, "has no .cls, .txt or .json file beside it, as other images have"};
        const SampleClass& sample = samples_[i] ? *samples_[i] : missing;
        entry.class_name = sample.name;
        entry.label = sample.label;
        entry.class_problem = sample.problem;
      } else if (folders) {
        const std::string folder = entry.name.substr(0, entry.name.rfind('/') + 1);
        if (!folder.empty()) entry.class_name = folder.substr(0, folder.size() - 1);
        entry.class_name.erase(0, entry.class_name.rfind('/') + 1);
      } else if (archives_ > 1) {
        const std::string& archive = archive_names_[i];
        const std::string file = archive.substr(archive.rfind('/') + 1);
        entry.class_name = file.substr(0, file.find('.'));
      }
    }
  }

  ImageCatalog catalog_;
  std::vector<std::optional<SampleClass>> samples_;  ///< of the entries, from files beside them
  std::vector<std::string> archive_names_;           ///< of the entries
  bool has_sample_classes_ = false;
  std::int64_t archives_ = 0;
};

}  // namespace

ImageCatalog catalog_tar(const std::vector<std::string>& sources) {
  return TarCatalog().make(sources);
}

void decompress(const std::string& path, const std::string& out_path) {
  io::File out(out_path, io::File::Mode::create);
  std::vector<std::byte> piece(1 << 20);
  std::int64_t at = 0;
  const auto copy = [&](auto&& read) {
    while (const std::int64_t got = read()) {
      out.write_at(at, piece.data(), got);
      at += got;
    }
  };
  GzipReader gzip(path);
  if (gzip.compressed()) {  // libarchive does not compare gzip's checksum
    copy([&] { return static_cast<std::int64_t>(gzip.read(piece)); });
  } else {
    const io::File file(path, io::File::Mode::read);
    ArchiveReader reader(file, 0, file.size(), path, ArchiveReader::Format::any_bytes);
    if (reader.next() != nullptr)
      copy([&] { return reader.read(piece.data(), std::ssize(piece)); });
  }
  out.close();
}

}  // namespace trireme::data
