#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi.hpp"
#include "trireme/io/file.hpp"
#include "unit/checkpoint/example.hpp"

// What ranks hold of small models, and how files and values are compared: for the tests of
// checkpoints by several ranks.

namespace trireme::checkpoint {

inline const comm::Communicator& world() { return test_environment().world(); }

/// Which rows this rank holds: equal shares, or in turns all of a tensor.
enum class Split { rows, tensors };

inline std::vector<TensorSlice> share_of(ExampleModel& example, Split split, int rank, int size) {
  std::vector<TensorSlice> slices = example.slices();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    TensorSlice& piece = slices[i];
    const std::int64_t rows = piece.spec->rows();
    if (split == Split::rows) {
      piece.row_begin = rows * rank / size;
      piece.row_end = rows * (rank + 1) / size;
    } else if (static_cast<int>(i) % size != rank) {
      piece.row_end = 0;
    }
    piece.data += piece.row_begin * piece.spec->row_elements();
  }
  return slices;
}

inline void expect_same(const ExampleModel& read, const ExampleModel& written) {
  for (std::size_t i = 0; i < written.values.size(); ++i)
    EXPECT_EQ(read.values[i], written.values[i]) << written.paths[i];
}

inline ExampleModel blank() {
  ExampleModel example;
  for (std::vector<float>& values : example.values) std::fill(values.begin(), values.end(), -1.0f);
  return example;
}

/// What one rank of data x tensor ranks holds of a small transformer; tensor ranks are neighbours.
struct SplitModel {
  std::vector<parallel::ParameterSpec> specs;
  std::vector<parallel::TensorPartition> parts;
  std::vector<std::vector<float>> values;
  int data_rank, data_size, tensor_rank;

  SplitModel(int rank, int size, int tensor)
      : data_rank(rank / tensor), data_size(size / tensor), tensor_rank(rank % tensor) {
    using Along = parallel::Split::Along;
    const auto add = [&](const std::string& name, const Shape& shape, const parallel::Split& along,
                         parallel::InnerOrder inner = parallel::InnerOrder::plain) {
      specs.push_back({.name = name,
                       .shape = shape,
                       .initializer = {parallel::Initializer::Kind::normal, 1},
                       .inner = inner,
                       .split = along});
      parts.emplace_back(specs.back(), tensor_rank, tensor);
      values.emplace_back(static_cast<std::size_t>(parts.back().elements()));
    };
    add("wte.weight", {13, 7}, {Along::rows});
    add("ln_1.weight", {7}, {});
    add("c_attn.weight", {7, 21}, {Along::columns, {7, 7, 7}});
    add("c_attn.bias", {21}, {Along::columns, {7, 7, 7}});
    add("c_proj.weight", {7, 7}, {Along::rows});
    add("down_proj.weight", {7, 3}, {Along::columns});  // over 4 ranks one of them holds nothing
    add("mlp.bias", {11}, {Along::rows});
    add("patch.weight", {3, 5, 2, 2}, {}, parallel::InnerOrder::channels_last);
  }
  void initialize() {
    for (std::size_t i = 0; i < specs.size(); ++i)
      parallel::initialize_rows(specs[i], parts[i], 1, 0, parts[i].rows(), values[i].data());
  }
  /// For writing: every element is named once, replicated tensors by tensor rank 0. For reading:
  /// all that this rank holds.
  std::vector<TensorSlice> slices(bool share) {
    std::vector<TensorSlice> slices;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::int64_t begin = 0, end = parts[i].rows();
      if (share) {
        begin = end * data_rank / data_size;
        end = end * (data_rank + 1) / data_size;
        if (parts[i].replicated() && tensor_rank > 0) begin = end = 0;
      }
      slices.push_back({"model/" + specs[i].name, &specs[i], begin, end,
                        values[i].data() + begin * parts[i].row_elements(), &parts[i]});
    }
    return slices;
  }
};

inline std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) found.push_back(divisor);
  }
  return found;
}

/// Changes one value of a tensor, and leaves its digest; the seal is not looked at by read().
inline void damage(const std::string& path, const std::vector<float>& values, std::size_t index) {
  if (world().rank() == 0) {
    const std::string bytes = io::read_text_file(path, std::int64_t{1} << 30);
    const auto at = bytes.find(std::string(reinterpret_cast<const char*>(values.data()),
                                           64));  // 16 random values stand in one place
    ASSERT_NE(at, std::string::npos);
    const float other = values[index] + 1;
    io::File(path, io::File::Mode::update)
        .write_at(static_cast<std::int64_t>(at + index * sizeof(float)), &other, sizeof other);
  }
  world().barrier();
}

inline std::string bytes_of(const std::string& path) {
  return io::read_text_file(path, std::int64_t{1} << 30);
}

/// Where two files begin to differ; -1: nowhere.
inline std::int64_t first_difference(const std::string& one, const std::string& other) {
  const std::string a = bytes_of(one), b = bytes_of(other);
  const auto place = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return place.first == a.end() && place.second == b.end() ? -1 : place.first - a.begin();
}

}  // namespace trireme::checkpoint
