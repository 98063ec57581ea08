// SPDX-License-Identifier: Apache-2.0
//
// All source formats of images share this: labels, the form that is broadcast, and reading.
#include "trireme/data/image_catalog.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "printed_value.hpp"
#include "shard_limits.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

/// Finds the image that a line of a file of labels means.
class EntryNames {
 public:
  explicit EntryNames(const ImageCatalog& catalog) {
    for (std::size_t i = 0; i < catalog.entries.size(); ++i) {
      const CatalogEntry& entry = catalog.entries[i];
      const std::string_view path = entry.name, file = path.substr(path.rfind('/') + 1);
      add(0, fmt::format("{}/{}", catalog.files[entry.file], path), i);
      add(1, std::string(path), i);
      add(2, std::string(file), i);
      add(3, std::string(file.substr(0, file.rfind('.'))), i);
    }
  }
  /// Returns the index of the image; none if there is no such image. Throws InputError if several
  /// fit equally well.
  std::optional<std::size_t> find(std::string_view name, const std::string& line) const {
    for (const auto& form : forms_) {
      const auto found = form.find(std::string(name));
      if (found == form.end()) continue;
      validate(found->second != ambiguous,
               "{}: several images are called {}; write the path in the folder, or ARCHIVE/PATH",
               line, printable(name));
      return found->second;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t ambiguous = ~std::size_t{0};
  void add(std::size_t form, std::string name, std::size_t index) {
    const auto [at, is_new] = forms_[form].emplace(std::move(name), index);
    if (!is_new) at->second = ambiguous;
  }
  /// With the folder or archive, path, file name, and file name without extension.
  std::array<std::unordered_map<std::string, std::size_t>, 4> forms_;
};

/// A line of a file of labels.
struct LabelLine {
  std::string_view name, label;
};

/// Returns the parts of a line; an empty label if it has none. See LabelFile.
LabelLine parse_line(std::string_view line) {
  const bool tabs = line.find('\t') != std::string_view::npos;
  const char separator = tabs ? '\t' : line.find(',') != std::string_view::npos ? ',' : ' ';
  const std::size_t end = line.find(separator);
  if (end == std::string_view::npos) return {line, ""};
  std::string_view label = line.substr(end + 1);
  label.remove_prefix(std::min(label.find_first_not_of(' '), label.size()));
  return {line.substr(0, end), label.substr(0, label.find_first_of(tabs ? "\t" : ", "))};
}

/// Sets class names or labels from a file of labels.
void read_labels(ImageCatalog& catalog, const std::vector<std::string>& classes,
                 const LabelFile& labels) {
  const EntryNames names(catalog);
  const std::unordered_set<std::string_view> known(classes.begin(), classes.end());
  for (CatalogEntry& entry : catalog.entries) {
    entry.class_name.clear();
    entry.class_problem.clear();
    entry.label = -1;
  }
  // 1. The words that stand for the classes.
  std::vector<std::pair<std::string_view, std::string>> words(catalog.entries.size());
  bool numbers = true;
  std::string_view text = labels.text;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.find_first_not_of(" ,\t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", labels.path, number);
    const auto [name, label] = parse_line(line);
    validate(!label.empty(), "{}: \"{}\" has no label; a line is NAME LABEL", where,
             printable(line));
    const std::optional<std::size_t> entry = names.find(name, where);
    validate(entry || number == 1, "{}: no image is called {}", where, printable(name));
    if (!entry) continue;  // the header of a table
    validate(words[*entry].first.empty(), "{}: {} has a label already", where, printable(name));
    words[*entry] = {label, where};
    numbers = numbers && parse_integer(label).has_value();
  }
  // 2. With --classes each word may be a name or a number, else all are of one kind.
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto& [word, where] = words[i];
    if (word.empty()) continue;
    CatalogEntry& entry = catalog.entries[i];
    const std::optional<std::int64_t> number = parse_integer(word);
    const bool is_name = classes.empty() ? !numbers : known.contains(word) || !number;
    if (is_name) {
      entry.class_name = word;
      continue;
    }
    validate(*number >= 0 && *number < static_cast<std::int64_t>(max_classes),
             "{}: label {} is not a class; labels are 0 to {}", where, *number, max_classes - 1);
    entry.label = static_cast<std::int32_t>(*number);
  }
  catalog.class_source = "--labels";
  catalog.class_note.clear();
  catalog.class_warning.clear();
}

