// SPDX-License-Identifier: Apache-2.0
//
// Digests of tensors: independent of memory order and partition, equal in memory and file, changed
// by every bit.
#include <cstring>

#include <gtest/gtest.h>

#include "example.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/checkpoint/verify.hpp"

namespace trireme::checkpoint {
namespace {

// The definition of the digest in docs/reference/files.md, over values in file order.
std::uint64_t documented_digest(const std::vector<float>& values) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &values[i], 4);
    sum += mix64(bits + (i + 1) * 0x9E3779B97F4A7C15ull);
  }
  return sum;
}

/// Returns the values of a tensor in file order.
std::vector<float> in_file_order(const parallel::ParameterSpec& spec,
                                 const std::vector<float>& memory) {
  std::vector<float> file;
  for (std::int64_t row = 0; row < spec.rows(); ++row) {
    for (std::int64_t inner = 0; inner < spec.row_elements(); ++inner) {
      file.push_back(memory[static_cast<std::size_t>(row * spec.row_elements() +
                                                     parallel::memory_index(spec, inner))]);
    }
  }
  return file;
}

TEST(Digest, IsTheDocumentedSumForEveryMemoryOrder) {
  const ExampleModel example;
  for (std::size_t i = 0; i < example.specs.size(); ++i) {
    const parallel::ParameterSpec& spec = example.specs[i];
    EXPECT_EQ(digest_rows(spec, parallel::TensorPartition(spec), 0, spec.rows(),
                          example.values[i].data()),
              documented_digest(in_file_order(spec, example.values[i])))
        << spec.name;
  }
}

TEST(Digest, OfRowsAddsUpToTheWhole) {
  const ExampleModel example;
  for (std::size_t i = 0; i < example.specs.size(); ++i) {
    const parallel::ParameterSpec& spec = example.specs[i];
    std::uint64_t sum = 0;
    for (std::int64_t row = 0; row < spec.rows(); ++row)
      sum += digest_rows(spec, parallel::TensorPartition(spec), row, row + 1,
                         example.values[i].data() + row * spec.row_elements());
    EXPECT_EQ(sum, digest_rows(spec, parallel::TensorPartition(spec), 0, spec.rows(),
                               example.values[i].data()))
        << spec.name;
  }
}

TEST(Digest, OfSplitTensorsAddsUpToTheWhole) {
  using Along = parallel::Split::Along;
  const std::vector<std::pair<Shape, parallel::Split>> splits{
      {{7, 5}, {Along::rows}},
      {{7, 5}, {Along::columns}},
      {{4, 11}, {Along::columns, {5, 3, 3}}},
      {{11}, {Along::columns, {5, 3, 3}}},
      {{3, 2, 5}, {Along::rows}}};
  for (const auto& [shape, split] : splits) {
    const parallel::ParameterSpec spec{.name = "split",
                                       .shape = shape,
                                       .initializer = {parallel::Initializer::Kind::normal, 1},
                                       .split = split};
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    parallel::initialize_rows(spec, parallel::TensorPartition(spec), 3, 0, spec.rows(),
                              values.data());
    for (int size = 1; size <= 5; ++size) {
      std::uint64_t sum = 0;
      for (int rank = 0; rank < size; ++rank) {
        const parallel::TensorPartition partition(spec, rank, size);
        std::vector<float> held(static_cast<std::size_t>(partition.elements()));
        parallel::initialize_rows(spec, partition, 3, 0, partition.rows(), held.data());
        const std::int64_t middle = partition.rows() / 2;  // parts of rows must add up too
        sum += digest_rows(spec, partition, 0, middle, held.data()) +
               digest_rows(spec, partition, middle, partition.rows(),
                           held.data() + middle * partition.row_elements());
      }
      EXPECT_EQ(sum, documented_digest(values)) << to_string(shape) << " over " << size;
    }
  }
}

TEST(Digest, SeesEverySwapAndEveryBit) {
  ExampleModel example;
  const parallel::ParameterSpec& spec = example.specs[1];
  std::vector<float>& values = example.values[1];
  const std::uint64_t whole =
      digest_rows(spec, parallel::TensorPartition(spec), 0, spec.rows(), values.data());
  std::swap(values[3], values[4]);
  EXPECT_NE(digest_rows(spec, parallel::TensorPartition(spec), 0, spec.rows(), values.data()),
            whole);
  std::swap(values[3], values[4]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float kept = values[i];
    std::uint32_t bits;
    std::memcpy(&bits, &kept, 4);
    bits ^= 1u << (i % 32);
    std::memcpy(&values[i], &bits, 4);
    EXPECT_NE(digest_rows(spec, parallel::TensorPartition(spec), 0, spec.rows(), values.data()),
              whole);
    values[i] = kept;
  }
}

TEST(Digest, OfTheFileIsThatOfMemoryAndDependsOnNames) {
  const ScratchFolder folder;
  ExampleModel example;
  const WriteReport report =
      write(comm::Communicator(), folder / "a.h5", example.slices(), example_info());
  EXPECT_EQ(combined_digest(compute_digests(io::Hdf5Reader(io::index_own_hdf5(folder / "a.h5")))),
            report.digest);
  EXPECT_EQ(combined_digest(read_contents(folder / "a.h5").tensors), report.digest);
  std::vector<TensorSlice> renamed = example.slices();
  renamed[2].path = "model/fc.offset";
  EXPECT_NE(write(comm::Communicator(), folder / "b.h5", renamed, example_info()).digest,
            report.digest);
}

}  // namespace
}  // namespace trireme::checkpoint
