// SPDX-License-Identifier: Apache-2.0
//
// All source formats of images share this: labels, the form that is broadcast, and reading.
#include "trireme/data/sources/image_catalog.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data/labels/label_file.hpp"
#include "data/labels/printed_value.hpp"
#include "data/shards/shard_limits.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

/// Decides whether whole numbers as labels are places in --classes or names of it, if names are
/// whole numbers in other places. Throws InputError if both are possible: `shard folder` sorts the
/// names 0, 1, 10, 11, 2, so that the class at place 2 is called 10.
void settle_numbers(const ImageCatalog& catalog, std::span<CatalogEntry> entries,
                    const std::vector<std::string>& classes) {
  constexpr std::int32_t several = -1;  // as of "1" and "01"
  std::unordered_map<std::int64_t, std::int32_t> place_of_number;
  bool all_numbers = true;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::optional<std::int64_t> number = parse_integer(classes[i]);
    all_numbers = all_numbers && number.has_value();
    if (!number) continue;
    const auto [found, is_new] = place_of_number.emplace(*number, static_cast<std::int32_t>(i));
    if (!is_new) found->second = several;
  }
  const auto named = [&](const CatalogEntry& entry) {
    const auto found = place_of_number.find(entry.label);
    return found == place_of_number.end() ? several : found->second;
  };
  // 1. Names among the labels, or numbers that are no places, show that labels are names. Numbers
  //    that are no names show that they are places, if there are other names as well.
  const bool are_in_place = std::all_of(place_of_number.begin(), place_of_number.end(),
                                        [](const auto& pair) { return pair.first == pair.second; });
  if (are_in_place) return;
  bool are_names = false, are_numbers = true, have_names = true;
  const CatalogEntry* other = nullptr;  // of which both readings differ
  for (const CatalogEntry& entry : entries) {
    if (entry.class_name.empty() && entry.label < 0) continue;
    are_names = are_names || !entry.class_name.empty() || entry.label >= std::ssize(classes);
    are_numbers = are_numbers && entry.class_name.empty();
    if (!entry.class_name.empty()) continue;
    have_names = have_names && named(entry) != several;
    if (other == nullptr && named(entry) != entry.label) other = &entry;
  }
  const bool are_places = are_numbers && !have_names && !all_numbers;
  if (other == nullptr || are_places) return;
  if (!are_names || !have_names) {
    const auto quoted = [&](std::int32_t place) {
      return place < 0 || place >= std::ssize(classes)
                 ? std::string("no class")
                 : fmt::format("the class \"{}\"",
                               printable(classes[static_cast<std::size_t>(place)], 60));
    };
    throw InputError(fmt::format(
        "{}: its class is the number {}, which is {} by its place in --classes, but {} by its "
        "name; list the numbers of --classes in their order, as 0,1,2, or let the source have "
        "names that are no numbers",
        place_of(catalog, *other), other->label, quoted(other->label), quoted(named(*other))));
  }
  // 2. They are names.
  for (CatalogEntry& entry : entries)
    if (entry.class_name.empty() && entry.label >= 0) entry.label = named(entry);
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
    read_label_file(catalog, classes, labels);
  else
    validate(catalog.class_conflict.empty(), "{}", catalog.class_conflict);
  settle_numbers(
      catalog,
      std::span(catalog.entries)
          .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
      classes);
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
