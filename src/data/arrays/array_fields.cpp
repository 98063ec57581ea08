// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the table [data.hdf5], and reads paths of datasets and letters of
// dimensions.
#include "array_fields.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::data {

using namespace keys;

namespace {

// More datasets than an image has channels.
constexpr std::size_t max_datasets = 1024;

/// The path of a dataset, or a list of paths. If it is empty, it is not written.
Field dataset_paths(std::vector<std::string>& paths) {
  static constexpr const char* wanted = "a path such as \"/x\", or a list of paths";
  const auto read = [&paths](const Value& given) -> std::string {
    std::vector<std::string> found;
    if (const auto text = given.text()) {
      found.push_back(*text);
    } else {
      const auto list = given.list();
      if (!list) return given.wrong_type(wanted);
      for (const Value& element : *list) {
        const auto path = element.string();
        if (!path) return fmt::format("each path {}", element.wrong_type("a string"));
        found.push_back(*path);
      }
    }
    if (found.empty() || found.size() > max_datasets)
      return fmt::format("lists {} paths; must be {}, up to {}", found.size(), wanted,
                         max_datasets);
    for (const std::string& path : found)
      if (path.empty()) return fmt::format("an empty path; must be {}", wanted);
    for (auto path = found.begin(); path != found.end(); ++path)
      if (std::find(found.begin(), path, *path) != path)
        return fmt::format("names {} twice; leave one out", keys::quoted(*path));
    paths = std::move(found);
    return "";
  };
  const auto write = [&paths]() -> std::string {
    if (paths.empty()) return "";
    return paths.size() == 1 ? keys::quoted(paths[0]) : fmt::format("[{}]", quoted_list(paths));
  };
  return {read, write, "path or list of paths", fmt::format("1 to {}", max_datasets)};
}

/// The letters h, w and c, each at most once, with all of `needed`. If there are none, they are not
/// written.
Field layout_letters(std::string& layout, std::string_view needed) {
  const auto read = [&layout, needed](const Value& given) -> std::string {
    static constexpr const char* wanted =
        "the dimensions of a sample in their order, of the letters h, w and c, as in \"hw\", "
        "\"hwc\" or \"chw\"";
    const auto text = given.string();
    if (!text) return given.wrong_type(wanted);
    const bool known = text->find_first_not_of("hwc") == std::string::npos;
    std::string sorted = *text;
    std::sort(sorted.begin(), sorted.end());
    if (text->empty() || !known || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return fmt::format("{}; must be {}", keys::quoted(*text), wanted);
    for (const char letter : needed)
      if (text->find(letter) == std::string::npos)
        return fmt::format(
            "{} has no {}; a map has a height h and a width w, as in \"hw\" or "
            "\"chw\"",
            keys::quoted(*text), letter);
    layout = *text;
    return "";
  };
  return {read, [&layout] { return layout.empty() ? std::string() : keys::quoted(layout); }, "word",
          "letters h, w and c, each at most once"};
}

}  // namespace

void visit_arrays(Visitor& v, const AppliesTo& images, const AppliesTo& maps, ArrayForm& arrays) {
  v.table("data.hdf5");
  v.field({"input",
           "Images: names the datasets of the input in HDF5 or netCDF-4 files of other programs, "
           "stacked as channels.",
           images},
          dataset_paths(arrays.input));
  const AppliesTo with_input{arrays.is_used(), "a table with input", "data.hdf5.input"};
  v.field({"target",
           "Names the dataset of the classes, or the datasets of numbers, which are joined to a "
           "vector or stacked as components (target.kind).",
           with_input,
           "name the dataset of the targets, as in target = \"/y\" (trireme inspect FILE lists "
           "them)"},
          dataset_paths(arrays.target));
  v.field({"layout",
           "Gives the dimensions of one sample of an input, in their order: letters of h, w and c.",
           with_input,
           "give the order of the dimensions of a sample, as in layout = \"hw\" or \"chw\""},
          layout_letters(arrays.layout, ""));
  v.field({"target_layout",
           "target.kind pixels, field: gives the dimensions of one sample of a target: letters of "
           "h, w and c.",
           maps},
          layout_letters(arrays.target_layout, "hw"));
  v.field({"samples",
           "Selects what a sample is: an index of the first dimension (rows), or a whole file "
           "(files).",
           with_input},
          choice<ArrayForm::Samples>(arrays.samples, {{"rows", ArrayForm::Samples::rows},
                                                      {"files", ArrayForm::Samples::files}}));
  v.field({"transform",
           "Changes each number of the inputs, which become float32, before normalize: none, or "
           "log1p, log(1 + x).",
           with_input},
          choice<ArrayForm::Transform>(arrays.transform, {{"none", ArrayForm::Transform::none},
                                                          {"log1p", ArrayForm::Transform::log1p}}));
  v.field({"fill",
           "Replaces numbers of the inputs that are missing, infinite or NaN, before transform and "
           "normalize; without it they end the run.",
           with_input},
          optional_real(arrays.fill, between(-1e20, 1e20)));
}

}  // namespace trireme::data
