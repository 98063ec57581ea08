// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::data {

/// Returns the longest of the parts of a path that end before a dot of its file name and are in
/// `stems`, a set of texts; else the part before the first dot.
template <class Stems>
std::string_view key_among(std::string_view path, const Stems& stems) {
  // Names have a few dots; more are those of a damaged or hostile archive, and would cost much.
  constexpr int max_dots = 16;
  const std::size_t begin = path.rfind('/') + 1, first = path.find('.', begin);
  std::size_t dot = path.rfind('.');
  for (int dots = 0; dots < max_dots && dot != std::string_view::npos && dot > first; ++dots) {
    if (stems.contains(path.substr(0, dot))) return path.substr(0, dot);
    dot = path.rfind('.', dot - 1);
  }
  return path.substr(0, first);
}

/// The word of --image. It chooses images by the end of their names: what follows the key of their
/// sample and a dot. Upper and lower case are alike.
class ImageChoice {
 public:
  /// `word`: "jpg", "left.jpg"; empty: all images are taken. Throws InputError unless it ends as
  /// the name of an image.
  explicit ImageChoice(const std::string& word);
  bool takes_all() const { return word_.empty(); }
  /// Returns whether the image called `name` is taken if `key` is that of its sample.
  bool takes(std::string_view name, std::string_view key) const;
  const std::string& word() const { return word_; }

 private:
  std::string word_;
};

/// The images of a folder or archive by name, to find those that belong to another one although no
/// file of a label says so: "x.seg.png" beside "x.png". The names must outlive this.
class ImageNames {
 public:
  void add(std::string_view name);
  /// Returns whether --image takes an image. Its key is the name of the image to which it belongs
  /// without extension, or ends before the first dot.
  bool is_taken(std::string_view name, const ImageChoice& choice) const;
  /// Returns the name of the image to which another one belongs; empty: to none.
  std::string_view owner_of(std::string_view name) const;

 private:
  std::string_view key_of(std::string_view name) const;
  std::unordered_map<std::string_view, std::string_view> names_;  ///< by stem
};

/// Counts files of one sort and keeps the names of the first one, for a message.
class CountedFiles {
 public:
  /// Adds a file. `beside`: the file to which it belongs, if the message names that too.
  void add(std::string_view name, std::string_view beside = "");
  void add(const CountedFiles& others);
  std::int64_t count() const { return count_; }
  /// Returns the name of the first file, and that of the one to which it belongs.
  const std::string& first() const { return first_; }
  const std::string& beside_first() const { return beside_first_; }

 private:
  std::int64_t count_ = 0;
  std::string first_, beside_first_;
};

/// Returns a warning of images that belong to another one and become samples of their own. Each of
/// these texts is empty if there are no such files.
std::string second_images_warning(const CountedFiles& images);
/// Returns a warning of files with classes that have no image: its form is not read, or it is
/// missing.
std::string classes_alone_warning(const CountedFiles& classes);
/// Returns a warning of archives without an end mark, each with its last file.
std::string no_end_mark_warning(const CountedFiles& archives);
/// Returns the beginning of a message on images without a class that have another file beside them,
/// with the name of the image up to a dot: a class in a form that is not read, or something else.
std::string files_beside_text(const CountedFiles& files);

/// Notes whether images are in folders of folders, so that another level could be the class.
class FolderLevels {
 public:
  /// `level`: the one that is taken, "innermost" or "outermost".
  explicit FolderLevels(std::string level) : level_(std::move(level)) {}
  void add(const CatalogEntry& entry);
  /// Returns a line for the user that names the level; empty: there is one level.
  std::string note() const;

 private:
  std::string level_, name_, class_name_;  ///< of the first such image
};

/// Counts the images that --image leaves out, and keeps some of their names for a message.
class LeftOut {
 public:
  void add(std::string_view name);
  void add(const LeftOut& others);
  std::int64_t count() const { return count_; }
  /// Throws InputError if no image is left.
  void check(const ImageChoice& choice, const std::string& source, std::size_t taken) const;

 private:
  std::int64_t count_ = 0;
  std::vector<std::string> names_;
};

/// Throws InputError if all images of a class are left out by --image: the other classes would get
/// other numbers. `left_out` and `taken`: the classes of the images.
void check_classes_remain(const ImageChoice& choice, const std::string& source,
                          const std::set<std::string>& left_out,
                          const std::set<std::string>& taken);

}  // namespace trireme::data
