// SPDX-License-Identifier: Apache-2.0
//
// Catalogs tar archives.
//
// An index pass reads the headers and notes where the bytes of each image are, so images can be
// read in any order afterwards. Nothing is extracted: names of entries are never paths of files.
// Archives are untrusted; each extent is compared with the file.
#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "archive_reader.hpp"
#include "catalog_names.hpp"
#include "data/images/image_choice.hpp"
#include "data/shards/shard_limits.hpp"
#include "tar_samples.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/data/sources/unpacking.hpp"

namespace trireme::data {
namespace {

// The text of a class. Longer files are something else.
constexpr std::int64_t max_class_bytes = 64 << 10;
// ImageNet's training set is an archive of archives.
constexpr int max_depth = 2;
// Headers and contents of a tar archive are in blocks; one or more blocks of zeros are its end
// mark.
constexpr std::int64_t tar_block_bytes = 512;

/// Returns a name in an archive: in its encoding, else in UTF-8, without "./" at the beginning.
/// Empty: there is none.
template <class Name>
std::string plain_name(archive_entry* entry, Name name, Name name_in_utf8) {
  const char* text = name(entry);
  if (text == nullptr) text = name_in_utf8(entry);
  std::string plain = text == nullptr ? "" : text;
  while (plain.starts_with("./")) plain.erase(0, 2);
  return plain;
}

std::string name_of(archive_entry* entry) {
  return plain_name(entry, archive_entry_pathname, archive_entry_pathname_utf8);
}

/// Returns the name of the file to which an entry is a hard link; empty: it has content of its own.
std::string link_target_of(archive_entry* entry) {
  if (archive_entry_size(entry) > 0) return "";
  return plain_name(entry, archive_entry_hardlink, archive_entry_hardlink_utf8);
}

/// Returns whether a part of a path begins with a dot, as those of hidden files do.
bool is_hidden(const std::string& path) {
  return path.starts_with('.')
             ? !path.starts_with("../")
             : path.find("/.") != std::string::npos && path.find("/../") == std::string::npos;
}

/// Catalogs archives one after the other.
class TarCatalog {
 public:
  explicit TarCatalog(const std::string& image_word) : image_choice_(image_word) {}

  ImageCatalog make(const std::vector<std::string>& archives) {
    FileIdentity identity;
    for (const std::string& path : archives) {
      catalog_.files.push_back(path);
      file_bytes_ = identity.add(path);
      listed_bytes_ = 0;
      const io::File file(path, io::File::Mode::read);
      add_archive(file, 0, file_bytes_, path, path, 0);
    }
    catalog_.identity = identity.value();
    const std::string source =
        archives.front() + (archives.size() == 1 ? "" : " and the other archives");
    validate(!images_.empty(), "{}: no JPEG or PNG file (.jpg, .jpeg, .png) found", source);
    const auto taken = std::count_if(images_.begin(), images_.end(), is_taken);
    left_out_.check(image_choice_, source, static_cast<std::size_t>(taken));
    catalog_.left_out = left_out_.count();
    catalog_.source_warning = no_end_mark_warning(no_end_mark_);
    choose_classes(source);
    for (Image& image : images_)
      if (image.is_taken) catalog_.entries.push_back(std::move(image.entry));
    return std::move(catalog_);
  }

 private:
  /// An image of an archive.
  struct Image {
    CatalogEntry entry;
    std::string archive;  ///< name of the archive that holds it
    std::optional<SampleClass> sample_class;
    bool is_taken = false;
  };
  static bool is_taken(const Image& image) { return image.is_taken; }
  /// Where the content of a file is.
  struct Content {
    std::int64_t offset = 0, bytes = 0;
    std::string problem;  ///< why it cannot be read; empty: it can
    bool is_link = false;
  };
  /// An archive while it is read.
  struct Archive {
    ArchiveReader& reader;
    const io::File& file;
    const std::string& place;  ///< for messages
    bool compressed;
    TarSamples samples;
    std::unordered_map<std::string, Content> contents;  ///< of the files so far
  };

