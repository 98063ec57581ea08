// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/images/image_choice.hpp"

namespace trireme::data {

/// A class that a file beside an image names.
struct SampleClass {
  std::string name;
  std::int32_t label = -1;
  std::string problem;
  bool is_unreadable = false;  ///< it is not known whether the file names a class
  int priority = 0;            ///< of the extension: cls before txt before json

  bool operator==(const SampleClass&) const = default;
  /// Returns the class for messages.
  std::string text() const;
};

/// Returns whether a file with this extension may name a class: cls, txt, json.
bool may_name_class(const std::string& extension);

/// Returns the class in a file of the extension cls, txt or json; none if it names none. A
/// file that is not JSON is unreadable.
std::optional<SampleClass> parse_class(const std::string& extension, std::string text);

/// The files of one archive, grouped into samples as WebDataset does.
///
/// - The key of an image is its name up to a dot: the longest one that a file with a class has as
///   its name without extension, else that up to the first dot. A file with a class has the key of
///   its images.
/// - Files of a key that follow each other are a run. If every run of a key has an image and a
///   class, each run is a sample. Otherwise all runs of the key are one sample, so that an archive
///   may hold its classes first, or one that was appended.
class TarSamples {
 public:
  // Adds a file, in the order of the archive.
  void add_image(std::string name, std::size_t entry);
  void add_class(std::string name, SampleClass sample_class);
  void add_other(std::string name);

  /// An image that is taken.
  struct Image {
    std::size_t entry = 0;
    std::optional<SampleClass> sample_class;  ///< none: no file names it
    /// --image takes no image of the sample; this is its first one.
    bool lacks_choice = false;
  };
  struct Result {
    std::vector<Image> images;
    LeftOut left_out;
    CountedFiles second;         ///< images without a class from files that belong to another one
    CountedFiles beside;         ///< files beside such images that name no class
    CountedFiles without_image;  ///< files with classes
    /// Why the classes cannot be told: two of a sample differ, or several images have one. Empty:
    /// they can.
    std::string conflict;
  };
  /// Groups the files.
  Result group(const ImageChoice& choice) const;

 private:
  enum class Kind : std::uint8_t { image, sample_class, other };
  struct File {
    std::string name;
    Kind kind;
    std::size_t index;  ///< the entry of an image, or a class
  };
  struct Member {
    std::string_view key;
    std::size_t run, file;
  };
  class Grouping;

  std::vector<File> files_;
  std::vector<SampleClass> sample_classes_;
};

}  // namespace trireme::data
