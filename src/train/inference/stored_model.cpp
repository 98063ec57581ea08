// SPDX-License-Identifier: Apache-2.0
#include "stored_model.hpp"

#include <map>
#include <vector>

#include "trireme/base/check.hpp"

namespace trireme::train {

model::ShapeInFile shapes_in(const checkpoint::Contents& contents, const std::string& path) {
  return [&contents, path](const std::vector<std::string>& names, int rank) -> Shape {
    for (const std::string& name : names)
      for (const checkpoint::Contents::Entry& entry : contents.tensors)
        if (entry.path == "model/" + name && entry.shape.rank() == rank &&
            entry.shape.elements() > 0)
          return entry.shape;
    throw InputError(
        fmt::format("{}: has no tensor {} of {} dimensions, so it does not hold the "
                    "model of its deck",
                    path, names.front(), rank));
  };
}

void validate_shapes(const model::Model& model, const checkpoint::Contents& contents,
                     const std::string& path) {
  std::map<std::string, Shape> stored;
  for (const checkpoint::Contents::Entry& entry : contents.tensors)
    stored[entry.path] = entry.shape;
  for (const parallel::ParameterList::Entry& entry : model.parameters().entries()) {
    const parallel::ParameterSpec& spec = entry.spec;
    const auto found =
        stored.find((spec.role == parallel::Role::weight ? "model/" : "buffers/") + spec.name);
    validate(found != stored.end(), "{}: has no tensor {}, which the model of its deck needs", path,
             spec.name);
    validate(found->second == spec.shape, "{}: {} has shape {}, but the model of its deck needs {}",
             path, spec.name, to_string(found->second), to_string(spec.shape));
  }
}

}  // namespace trireme::train
