// SPDX-License-Identifier: Apache-2.0
//
// Chooses the tensors that `train --restart PATH --weights-only --skip PATTERN` takes from a file.
//
// restore() calls choose_weights() on every rank, before anything is read. All ranks have the same
// list of tensors, of file and model, and so come to the same result.
#include "weight_choice.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/train/run/run_state.hpp"

namespace trireme::train {
namespace {

// Tensors that a message names, and patterns that it suggests. More of these mean another model.
constexpr std::size_t max_named_tensors = 5, max_suggestions = 3;

/// Returns the name of a tensor in a checkpoint: "head.bias" for "model/head.bias".
std::string tensor_name(const std::string& path) { return path.substr(path.find('/') + 1); }

bool is_skipped(std::span<const std::string> skip, const std::string& path) {
  return std::ranges::any_of(
      skip, [&](const std::string& pattern) { return optim::matches(pattern, tensor_name(path)); });
}

/// Returns the first texts, and "..." for more.
std::string first_ones(std::vector<std::string> texts, const char* separator) {
  if (texts.size() > max_named_tensors) {
    texts.resize(max_named_tensors);
    texts.emplace_back("...");
  }
  return fmt::format("{}", fmt::join(texts, separator));
}

/// Returns the three names whose beginning and end are most like those of a pattern.
std::string close_names(const std::string& pattern, const std::set<std::string>& names) {
  const std::string_view whole = pattern, begin = whole.substr(0, whole.find_first_of("*?")),
                         end = whole.substr(whole.find_last_of("*?") + 1);
  const auto distance = [&](std::string_view name) {
    return edit_distance(begin, name.substr(0, begin.size())) +
           edit_distance(end, name.substr(name.size() - std::min(name.size(), end.size())));
  };
  std::vector<std::string> closest(names.begin(), names.end());
  std::ranges::stable_sort(closest, {}, distance);
  closest.resize(std::min(closest.size(), std::size_t{3}));
  for (std::string& name : closest) name = printable(name);
  return fmt::format("{}", fmt::join(closest, ", "));
}

/// Returns the pattern that matches a tensor and the others of its layer: "head.*" for "head.bias".
std::string pattern_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot) + ".*";
}

/// Returns the grid that a file has in place of another one; none if it has the same grid, or a
/// shape that is of no grid. `trained`: the images that the file names; else its grid is square.
std::optional<parallel::PositionGrid> grid_in_file(const parallel::ParameterSpec& spec,
                                                   const Shape& shape, const Shape& image,
                                                   const std::optional<TrainedImages>& trained) {
  Shape others = spec.shape;
  if (!spec.grid || shape.rank() != others.rank()) return std::nullopt;
  others[1] = shape[1];
  if (!(shape == others)) return std::nullopt;
  if (!trained)
    return shape == spec.shape ? std::nullopt : parallel::square_grid(shape[1], spec.grid->leading);
  const std::int64_t patch = image[0] / spec.grid->height;
  const parallel::PositionGrid grid{spec.grid->leading, trained->extents[0] / patch,
                                    trained->extents[1] / patch};
  return grid == *spec.grid || grid.positions() != shape[1] ? std::nullopt : std::optional(grid);
}

/// The tensors of a file that do not fit the model, or are missing in one of both.
struct Mismatches {
  std::vector<std::string> texts;
  std::set<std::string> patterns;

  void add(const std::string& name, std::string text) {
    texts.push_back(std::move(text));
    patterns.insert("--skip '" + printable(pattern_of(name)) + "'");
  }
  std::string advice() const {
    return patterns.size() > max_suggestions
               ? "use the deck it was trained with"
               : fmt::format(
                     "use the deck it was trained with, or let these tensors begin anew: {}",
                     fmt::join(patterns, " "));
  }
};

/// Throws InputError if a pattern matches nothing.
void validate_patterns(std::span<const std::string> skip, const std::set<std::string>& names,
                       const std::string& path) {
  for (const std::string& pattern : skip)
    validate(std::ranges::any_of(
                 names, [&](const std::string& name) { return optim::matches(pattern, name); }),
             "--skip {}: matches no tensor of {} or of the deck's model; the closest are {}",
             printable(pattern, 80), path, close_names(pattern, names));
}

}  // namespace

bool is_of_model(const checkpoint::Contents::Entry& entry) {
  return entry.path.starts_with("model/") || entry.path.starts_with("buffers/");
}

void choose_weights(std::vector<checkpoint::TensorSlice>& pieces,
                    const checkpoint::Contents& contents, std::span<const std::string> skip,
                    const Shape& image, const std::vector<std::string>& unlike,
                    const std::string& path, Log& log) {
  // 1. Remove the skipped tensors.
  std::set<std::string> names;
  std::map<std::string, Shape> stored;
  for (const checkpoint::TensorSlice& piece : pieces) names.insert(piece.spec->name);
  for (const checkpoint::Contents::Entry& entry : contents.tensors) {
    if (!is_of_model(entry)) continue;
    names.insert(tensor_name(entry.path));
    if (!is_skipped(skip, entry.path)) stored[entry.path] = entry.shape;
  }
  validate_patterns(skip, names, path);
  std::vector<std::string> skipped;
  std::erase_if(pieces, [&](const checkpoint::TensorSlice& piece) {
    if (!is_skipped(skip, piece.path)) return false;
    skipped.push_back(piece.spec->name);
    return true;
  });
  if (!skipped.empty())
    log.info("--skip: {} from initial values: {}",
             counted(std::ssize(skipped), "tensor begins", "tensors begin"),
             first_ones(skipped, ", "));
  // 2. Compare the others with the file.
  Mismatches mismatches;
  const std::optional<TrainedImages> trained = trained_images_of(contents.info, path);
  for (checkpoint::TensorSlice& piece : pieces) {
    const parallel::ParameterSpec& spec = *piece.spec;
    const auto found = stored.find(piece.path);
    if (found == stored.end()) {
      mismatches.add(spec.name, fmt::format("{} {} is missing", spec.name, to_string(spec.shape)));
      continue;
    }
    if (const auto grid = grid_in_file(spec, found->second, image, trained); grid) {
      piece.stored_grid = grid;
      log.info("{}: {} is interpolated from {} x {} to {} x {} positions", path, spec.name,
               grid->height, grid->width, spec.grid->height, spec.grid->width);
    } else if (!(found->second == spec.shape)) {
      mismatches.add(
          spec.name,
          fmt::format("{} has shape {}, but the deck's model has {}{}", spec.name,
                      to_string(found->second), to_string(spec.shape),
                      spec.grid ? "; a grid is interpolated if it is square, or the file names the "
                                  "size of its images"
                                : ""));
    } else if (std::ranges::find(unlike, spec.name) != unlike.end()) {
      mismatches.add(spec.name, fmt::format("{} is of another target.kind", spec.name));
    }
    stored.erase(found);
  }
  for (const auto& [tensor, shape] : stored)
    mismatches.add(tensor_name(tensor),
                   fmt::format("{} {} is not in the deck's model", printable(tensor_name(tensor)),
                               to_string(shape)));
  validate(mismatches.texts.empty(), "{}: {} not fit the model of the deck:\n  {}\n  {}", path,
           counted(std::ssize(mismatches.texts), "tensor does", "tensors do"),
           first_ones(mismatches.texts, "\n  "), mismatches.advice());
}

}  // namespace trireme::train
