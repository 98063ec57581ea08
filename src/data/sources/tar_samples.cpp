// SPDX-License-Identifier: Apache-2.0
//
// Groups the files of an archive into samples, and finds the class of each image.
//
// 1. The keys of images and of files with classes follow from the names of all files.
// 2. Files of a key that follow each other in the archive are a run, as WebDataset groups them.
// 3. Runs are samples, or all runs of a key together are one.
// 4. Each sample must have one image and one class; else there is a conflict, which a file of
//    labels settles.
#include "tar_samples.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "catalog_names.hpp"
#include "data/labels/printed_value.hpp"
#include "data/shards/shard_limits.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/json.hpp"

namespace trireme::data {
namespace {

constexpr std::array class_extensions = {"cls", "txt", "json"};
constexpr io::JsonLimits class_limits{.depth = 32, .members = 10'000};

}  // namespace

std::string SampleClass::text() const {
  return name.empty() && label >= 0 ? std::to_string(label)
                                    : fmt::format("\"{}\"", printable(name, 60));
}

bool may_name_class(const std::string& extension) {
  return std::find(class_extensions.begin(), class_extensions.end(), extension) !=
         class_extensions.end();
}

std::optional<SampleClass> parse_class(const std::string& extension, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  SampleClass sample;
  sample.priority =
      static_cast<int>(std::find(class_extensions.begin(), class_extensions.end(), extension) -
                       class_extensions.begin());
  std::optional<std::int64_t> number;
  if (extension == "json") {
    nlohmann::json json;
    try {
      json = io::parse_json_object<nlohmann::json>(text, "the file .json beside it", class_limits);
    } catch (const InputError& error) {
      sample.problem = error.what();
      sample.is_unreadable = true;
      return sample;
    }
    auto member = json.find("label");
    if (member == json.end()) member = json.find("cls");
    if (member == json.end()) return std::nullopt;
    if (member->is_string()) sample.name = member->get<std::string>();
    if (member->is_number_integer()) number = member->get<std::int64_t>();
  } else {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
    if (extension == "cls") number = parse_integer(text);
    if (!number && (extension != "cls" || !is_number(text))) sample.name = text;
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

void TarSamples::add_image(std::string name, std::size_t entry) {
  files_.push_back({std::move(name), Kind::image, entry});
}

void TarSamples::add_class(std::string name, SampleClass sample_class) {
  files_.push_back({std::move(name), Kind::sample_class, sample_classes_.size()});
  sample_classes_.push_back(std::move(sample_class));
}

void TarSamples::add_other(std::string name) {
  files_.push_back({std::move(name), Kind::other, 0});
}

/// The work of group(). Views of names point into the files.
class TarSamples::Grouping {
 public:
  Grouping(const TarSamples& samples, const ImageChoice& choice)
      : files_(samples.files_), sample_classes_(samples.sample_classes_), image_choice_(choice) {}

  Result group() {
    std::vector<Member> members = find_runs(find_keys());
    std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
      return std::tie(a.key, a.file) < std::tie(b.key, b.file);
    });
    for (auto begin = members.begin(); begin != members.end();) {
      const auto end = std::find_if(begin, members.end(),
                                    [&](const Member& member) { return member.key != begin->key; });
      group_key({begin, end});
      begin = end;
    }
    return std::move(result_);
  }

 private:
  using Names = std::unordered_set<std::string_view>;
  /// Files that may be one sample, by number.
  struct Run {
    std::vector<std::size_t> images, left_out, classes;  ///< left_out: images, by --image
    bool is_whole() const { return !(images.empty() && left_out.empty()) && !classes.empty(); }
    void add(const Run& other) {
      images.insert(images.end(), other.images.begin(), other.images.end());
      left_out.insert(left_out.end(), other.left_out.begin(), other.left_out.end());
      classes.insert(classes.end(), other.classes.begin(), other.classes.end());
    }
  };

  /// Returns the keys that are the name of a file with a class up to its last dot.
  Names find_keys() {
    Names stems, keys;
    for (const File& file : files_)
      if (file.kind == Kind::sample_class) stems.insert(stem_of(file.name));
    for (const File& file : files_) {
      if (file.kind != Kind::image) continue;
      image_names_.add(file.name);
      const std::string_view key = key_among(file.name, stems);
      if (stems.contains(key)) keys.insert(key);
    }
    return keys;
  }

  /// Returns the images and the files with classes, with their keys and the numbers of their runs.
  /// Fills others_.
  std::vector<Member> find_runs(const Names& keys) {
    std::vector<Member> members;
    std::string_view previous;
    std::size_t run = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::string_view key = key_among(files_[i].name, keys);
      if (key != previous) ++run;
      previous = key;
      if (files_[i].kind != Kind::other)
        members.push_back({key, run, i});
      else if (extension_of(files_[i].name) != "tar")
        others_.try_emplace(key, files_[i].name);
    }
    return members;
  }

