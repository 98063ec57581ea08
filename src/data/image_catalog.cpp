// What all source formats of images share: labels, the form that is broadcast, and reading.
#include "trireme/data/image_catalog.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>
#include <utility>

#include "shard_limits.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

// Longer files are no photographs. The whole file is held in memory.
constexpr std::int64_t max_encoded_bytes = std::int64_t{128} << 20;

std::optional<std::int64_t> to_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// Finds the entries that a line of a file of labels may mean: by path, file name, or file name
/// without extension.
class EntryNames {
 public:
  explicit EntryNames(const std::vector<CatalogEntry>& entries) : entries_(entries) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string_view path = entries[i].name, file = path.substr(path.rfind('/') + 1);
      for (const std::string_view form : {path, file, file.substr(0, file.rfind('.'))}) {
        const auto [at, is_new] = indices_.emplace(form, i);
        if (!is_new && at->second != i) at->second = ambiguous;
      }
    }
  }
  /// Returns the index of the entry; none if there is no such entry. Throws InputError if several
  /// fit.
  std::optional<std::size_t> find(std::string_view name, const std::string& line) const {
    const auto found = indices_.find(name);
    if (found == indices_.end()) return std::nullopt;
    validate(found->second != ambiguous, "{}: several images are called {}; write their paths",
             line, printable(name));
    return found->second;
  }

 private:
  static constexpr std::size_t ambiguous = ~std::size_t{0};
  const std::vector<CatalogEntry>& entries_;
  std::unordered_map<std::string_view, std::size_t> indices_;
};

/// Sets class names (or, if all are numbers, labels) from a file of labels.
void read_labels(ImageCatalog& catalog, const std::vector<std::string>& classes,
                 std::string_view text, const std::string& place) {
  const EntryNames names(catalog.entries);
  bool numbers = classes.empty();
  std::vector<std::string_view> words(catalog.entries.size());
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    constexpr std::string_view separators = " ,\t";
    if (line.find_first_not_of(separators) == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", place, number);
    const std::size_t name_end = line.find_first_of(separators),
                      begin = line.find_first_not_of(separators, name_end);
    validate(name_end != std::string_view::npos && begin != std::string_view::npos,
             "{}: \"{}\" has no label; a line is NAME LABEL", where, printable(line));
    const std::optional<std::size_t> entry = names.find(line.substr(0, name_end), where);
    validate(entry || number == 1, "{}: no image is called {}", where,
             printable(line.substr(0, name_end)));
    if (!entry) continue;  // the header of a table
    std::string_view& word = words[*entry];
    validate(word.empty(), "{}: {} has a label already", where,
             printable(line.substr(0, name_end)));
    word = line.substr(begin);
    word = word.substr(0, word.find_first_of(separators));
    numbers = numbers && to_number(word).has_value();
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    CatalogEntry& entry = catalog.entries[i];
    const bool is_class = std::find(classes.begin(), classes.end(), words[i]) != classes.end();
    const std::optional<std::int64_t> number = to_number(words[i]);
    const bool use_number = numbers || (!is_class && number);
    entry.class_name = use_number ? "" : std::string(words[i]);
    entry.label = use_number && number ? static_cast<std::int32_t>(std::clamp<std::int64_t>(
                                             *number, -1, static_cast<std::int64_t>(max_classes)))
                                       : -1;
  }
  catalog.class_source = "--labels";
}

}  // namespace

void assign_labels(ImageCatalog& catalog, const std::vector<std::string>& classes,
                   std::string_view labels, const std::string& place) {
  if (!labels.empty()) read_labels(catalog, classes, labels, place);
  // 1. The names of the classes.
  bool names = false;
  for (const CatalogEntry& entry : catalog.entries) names = names || !entry.class_name.empty();
  if (!classes.empty()) {
    catalog.classes = classes;
  } else if (names) {
    for (const CatalogEntry& entry : catalog.entries)
      if (!entry.class_name.empty()) catalog.classes.push_back(entry.class_name);
    std::sort(catalog.classes.begin(), catalog.classes.end());
    catalog.classes.erase(std::unique(catalog.classes.begin(), catalog.classes.end()),
                          catalog.classes.end());
  }
  validate(catalog.classes.size() <= max_classes, "{} classes are too many",
           catalog.classes.size());
  // 2. The labels.
  std::unordered_map<std::string_view, std::int32_t> label_of;
  for (std::size_t i = 0; i < catalog.classes.size(); ++i)
    label_of.emplace(catalog.classes[i], static_cast<std::int32_t>(i));
  const auto limit = static_cast<std::int64_t>(classes.empty() ? max_classes : classes.size());
  for (CatalogEntry& entry : catalog.entries) {
    if (!entry.problem.empty()) continue;
    if (!entry.class_name.empty()) {
      const auto found = label_of.find(entry.class_name);
      validate(found != label_of.end(), "{}: its class {} is not one of the {} of --classes",
               place_of(catalog, entry), printable(entry.class_name), classes.size());
      entry.label = found->second;
      continue;
    }
    validate(entry.label >= 0 || labels.empty(), "{}: has no line in {}", place_of(catalog, entry),
             place);
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
       {catalog.height, catalog.width, catalog.channels, catalog.ignored})
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
       {&catalog.height, &catalog.width, &catalog.channels, &catalog.ignored})
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

Image CatalogReader::read(const CatalogEntry& entry) {
  validate(entry.problem.empty(), "{}", entry.problem);
  const bool encoded = catalog_.coding == ImageCoding::file;
  validate(entry.bytes <= max_encoded_bytes || !encoded, "has {} bytes; files of up to {} are read",
           entry.bytes, max_encoded_bytes);
  const bool whole = entry.offset == whole_file;
  const std::vector<std::string>& files =
      catalog_.content.empty() ? catalog_.files : catalog_.content;
  const std::string path = whole ? place_of(catalog_, entry) : files[entry.file];
  if (file_.path() != path) file_ = io::File(path, io::File::Mode::read);
  stored_.resize(static_cast<std::size_t>(entry.bytes));
  file_.read_at(whole ? 0 : entry.offset, stored_.data(), entry.bytes);
  if (encoded) return decode_image(stored_);
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
