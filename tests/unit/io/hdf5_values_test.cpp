// SPDX-License-Identifier: Apache-2.0
//
// Values are read as HDF5 reads them, whatever their storage, type and byte order.
#include "trireme/io/hdf5/hdf5_values.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/io/file_pool.hpp"

namespace trireme::io {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Storage {
  const char* name;
  bool compact = false;
  std::vector<hsize_t> chunk{};
  bool shuffle = false, deflate = false;
  hsize_t user_block = 0;
  bool latest_format = false, resizable = false;
};

/// Writes a dataset "x" of random numbers with HDF5, and opens the file to read it back.
class Written {
 public:
  Written(const std::string& path, const Storage& storage, hid_t type,
          const std::vector<hsize_t>& shape) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE),
                layout = H5Pcreate(H5P_DATASET_CREATE);
    if (storage.latest_format) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    if (storage.user_block > 0) H5Pset_userblock(creation, storage.user_block);
    if (storage.compact) H5Pset_layout(layout, H5D_COMPACT);
    const int rank = static_cast<int>(shape.size());
    if (!storage.chunk.empty()) H5Pset_chunk(layout, rank, storage.chunk.data());
    if (storage.shuffle) H5Pset_shuffle(layout);
    if (storage.deflate) H5Pset_deflate(layout, 4);
    const std::vector<hsize_t> unlimited(shape.size(), H5S_UNLIMITED);
    file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
    const hid_t space =
        shape.empty()
            ? H5Screate(H5S_SCALAR)
            : H5Screate_simple(rank, shape.data(), storage.resizable ? unlimited.data() : nullptr);
    dataset_ = H5Dcreate2(file_, "x", type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    EXPECT_GE(dataset_, 0) << storage.name;
    std::size_t elements = 1;
    for (const hsize_t extent : shape) elements *= extent;
    std::vector<std::uint8_t> bytes(elements * H5Tget_size(type));
    const std::uint64_t key = random_key(11, "stored values");
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(philox(key, i / 3, 0).word[0]);  // can be compressed
    EXPECT_GE(H5Dwrite(dataset_, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), 0);
    for (const hid_t list : {access, creation, layout}) H5Pclose(list);
    H5Sclose(space);
    H5Dclose(dataset_);
    H5Fclose(file_);
    file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    dataset_ = H5Dopen2(file_, "x", H5P_DEFAULT);
    EXPECT_GE(dataset_, 0) << storage.name;
  }
  ~Written() {
    H5Dclose(dataset_);
    H5Fclose(file_);
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  /// Reads the union of boxes with HDF5.
  template <class T>
  std::vector<T> read(const std::vector<Hdf5Box>& boxes, hid_t memory) const {
    const hid_t space = H5Dget_space(dataset_);
    if (H5Sget_simple_extent_ndims(space) > 0) {
      H5Sselect_none(space);
      for (const Hdf5Box& box : boxes) {
        const std::vector<hsize_t> start(box.start.begin(), box.start.end()),
            count(box.count.begin(), box.count.end());
        H5Sselect_hyperslab(space, H5S_SELECT_OR, start.data(), nullptr, count.data(), nullptr);
      }
    }
    const hsize_t elements = static_cast<hsize_t>(H5Sget_select_npoints(space));
    const hid_t in_memory = H5Screate_simple(1, &elements, nullptr);
    std::vector<T> values(elements);
    EXPECT_GE(H5Dread(dataset_, memory, in_memory, space, H5P_DEFAULT, values.data()), 0);
    H5Sclose(in_memory);
    H5Sclose(space);
    return values;
  }

 private:
  hid_t file_ = -1, dataset_ = -1;
};

std::int64_t elements_of(const std::vector<Hdf5Box>& boxes) {
  std::int64_t elements = 0;
  for (const Hdf5Box& box : boxes) elements += box.elements();
  return elements;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

const std::vector<Storage> storages{
    {.name = "contiguous"},
    {.name = "contiguous behind a user block", .user_block = 4096},
    {.name = "compact", .compact = true},
    {.name = "chunks", .chunk = {4, 3, 5}},
    {.name = "one chunk", .chunk = {11, 7, 9}, .deflate = true},
    {.name = "wide chunks", .chunk = {2, 7, 9}, .shuffle = true, .deflate = true},
    {.name = "deflate", .chunk = {4, 3, 5}, .deflate = true},
    {.name = "shuffle", .chunk = {4, 3, 5}, .shuffle = true},
    {.name = "shuffle and deflate", .chunk = {3, 7, 2}, .shuffle = true, .deflate = true},
    {.name = "deflate behind a user block", .chunk = {4, 3, 5}, .deflate = true, .user_block = 512},
    {.name = "fixed array", .chunk = {4, 3, 5}, .deflate = true, .latest_format = true},
    {.name = "single chunk", .chunk = {11, 7, 9}, .deflate = true, .latest_format = true},
    {.name = "B-tree", .chunk = {4, 3, 5}, .latest_format = true, .resizable = true},
};

TEST(StoredValues, BoxesAreReadAsHdf5ReadsThemFromEveryStorage) {
  const std::vector<hsize_t> shape{11, 7, 9};
  const std::uint64_t key = random_key(5, "boxes");
  std::uint64_t draws = 0;
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(philox(key, draws++, 0).word[0] %
                                     static_cast<std::uint64_t>(limit));
  };
  for (const Storage& storage : storages) {
    const test::ScratchFolder folder;
    const Written written(folder / "x.h5", storage, H5T_STD_I32LE, shape);
    const Hdf5Reader reader(index_own_hdf5(folder / "x.h5"));
    const StoredDataset& stored = reader.index().dataset("x");
    for (int round = 0; round < 100; ++round) {
      // Boxes side by side in the last dimension, in any order.
      Hdf5Box left{{below(11), below(7), 0}, {0, 0, 0}};
      left.count = {1 + below(11 - left.start[0]), 1 + below(7 - left.start[1]), 1 + below(9)};
      std::vector<Hdf5Box> boxes{left};
      const std::int64_t next = left.count[2] + below(3);
      if (next < 9) {
        Hdf5Box right = left;
        right.start[2] = next;
        right.count[2] = 9 - next;
        boxes.insert(boxes.begin() + below(2), right);
      }
      std::vector<std::int32_t> values(static_cast<std::size_t>(elements_of(boxes)));
      reader.read(stored, boxes, Hdf5Number::int32, values.data());
      ASSERT_TRUE(same_bits(values, written.read<std::int32_t>(boxes, H5T_NATIVE_INT32)))
          << storage.name;
    }
  }
}

template <class T>
void expect_conversion(Hdf5Number memory, hid_t native, hid_t type, const char* name) {
  const test::ScratchFolder folder;
  const Written written(folder / "x.h5", {.name = name}, type, {2000});
  const Hdf5Reader reader(index_own_hdf5(folder / "x.h5"));
  std::vector<T> values(2000);
  reader.read_all("x", memory, values.data());
  const std::vector<T> expected = written.read<T>({{{0}, {2000}}}, native);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>)
      if (expected[i] != expected[i] && values[i] != values[i]) continue;  // any NaN
    ASSERT_EQ(values[i], expected[i]) << name << " element " << i;
  }
}