  /// Adds the images of an archive in the bytes [offset, offset + bytes) of a file. `depth`: the
  /// archives around it.
  void add_archive(const io::File& file, std::int64_t offset, std::int64_t bytes,
                   const std::string& path, const std::string& place, int depth) {
    validate(depth <= max_depth, "{}: is an archive in {} others", place, depth);
    ++archives_;
    ArchiveReader reader(file, offset, bytes, place, ArchiveReader::Format::tar);
    archive_entry* entry = reader.next();
    Archive archive{reader, file, place, reader.compressed(), {}, {}};
    validate(!archive.compressed || depth == 0,
             "{}: is a compressed archive in an archive; decompress it first", place);
    if (archive.compressed)
      catalog_.compressed.push_back(static_cast<std::uint32_t>(catalog_.files.size() - 1));
    std::optional<std::int64_t> end_of_files = 0;  // in the content; none: it is not known
    std::string last_name;
    for (; entry != nullptr; entry = reader.next()) {
      end_of_files = block_end(entry, reader);
      last_name = name_of(entry);
      if (archive_entry_filetype(entry) == AE_IFDIR) continue;
      const std::string name = name_of(entry), target = link_target_of(entry);
      const Content content =
          target.empty() ? content_of(entry, archive, offset, bytes) : linked(archive, target);
      listed_bytes_ += catalog_entry_bytes + 2 * std::ssize(name);
      archive.contents.insert_or_assign(name, content);
      if (is_hidden(name))
        ++catalog_.ignored;  // as those that macOS puts into archives
      else
        add_file(archive, name, path, content, depth);
      validate(may_list(listed_bytes_, file_bytes_),
               "{}: the names of its files and classes take {} bytes of memory, but the {} has "
               "only {}{}",
               place, listed_bytes_, archive.compressed ? "compressed archive" : "archive",
               file_bytes_, archive.compressed ? "; if that is right, decompress it first" : "");
    }
    reader.check_end();
    if (end_of_files && reader.position() < *end_of_files + tar_block_bytes)
      no_end_mark_.add(place, last_name);
    take_images(archive);
  }

  /// Returns where the content of an entry ends in the archive; none for a sparse file, whose
  /// header says another size.
  static std::optional<std::int64_t> block_end(archive_entry* entry, const ArchiveReader& reader) {
    if (archive_entry_sparse_count(entry) > 0) return std::nullopt;
    const std::int64_t bytes = archive_entry_filetype(entry) == AE_IFREG
                                   ? std::max<std::int64_t>(archive_entry_size(entry), 0)
                                   : 0;
    return reader.position() + (bytes + tar_block_bytes - 1) / tar_block_bytes * tar_block_bytes;
  }

  /// Adds a file of an archive: an archive, an image, or a class.
  void add_file(Archive& archive, const std::string& name, const std::string& path,
                const Content& content, int depth) {
    const std::string extension = extension_of(name);
    if (is_image_name(name)) return add_image(archive, name, path, content);
    if (may_name_class(extension)) {
      std::optional<SampleClass> named = read_class(archive, extension, content);
      if (!named) return archive.samples.add_other(name);
      // The name of a class is kept here, for its sample, and for its image.
      listed_bytes_ += 3 * std::ssize(named->name);
      return archive.samples.add_class(name, std::move(*named));
    }
    archive.samples.add_other(name);
    if (extension != "tar" || !content.problem.empty()) {
      ++catalog_.ignored;
      return;
    }
    const std::string place = fmt::format("{}: {}", archive.place, printable(name));
    validate(!archive.compressed, "{}: is an archive in a compressed archive; decompress it first",
             place);
    validate(!content.is_link,
             "{}: is a hard link to an archive, whose images would be there twice; leave it out",
             place);
    add_archive(archive.file, content.offset, content.bytes, name, place, depth + 1);
  }

