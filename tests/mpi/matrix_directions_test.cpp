// SPDX-License-Identifier: Apache-2.0
//
// Directions of matrices that a tensor group of 1 to 4 ranks holds in parts of rows, of columns,
// and of sections of rows: each rank gets its part of the direction of the whole matrix.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "toy_fixture.hpp"
#include "trireme/optim/matrix_directions.hpp"

namespace trireme::optim {
namespace {

using Along = parallel::Split::Along;

parallel::ParameterList split_matrices(int rank, int size) {
  parallel::ParameterList list(rank, size);
  const auto declare = [&](const char* name, const Shape& shape, parallel::MatrixForm form,
                           const parallel::Split& split) {
    list.declare({.name = name, .shape = shape, .form = form, .split = split});
  };
  list.begin_block(0);
  using enum parallel::MatrixForm;
  declare("rows", {12, 30}, out_in, {Along::rows});
  declare("columns", {30, 12}, out_in, {Along::columns});
  declare("sections", {24, 7}, out_in, {Along::rows, {12, 12}});
  declare("columns in sections", {9, 24}, in_out, {Along::columns, {12, 12}});
  declare("uneven", {13, 5}, out_in, {Along::rows});
  declare("replicated", {6, 6}, out_in, {});
  return list;
}

/// A store whose gradient is a function of the place in the file.
struct Matrices {
  Matrices(int rank, int size)
      : options(test::options_of("muon")),
        list(prepared(options, rank, size)),
        layout(list, 1 << 20, DType::float32),
        memory(cpu, "memory", 1 << 20),
        workspace(cpu, "workspace", 1 << 20),
        library(cpu, "library", 1 << 16),
        context(Stream{cpu}, workspace, library),
        store(list, layout, {}, memory, memory) {
    store.initialize(context, 1);
    for (std::size_t tensor = 0; tensor < list.entries().size(); ++tensor)
      for_each_element(tensor, [&](std::int64_t file, float& value) {
        value = static_cast<float>(normal_at(random_key(2, list.entries()[tensor].spec.name),
                                             static_cast<std::uint64_t>(file)));
      });
  }
  static parallel::ParameterList prepared(const OptimizerOptions& options, int rank, int size) {
    parallel::ParameterList list = split_matrices(rank, size);
    prepare(options, list);
    return list;
  }
  /// Calls body(index in the file, value) for each element of this rank.
  template <class Body>
  void for_each_element(std::size_t tensor, const Body& body) const {
    const parallel::ParameterList::Entry& entry = list.entries()[tensor];
    const parallel::TensorPartition& part = entry.partition;
    const std::int64_t offset =
        store.owned().owned_rows({static_cast<std::int32_t>(tensor)}).offset;
    float* const values = store.flat_gradient().as<float>() + offset;
    for (const auto& rows : part.row_segments(0, part.rows()))
      for (const auto& columns : part.segments())
        for (std::int64_t row = 0; row < rows.count; ++row)
          for (std::int64_t column = 0; column < columns.count; ++column)
            body((rows.file + row) * entry.spec.row_elements() + columns.file + column,
                 values[(rows.local + row) * part.row_elements() + columns.local + column]);
  }

  OptimizerOptions options;
  parallel::ParameterList list;
  parallel::FlatLayout layout;
  Arena memory, workspace, library;
  ops::Context context;
  parallel::ParameterStore store;
};

TEST(MatrixDirections, PartsOfATensorGroupAreThoseOfTheWhole) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  Matrices whole(0, 1), parts(world().rank(), world().size());
  MatrixDirections(whole.options, whole.store, {}).replace(whole.context);
  NormScope scope;
  scope.tensor = world();
  scope.engine = &engine;
  MatrixDirections(parts.options, parts.store, scope).replace(parts.context);
  for (std::size_t tensor = 0; tensor < whole.list.entries().size(); ++tensor) {
    const parallel::ParameterSpec& spec = whole.list.entries()[tensor].spec;
    std::vector<float> expected(static_cast<std::size_t>(spec.shape.elements()));
    whole.for_each_element(tensor, [&](std::int64_t file, const float& value) {
      expected[static_cast<std::size_t>(file)] = value;
    });
    std::int64_t count = 0;
    parts.for_each_element(tensor, [&](std::int64_t file, const float& value) {
      // Sections exchange rows, and so the order of sums; errors grow 500 times.
      EXPECT_NEAR(value, expected[static_cast<std::size_t>(file)], 500 * 0x1p-24) << spec.name;
      ++count;
    });
    EXPECT_EQ(count, parts.list.entries()[tensor].partition.elements());
  }
}

}  // namespace
}  // namespace trireme::optim