/// Throws InputError if every class is how a program prints a value. A single one may be a name.
void check_class_words(const ImageCatalog& catalog, const LabelFile& labels) {
  bool any = false;
  for (const std::string& name : catalog.classes) {
    const bool is_printed = is_printed_value(name);
    if (!is_printed && !parse_integer(name)) return;
    any = any || is_printed;
  }
  if (!any) return;
  const auto entry =
      std::find_if(catalog.entries.begin(), catalog.entries.end(),
                   [](const CatalogEntry& each) { return is_printed_value(each.class_name); });
  throw InputError(fmt::format(
      "{}: its class{} is {}, which is how a program prints a value, and so are the classes of all "
      "images; write the number or the name alone, as 3 or cat, or list such names with --classes",
      place_of(catalog, *entry), labels.path.empty() ? "" : " in " + labels.path,
      printable(entry->class_name, 60)));
}

}  // namespace

void assign_labels(ImageCatalog& catalog, const std::vector<std::string>& classes,
                   const LabelFile& labels, std::int64_t begin, std::int64_t end) {
  if (!labels.path.empty())
    read_labels(catalog, classes, labels);
  else
    validate(catalog.class_conflict.empty(), "{}", catalog.class_conflict);
  // 1. The names of the classes.
  bool names = false;
  for (const CatalogEntry& entry : catalog.entries) names = names || !entry.class_name.empty();
  catalog.classes = classes;
  if (classes.empty() && names) {
    std::unordered_set<std::string_view> found;
    for (const CatalogEntry& entry : catalog.entries)
      if (!entry.class_name.empty() && found.insert(entry.class_name).second)
        catalog.classes.push_back(entry.class_name);
    std::sort(catalog.classes.begin(), catalog.classes.end());
    check_class_words(catalog, labels);
  }
  validate(catalog.classes.size() <= max_classes, "{}: {} classes are too many",
           labels.path.empty() ? catalog.files.front() : labels.path, catalog.classes.size());
  // 2. The labels.
  std::unordered_map<std::string_view, std::int32_t> label_of;
  for (std::size_t i = 0; i < catalog.classes.size(); ++i)
    label_of.emplace(catalog.classes[i], static_cast<std::int32_t>(i));
  const auto limit = static_cast<std::int64_t>(classes.empty() ? max_classes : classes.size());
  for (std::int64_t i = begin; i < end; ++i) {
    CatalogEntry& entry = catalog.entries[static_cast<std::size_t>(i)];
    if (entry.problem.empty()) entry.problem = entry.class_problem;
    if (!entry.problem.empty()) continue;
    if (!entry.class_name.empty()) {
      const auto found = label_of.find(entry.class_name);
      validate(found != label_of.end(), "{}: its class {} is not one of the {} of --classes",
               place_of(catalog, entry), printable(entry.class_name), classes.size());
      entry.label = found->second;
      continue;
    }
    validate(entry.label >= 0 || labels.path.empty(), "{}: has no line in {}",
             place_of(catalog, entry), labels.path);
    validate(entry.label >= 0,
             "{}: is in no folder whose name could be its class; give --labels FILE with lines "
             "NAME LABEL",
             place_of(catalog, entry));
    validate(!names || !classes.empty(),
             "{}: its class is the number {}, but other images have names of classes; use one of "
             "the two, or --classes",
             place_of(catalog, entry), entry.label);
    validate(entry.label < limit, "{}: label {} is past the {} classes", place_of(catalog, entry),
             entry.label, limit);
  }
}