  /// Returns where the content of an entry is that has one. Throws InputError if the archive ends
  /// before.
  static Content content_of(archive_entry* entry, const Archive& archive, std::int64_t offset,
                            std::int64_t bytes) {
    Content content{.offset = offset + archive.reader.position(),
                    .bytes = archive_entry_size(entry),
                    .problem = ""};
    const bool is_sparse = archive_entry_sparse_count(entry) > 0;
    validate(archive.compressed || is_sparse ||
                 (content.bytes >= 0 && content.bytes <= offset + bytes - content.offset),
             "{}: {}: its header says {} bytes, but the archive ends before", archive.place,
             printable(name_of(entry)), content.bytes);
    if (archive_entry_filetype(entry) != AE_IFREG)
      content.problem = "is a link or device in the archive, not a file";
    else if (is_sparse)
      content.problem = "is a sparse file in the archive";
    return content;
  }

  /// Returns where the content of a hard link is.
  static Content linked(const Archive& archive, const std::string& target) {
    Content content;
    if (const auto found = archive.contents.find(target); found != archive.contents.end())
      content = found->second;
    else
      content.problem = fmt::format("is a hard link to {}, which is not before it in the archive",
                                    printable(target));
    content.is_link = true;
    return content;
  }

  void add_image(Archive& archive, const std::string& name, const std::string& path,
                 const Content& content) {
    Image& image = images_.emplace_back();
    image.archive = path;
    image.entry.name = name;
    image.entry.file = static_cast<std::uint32_t>(catalog_.files.size() - 1);
    image.entry.offset = content.offset;
    image.entry.bytes = content.bytes;
    image.entry.problem = content.problem;
    archive.samples.add_image(name, images_.size() - 1);
  }

  /// Reads a class; none if the file names none.
  static std::optional<SampleClass> read_class(const Archive& archive, const std::string& extension,
                                               const Content& content) {
    if (content.bytes > max_class_bytes) return std::nullopt;
    if (content.is_link && (archive.compressed || !content.problem.empty())) {
      const std::string problem =
          content.problem.empty() ? "is a hard link in a compressed archive; decompress it first"
                                  : content.problem;
      SampleClass unknown;
      unknown.problem = fmt::format("the file .{} beside it {}", extension, problem);
      return unknown;
    }
    std::string text(static_cast<std::size_t>(std::max<std::int64_t>(content.bytes, 0)), ' ');
    if (content.is_link)
      archive.file.read_at(content.offset, text.data(), std::ssize(text));
    else
      text.resize(static_cast<std::size_t>(archive.reader.read(text.data(), std::ssize(text))));
    return parse_class(extension, std::move(text));
  }

  /// Groups the files of an archive, and takes the images that become samples.
  void take_images(const Archive& archive) {
    const TarSamples::Result result = archive.samples.group(image_choice_);
    for (const TarSamples::Image& taken : result.images) {
      Image& image = images_[taken.entry];
      image.is_taken = true;
      image.sample_class = taken.sample_class;
      const bool is_unreadable = taken.sample_class && taken.sample_class->is_unreadable;
      has_sample_classes_ = has_sample_classes_ || (taken.sample_class && !is_unreadable);
      if (is_unreadable && unreadable_.empty())
        unreadable_ =
            fmt::format("{}: {}", printable(image.entry.name), taken.sample_class->problem);
      if (taken.lacks_choice)
        image.entry.problem =
            fmt::format("its sample has no image for --image {}", image_choice_.word());
    }
    left_out_.add(result.left_out);
    second_images_.add(result.second);
    beside_.add(result.beside);
    classes_alone_.add(result.without_image);
    if (catalog_.class_conflict.empty() && !result.conflict.empty())
      catalog_.class_conflict = fmt::format("{}: {}", archive.place, result.conflict);
  }

