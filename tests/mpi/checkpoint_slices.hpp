// SPDX-License-Identifier: Apache-2.0
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

// Shared by the tests of checkpoints on several ranks: slices of small models, and comparison of
// files and values.

namespace trireme::checkpoint {

inline const comm::Communicator& world() { return test_environment().world(); }

/// The rows of each rank: equal shares, or all rows of every size-th tensor.
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

/// The part of a small transformer on one of data x tensor ranks. Tensor ranks are adjacent.
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
    // With 4 ranks, one of them stores nothing.
    add("down_proj.weight", {7, 3}, {Along::columns});
    add("mlp.bias", {11}, {Along::rows});
    add("patch.weight", {3, 5, 2, 2}, {}, parallel::InnerOrder::channels_last);
    // HDF5 stores a group of more than eight objects in another form.
    add("ln_2.weight", {7}, {});
    add("c_fc.weight", {7, 9}, {Along::columns});
    add("c_fc.bias", {9}, {Along::columns});
  }
  void initialize() {
    for (std::size_t i = 0; i < specs.size(); ++i)
      parallel::initialize_rows(specs[i], parts[i], 1, 0, parts[i].rows(), values[i].data());
  }
  /// `share`, for writing: every element belongs to one rank, replicated tensors to tensor rank 0.
  /// Otherwise, for reading: everything that this rank stores.
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

/// Changes one value of a tensor in the file but not its digest; read() does not check the seal.
inline void damage(const std::string& path, const std::vector<float>& values, std::size_t index) {
  if (world().rank() == 0) {
    const std::string bytes = io::read_text_file(path, std::int64_t{1} << 30);
    // The first 16 random values (64 bytes) occur once in the file.
    const auto at = bytes.find(std::string(reinterpret_cast<const char*>(values.data()), 64));
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

/// Returns the offset of the first difference between two files; -1 if they are equal.
inline std::int64_t first_difference(const std::string& one, const std::string& other) {
  const std::string a = bytes_of(one), b = bytes_of(other);
  const auto place = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return place.first == a.end() && place.second == b.end() ? -1 : place.first - a.begin();
}

}  // namespace trireme::checkpoint
