// SPDX-License-Identifier: Apache-2.0
//
// Images that belong to one sample: --image chooses among them, and warnings name them.
#include "image_choice.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "data/sources/catalog_names.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t max_named = 3;  // names in a message

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

}  // namespace

ImageChoice::ImageChoice(const std::string& word) : word_(lower(word)) {
  if (word_.starts_with('.')) word_.erase(0, 1);
  validate(word.empty() || (is_image_name("." + word_) && word_.find('/') == std::string::npos),
           "--image {}: must be the end of the names of images after their key, as in jpg or "
           "left.png",
           printable(word));
}

bool ImageChoice::takes(std::string_view name, std::string_view key) const {
  return takes_all() ||
         (name.size() == key.size() + 1 + word_.size() && lower(name).ends_with("." + word_));
}

void ImageNames::add(std::string_view name) { names_.try_emplace(stem_of(name), name); }

std::string_view ImageNames::key_of(std::string_view name) const {
  // From the longest name to the shortest: a second image may have second images.
  std::string_view key = stem_of(name);
  for (;;) {
    const std::string_view shorter = key_among(key, names_);
    if (shorter.size() == key.size() || !names_.contains(shorter)) return key;
    key = shorter;
  }
}

bool ImageNames::is_taken(std::string_view name, const ImageChoice& choice) const {
  return choice.takes(name, key_of(name)) || choice.takes(name, first_stem_of(name));
}

std::string_view ImageNames::owner_of(std::string_view name) const {
  const std::string_view key = key_of(name);
  return key.size() == stem_of(name).size() ? "" : names_.at(key);
}

void CountedFiles::add(std::string_view name, std::string_view beside) {
  if (count_++ > 0) return;
  first_ = name;
  beside_first_ = beside;
}

void CountedFiles::add(const CountedFiles& others) {
  if (count_ == 0)
    *this = others;
  else
    count_ += others.count_;
}

std::string second_images_warning(const CountedFiles& images) {
  if (images.count() == 0) return "";
  return fmt::format(
      "{} the name of another image with an addition, as {} beside {}, and each becomes a sample "
      "of its class; if they are masks or other views, --image {} leaves them out",
      counted(images.count(), "image has", "images have"), printable(images.first()),
      printable(images.beside_first()), extension_of(images.beside_first()));
}

std::string classes_alone_warning(const CountedFiles& classes) {
  if (classes.count() == 0) return "";
  return fmt::format(
      "{} no image beside them, as {}, and make no sample; images are .jpg, .jpeg and .png",
      counted(classes.count(), "file with a class has", "files with classes have"),
      printable(classes.first()));
}

std::string no_end_mark_warning(const CountedFiles& archives) {
  if (archives.count() == 0) return "";
  return fmt::format(
      "{}{}: has no end mark (blocks of zeros) after its last file {}, so it may have been cut; "
      "compare its size with the source's",
      archives.first(),
      archives.count() > 1 ? fmt::format(" (and {} more)", archives.count() - 1) : "",
      printable(archives.beside_first()));
}

std::string files_beside_text(const CountedFiles& files) {
  if (files.count() == 0) return "";
  return fmt::format("{} beside them that name no class, as {} beside {}",
                     counted(files.count(), "image has files", "images have files"),
                     printable(files.first()), printable(files.beside_first()));
}

void FolderLevels::add(const CatalogEntry& entry) {
  if (!name_.empty() || std::count(entry.name.begin(), entry.name.end(), '/') < 2) return;
  name_ = entry.name;
  class_name_ = entry.class_name;
}

std::string FolderLevels::note() const {
  if (name_.empty()) return "";
  return fmt::format("folders are in folders; the classes are the {} ones: {} is of the class {}",
                     level_, printable(name_), printable(class_name_));
}

void LeftOut::add(const LeftOut& others) {
  count_ += others.count_;
  for (const std::string& name : others.names_)
    if (names_.size() < max_named) names_.push_back(name);
}

void LeftOut::add(std::string_view name) {
  ++count_;
  if (names_.size() < max_named) names_.push_back(printable(name));
}

void LeftOut::check(const ImageChoice& choice, const std::string& source, std::size_t taken) const {
  validate(taken > 0 || count_ == 0, "{}: --image {} takes none of its images, as {}", source,
           printable(choice.word()), fmt::join(names_, ", "));
}

void check_classes_remain(const ImageChoice& choice, const std::string& source,
                          const std::set<std::string>& left_out,
                          const std::set<std::string>& taken) {
  for (const std::string& name : left_out)
    validate(
        taken.contains(name),
        "{}: --image {} leaves the class \"{}\" without an image; choose an ending that images "
        "of all classes have, or take the class out of the source",
        source, printable(choice.word()), printable(name));
}

}  // namespace trireme::data