  /// Warns of archives in different folders, or given twice, whose equal names are one class.
  void add_equal_names_warning() {
    std::unordered_map<std::string_view, std::string_view> path_of;
    for (const std::string& path : catalog_.files) {
      const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
      const auto [first, is_new] = path_of.emplace(name, path);
      if (is_new) continue;
      catalog_.class_warning += fmt::format(
          "{}the archives {} and {} have one name, so their images are of one class",
          catalog_.class_warning.empty() ? "" : ". ", printable(first->second), printable(path));
      return;
    }
  }

  /// Decides where all classes come from, and sets them.
  void choose_classes(const std::string& source) {
    if (has_sample_classes_) {
      catalog_.class_source = "files beside the images";
      catalog_.class_warning = classes_alone_warning(classes_alone_);
      for (Image& image : images_) {
        const SampleClass missing{
            "", -1, "has no .cls, .txt or .json file beside it, as other images have"};
        const SampleClass& sample = image.sample_class ? *image.sample_class : missing;
        image.entry.class_name = sample.name;
        image.entry.label = sample.label;
        image.entry.class_problem = sample.problem;
      }
      return;
    }
    const bool folders = std::any_of(images_.begin(), images_.end(), [](const Image& image) {
      return image.is_taken && image.entry.name.find('/') != std::string::npos;
    });
    if (!folders && archives_ < 2) {
      if (catalog_.class_conflict.empty() && !unreadable_.empty())
        catalog_.class_conflict = fmt::format("{}: {}", source, unreadable_);
      return;
    }
    catalog_.class_source = folders ? "folders in the archive" : "names of the archives";
    catalog_.class_warning = second_images_warning(second_images_);
    if (!folders) add_equal_names_warning();
    if (const std::string beside = files_beside_text(beside_); !beside.empty()) {
      if (folders)
        catalog_.class_warning +=
            fmt::format("{}{}; the classes are the folders, and these files are not used",
                        catalog_.class_warning.empty() ? "" : ". ", beside);
      else if (catalog_.class_conflict.empty())
        catalog_.class_conflict = fmt::format(
            "{}: {}, so the classes would be the names of the archives. A class is the text of a "
            ".cls or .txt file, or the member label or cls of a .json file, of at most {} bytes. "
            "Write them so, or give --labels FILE with lines NAME LABEL{}",
            source, beside, max_class_bytes, unreadable_.empty() ? "" : ". " + unreadable_);
    }
    FolderLevels levels("innermost");
    std::set<std::string> classes, classes_left_out;
    for (Image& image : images_) {
      CatalogEntry& entry = image.entry;
      if (folders) {
        entry.class_name = entry.name.substr(0, entry.name.rfind('/') + 1);
        if (!entry.class_name.empty()) entry.class_name.pop_back();
        entry.class_name.erase(0, entry.class_name.rfind('/') + 1);
        if (image.is_taken) levels.add(entry);
      } else {
        entry.class_name = first_stem_of(image.archive.substr(image.archive.rfind('/') + 1));
      }
      (image.is_taken ? classes : classes_left_out).insert(entry.class_name);
    }
    check_classes_remain(image_choice_, source, classes_left_out, classes);
    catalog_.class_note = levels.note();
  }

  const ImageChoice image_choice_;
  ImageCatalog catalog_;
  std::vector<Image> images_;
  LeftOut left_out_;
  CountedFiles second_images_, beside_, classes_alone_, no_end_mark_;
  bool has_sample_classes_ = false;
  std::string unreadable_;  ///< the first file that is not JSON, with its image
  std::int64_t archives_ = 0;
  // The file that is read, with all archives in it, has these sizes.
  std::int64_t file_bytes_ = 0, listed_bytes_ = 0;  ///< listed: memory for names and classes
};

}  // namespace

ImageCatalog catalog_tar(const std::vector<std::string>& sources, const std::string& image) {
  return TarCatalog(image).make(sources);
}

}  // namespace trireme::data