std::string place_of(const ImageCatalog& catalog, const CatalogEntry& entry) {
  return fmt::format("{}{}{}", catalog.files[entry.file], entry.offset == whole_file ? "/" : ": ",
                     entry.name);
}

std::string to_bytes(const ImageCatalog& catalog) {
  ByteWriter bytes;
  bytes.put(static_cast<std::uint8_t>(catalog.coding));
  for (const std::int64_t number :
       {catalog.height, catalog.width, catalog.channels, catalog.ignored, catalog.left_out})
    bytes.put(number);
  bytes.put_strings(catalog.files);
  bytes.put_list(catalog.compressed);
  bytes.put_strings(catalog.classes);
  bytes.put_string(catalog.class_source);
  bytes.put(catalog.identity);
  for (const CatalogEntry& entry : catalog.entries) {
    bytes.put_string(entry.name);
    bytes.put(entry.label);
    bytes.put(entry.file);
    bytes.put(entry.offset);
    bytes.put(entry.bytes);
    bytes.put_string(entry.problem);
  }
  return bytes.take();
}

ImageCatalog image_catalog_from_bytes(const std::string& text) {
  ByteReader bytes(text);
  ImageCatalog catalog;
  catalog.coding = bytes.get_enum(ImageCoding::file);
  for (std::int64_t* number :
       {&catalog.height, &catalog.width, &catalog.channels, &catalog.ignored, &catalog.left_out})
    *number = bytes.get<std::int64_t>();
  catalog.files = bytes.get_strings();
  catalog.compressed = bytes.get_list<std::uint32_t>();
  catalog.classes = bytes.get_strings();
  catalog.class_source = bytes.get_string();
  catalog.identity = bytes.get<std::uint64_t>();
  while (!bytes.at_end()) {
    CatalogEntry& entry = catalog.entries.emplace_back();
    entry.name = bytes.get_string();
    entry.label = bytes.get<std::int32_t>();
    entry.file = bytes.get<std::uint32_t>();
    entry.offset = bytes.get<std::int64_t>();
    entry.bytes = bytes.get<std::int64_t>();
    entry.problem = bytes.get_string();
  }
  return catalog;
}

void CatalogReader::load(const CatalogEntry& entry) {
  validate(entry.problem.empty(), "{}", entry.problem);
  const bool encoded = catalog_.coding == ImageCoding::file;
  validate(entry.bytes <= max_encoded_bytes || !encoded, "has {} bytes; files of up to {} are read",
           entry.bytes, max_encoded_bytes);
  const bool whole = entry.offset == whole_file;
  const std::vector<std::string>& files =
      catalog_.content.empty() ? catalog_.files : catalog_.content;
  const std::string path = whole ? place_of(catalog_, entry) : files[entry.file];
  stored_.resize(static_cast<std::size_t>(entry.bytes));
  try {
    if (file_.path() != path) file_ = io::File(path, io::File::Mode::read);
    file_.read_at(whole ? 0 : entry.offset, stored_.data(), entry.bytes);
  } catch (const InputError& error) {
    throw Failure(fmt::format("{}; it could be read when the source was listed", error.what()));
  }
}

std::span<const std::byte> CatalogReader::read_file(const CatalogEntry& entry) {
  load(entry);
  decode_image(stored_);
  return stored_;
}

Image CatalogReader::read(const CatalogEntry& entry) {
  load(entry);
  if (catalog_.coding == ImageCoding::file) return decode_image(stored_);
  Image image{catalog_.height, catalog_.width, catalog_.channels, stored_};
  if (catalog_.coding == ImageCoding::interleaved) return image;
  const std::int64_t pixels = image.height * image.width;
  for (std::int64_t p = 0; p < pixels; ++p)
    for (std::int64_t c = 0; c < image.channels; ++c)
      image.pixels[static_cast<std::size_t>(p * image.channels + c)] =
          stored_[static_cast<std::size_t>(c * pixels + p)];
  return image;
}

}  // namespace trireme::data