  /// Adds the images of a key.
  void group_key(std::span<const Member> members) {
    const bool has_class = std::any_of(members.begin(), members.end(), [&](const Member& member) {
      return files_[member.file].kind == Kind::sample_class;
    });
    if (!has_class) return add_without_class(members);
    // 1. The runs.
    std::vector<Run> runs;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i == 0 || members[i].run != members[i - 1].run) runs.emplace_back();
      const File& file = files_[members[i].file];
      if (file.kind == Kind::sample_class)
        runs.back().classes.push_back(members[i].file);
      else if (image_choice_.takes(file.name, members[i].key))
        runs.back().images.push_back(members[i].file);
      else
        runs.back().left_out.push_back(members[i].file);
    }
    // 2. Each run is a sample, or all together are one.
    const bool are_samples =
        std::all_of(runs.begin(), runs.end(), [](const Run& run) { return run.is_whole(); });
    Run all;
    for (const Run& run : runs) {
      if (are_samples)
        add_sample(members[0].key, run, 1);
      else
        all.add(run);
    }
    if (!are_samples) add_sample(members[0].key, all, runs.size());
  }

  /// Adds images that have no class from a file.
  void add_without_class(std::span<const Member> members) {
    for (const Member& member : members) {
      const File& file = files_[member.file];
      if (!image_names_.is_taken(file.name, image_choice_)) {
        result_.left_out.add(file.name);
        continue;
      }
      result_.images.push_back({file.index, std::nullopt});
      if (const auto owner = image_names_.owner_of(file.name); !owner.empty())
        result_.second.add(file.name, owner);
      if (const auto other = others_.find(member.key); other != others_.end())
        result_.beside.add(other->second, file.name);
    }
  }

  /// Adds a sample that `runs` runs were joined to.
  void add_sample(std::string_view key, const Run& sample, std::size_t runs) {
    // A sample of which --image takes nothing must not be missing in silence.
    const bool lacks_choice = sample.images.empty() && !sample.left_out.empty();
    if (lacks_choice)
      result_.images.push_back({files_[sample.left_out[0]].index, std::nullopt, lacks_choice});
    for (std::size_t i = lacks_choice ? 1 : 0; i < sample.left_out.size(); ++i)
      result_.left_out.add(files_[sample.left_out[i]].name);
    if (sample.images.empty() && !lacks_choice)
      result_.without_image.add(files_[sample.classes[0]].name);
    if (sample.images.empty()) return;
    // The file that is called as the key before one with an addition, then .cls before others.
    const auto rank = [&](std::size_t file) {
      return std::pair(stem_of(files_[file].name) == key ? 0 : 1,
                       sample_classes_[files_[file].index].priority);
    };
    const std::size_t chosen =
        *std::min_element(sample.classes.begin(), sample.classes.end(),
                          [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
    const SampleClass& value = sample_classes_[files_[chosen].index];
    for (const std::size_t image : sample.images) {
      result_.images.push_back({files_[image].index, value});
      if (value.is_unreadable) result_.beside.add(files_[chosen].name, files_[image].name);
    }
    if (!result_.conflict.empty()) return;
    const std::string reason =
        runs < 2 ? ""
                 : fmt::format(
                       "; the key {} comes {} times, once without its image or its class, so all "
                       "its files are one sample",
                       printable(key), runs);
    // Two classes.
    for (const std::size_t other : sample.classes) {
      const SampleClass& other_value = sample_classes_[files_[other].index];
      if (rank(other) != rank(chosen) || other_value == value) continue;
      result_.conflict = fmt::format(
          "the class of {} is {} in {}, but {} in {}{}; remove one of them, or give --labels FILE",
          printable(files_[sample.images[0]].name), value.text(), printable(files_[chosen].name),
          other_value.text(), printable(files_[other].name), reason);
      return;
    }
    // Two images.
    if (sample.images.size() < 2) return;
    const std::string &first = files_[sample.images[0]].name,
                      &second = files_[sample.images[1]].name;
    if (first == second)
      result_.conflict = fmt::format(
          "two images of one sample are called {} and {}, with the class in {}{}; rename or remove "
          "one of them",
          printable(first), printable(second), printable(files_[chosen].name), reason);
    else
      result_.conflict = fmt::format(
          "{} and {} share the class in {}, but a sample has one image; choose it with --image {} "
          "or --image {}{}",
          printable(first), printable(second), printable(files_[chosen].name),
          printable(first.substr(key.size() + 1)), printable(second.substr(key.size() + 1)),
          reason);
  }

  const std::vector<File>& files_;
  const std::vector<SampleClass>& sample_classes_;
  const ImageChoice& image_choice_;
  ImageNames image_names_;
  std::unordered_map<std::string_view, std::string_view> others_;  ///< by key, one name of each
  Result result_;
};

TarSamples::Result TarSamples::group(const ImageChoice& choice) const {
  return Grouping(*this, choice).group();
}

}  // namespace trireme::data