TEST(StoredValues, NumbersAreConvertedAsHdf5ConvertsThem) {
  for (const auto& [type, name] :
       {std::pair(H5T_STD_I8LE, "int8"), std::pair(H5T_STD_U8BE, "uint8"),
        std::pair(H5T_STD_I16BE, "int16, big-endian"), std::pair(H5T_STD_U16LE, "uint16"),
        std::pair(H5T_STD_I32BE, "int32, big-endian"),
        std::pair(H5T_STD_U32BE, "uint32, big-endian"), std::pair(H5T_STD_I64LE, "int64"),
        std::pair(H5T_STD_U64BE, "uint64, big-endian")}) {
    expect_conversion<std::uint8_t>(Hdf5Number::uint8, H5T_NATIVE_UINT8, type, name);
    // HDF5 does not clamp where only byte order and sign differ.
    if (type != H5T_STD_U32BE)
      expect_conversion<std::int32_t>(Hdf5Number::int32, H5T_NATIVE_INT32, type, name);
    if (type != H5T_STD_U64BE)
      expect_conversion<std::int64_t>(Hdf5Number::int64, H5T_NATIVE_INT64, type, name);
    expect_conversion<std::uint64_t>(Hdf5Number::uint64, H5T_NATIVE_UINT64, type, name);
    expect_conversion<double>(Hdf5Number::float64, H5T_NATIVE_DOUBLE, type, name);
  }
  const hid_t half = H5Tcopy(H5T_IEEE_F32LE), half_swapped = H5Tcopy(H5T_IEEE_F32BE);
  for (const hid_t type : {half, half_swapped}) {
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
  }
  for (const auto& [type, name] :
       {std::pair(H5T_IEEE_F32LE, "float32"), std::pair(H5T_IEEE_F32BE, "float32, big-endian"),
        std::pair(H5T_IEEE_F64LE, "float64"), std::pair(H5T_IEEE_F64BE, "float64, big-endian"),
        std::pair(half, "float16"), std::pair(half_swapped, "float16, big-endian")}) {
    expect_conversion<float>(Hdf5Number::float32, H5T_NATIVE_FLOAT, type, name);
    expect_conversion<double>(Hdf5Number::float64, H5T_NATIVE_DOUBLE, type, name);
  }
  H5Tclose(half);
  H5Tclose(half_swapped);
}

