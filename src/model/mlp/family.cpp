// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "../families.hpp"

namespace trireme::model {
namespace {

using namespace keys;

constexpr std::int64_t max_extent = 1 << 20;
constexpr std::size_t max_listed_layers = 1024;

/// A list of layer widths, each from 1 to 2^20.
Field extents(std::vector<std::int64_t>& values) {
  const auto read = [&values](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type("an array of integers, as in [512, 256]");
    if (array->size() > max_listed_layers)
      return fmt::format("{} layers are too many; at most {}", array->size(), max_listed_layers);
    std::vector<std::int64_t> list;
    for (const Value& element : *array) {
      const auto integer = element.integer();
      if (!integer)
        return "must contain only integers, as in [512, 256]; here it contains " +
               std::string(element.type_name());
      if (*integer < 1 || *integer > max_extent)
        return fmt::format("{} is out of range; every extent must be at least 1 and at most {}",
                           *integer, max_extent);
      list.push_back(*integer);
    }
    values = std::move(list);
    return "";
  };
  return {read, [&values] { return fmt::format("[{}]", fmt::join(values, ", ")); },
          "list of integers",
          fmt::format("each at least 1 and at most {}; at most {} of them", max_extent,
                      max_listed_layers)};
}

void visit_mlp(Visitor& v, ModelOptions& options) {
  v.field({"widths",
           "mlp: lists the widths of the hidden layers, as in [512, 256]; required.",
           {},
           "give the extents of the hidden layers, as in widths = [512, 256]"},
          extents(options.mlp.widths));
}

}  // namespace

const Family mlp_family{
    .kind = ModelKind::mlp,
    .word = "mlp",
    .input = SampleKind::image,
    .splits_by_tensor = false,
    .generates = false,
    .computes_float8 = false,
    .flattens = true,
    .size_advice = "smaller model.widths",
    .visit = visit_mlp,
    .describe = [](const ModelOptions&) { return std::string("mlp"); },
    .missing_batch_norm = no_batch_norm,
    .broken_joined_norms_rule = no_joined_norms,
    .sizes_in = [](const ModelOptions& options, const ShapeInFile& shape_of) -> FileSizes {
      const std::string last = fmt::format("layers.{}.weight", options.mlp.widths.size());
      return {{1, 1, 1, shape_of({"layers.0.weight"}, 2)[1]}, shape_of({last}, 2)[0]};
    },
    .make = [](const ModelOptions& options, const Shape& input, std::int64_t classes,
               const TensorPlacement&) { return make_mlp(options.mlp, input, classes); }};

}  // namespace trireme::model
