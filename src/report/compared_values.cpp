// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/compared_values.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "trireme/base/check.hpp"
#include "trireme/base/permutation.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"
#include "trireme/train/scores/prediction_rows.hpp"

namespace trireme::report {
std::optional<ComparedValues> read_compared(const std::string& path, std::int64_t max_pairs) {
  constexpr const char *value_name = "value", *target_name = "target";
  const io::Hdf5Reader file(io::index_hdf5(path));
  const io::Hdf5Index& index = file.index();
  if (!index.has_attribute("/", "format") ||
      index.attribute_string("/", "format") != train::predictions_format ||
      !index.has(value_name) || !index.has(target_name))
    return std::nullopt;
  const io::StoredDataset &value = index.dataset(value_name), &target = index.dataset(target_name);
  const std::vector<std::int64_t>& shape = value.shape;
  validate(value.is_number() && target.is_number() && target.shape == shape && shape.size() > 1 &&
               shape.size() <= 4,
           "{}: /value and /target are not two arrays of numbers of the same extents", path);
  ComparedValues found{.file = std::filesystem::path(path).filename().string(),
                       .split = index.has_attribute("/", "split")
                                    ? printable(index.attribute_string("/", "split"), 20)
                                    : "",
                       .pairs = {}};
  // Values are [samples, parts]; fields [samples, height, width], with parts behind if several.
  const bool has_parts = shape.size() != 3;
  found.parts = has_parts ? shape.back() : 1;
  if (value.elements() == 0) return std::nullopt;
  found.numbers = value.elements() / found.parts;
  const std::int64_t shown = std::min(found.parts, max_compared_parts);
  found.pairs.resize(static_cast<std::size_t>(shown));
  std::vector<double> values(static_cast<std::size_t>(shown)), targets(values.size());
  for (std::int64_t place : spread(found.numbers, max_pairs)) {
    std::vector<std::int64_t> start(shape.size(), 0), count(shape.size(), 1);
    std::size_t dimension = shape.size();
    if (has_parts) count[--dimension] = shown;
    while (dimension-- > 0) {
      start[dimension] = place % shape[dimension];
      place /= shape[dimension];
    }
    file.read(value, start, count, io::Hdf5Number::float64, values.data());
    file.read(target, start, count, io::Hdf5Number::float64, targets.data());
    for (std::size_t part = 0; part < values.size(); ++part)
      if (std::isfinite(values[part]) && std::isfinite(targets[part]))
        found.pairs[part].push_back({targets[part], values[part]});
  }
  return found;
}

}  // namespace trireme::report