TEST(StoredValues, AScalarIsReadAndADatasetWithoutElementsToo) {
  const test::ScratchFolder folder;
  const Written written(folder / "x.h5", {.name = "scalar"}, H5T_STD_I32LE, {});
  const Hdf5Reader reader(index_own_hdf5(folder / "x.h5"));
  std::int32_t value = 0;
  reader.read_all("x", Hdf5Number::int32, &value);
  EXPECT_EQ(value, written.read<std::int32_t>({}, H5T_NATIVE_INT32).at(0));
  const Written nothing(folder / "y.h5", {.name = "nothing"}, H5T_STD_I32LE, {0, 3});
  Hdf5Reader(index_own_hdf5(folder / "y.h5")).read_all("x", Hdf5Number::int32, nullptr);
}

TEST(StoredValues, ADamagedChunkIsAnErrorThatNamesIt) {
  const test::ScratchFolder folder;
  const std::string path = folder / "x.h5";
  {
    const Written written(path, {.name = "deflate", .chunk = {50}, .deflate = true}, H5T_STD_I32LE,
                          {100});
  }
  const Hdf5Reader reader(index_own_hdf5(path));
  const StoredDataset& stored = reader.index().dataset("x");
  const std::int32_t zeros[4] = {};
  File(path, File::Mode::update).write_at(stored.chunks[1].offset, zeros, sizeof zeros);
  std::vector<std::int32_t> values(100);
  const std::int64_t first[1] = {0}, half[1] = {50};
  reader.read(stored, first, half, Hdf5Number::int32, values.data());
  EXPECT_THAT(
      [&] { reader.read(stored, Hdf5Number::int32, values.data()); },
      ThrowsMessage<InputError>(HasSubstr("x.h5: /x: chunk 2 does not unpack to 200 bytes")));
}

TEST(FilePool, KeepsTheMostRecentFilesOpen) {
  const test::ScratchFolder folder;
  for (const char* name : {"a", "b", "c"}) replace_file(folder / name, name);
  FilePool pool(2);
  const auto a = pool.open(folder / "a"), b = pool.open(folder / "b");
  EXPECT_EQ(pool.open(folder / "a"), a);
  const auto c = pool.open(folder / "c");  // closes b, which is held here
  EXPECT_EQ(pool.open(folder / "a"), a);
  EXPECT_EQ(pool.open(folder / "c"), c);
  EXPECT_NE(pool.open(folder / "b"), b);
  char letter = 0;
  b->read_at(0, &letter, 1);
  EXPECT_EQ(letter, 'b');
  EXPECT_THROW(pool.open(folder / "none"), InputError);
  EXPECT_NE(pool.open(folder / "b"), nullptr);
}

}  // namespace
}  // namespace trireme::io
