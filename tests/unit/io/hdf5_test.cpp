// SPDX-License-Identifier: Apache-2.0
//
// The HDF5 wrapper: written data are read back; files of other programs are read; links to other
// files and impossible extents are refused.

#include "trireme/io/hdf5/hdf5.hpp"

#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::io {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

// Creates a file through HDF5's C interface, as another program would.
hid_t create_with_hdf5(const std::string& path) {
  return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
}

template <class T>
void put_attribute(hid_t owner, const char* name, hid_t type, const T& value) {
  const hid_t space = H5Screate(H5S_SCALAR),
              attribute = H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  ASSERT_GE(H5Awrite(attribute, type, &value), 0);
  H5Aclose(attribute);
  H5Sclose(space);
}

TEST(Hdf5, WritesAndReadsBackDatasetsAndAttributes) {
  const test::ScratchFolder folder;
  const std::string path = folder / "own.h5";
  std::vector<float> values(3 * 4 * 5);
  std::iota(values.begin(), values.end(), 0.5f);
  const std::int64_t shape[3] = {3, 4, 5};
  std::int64_t offset = 0;
  {
    Hdf5File file = Hdf5File::create(path, {.user_block_bytes = 65536, .alignment = 4096});
    {
      Hdf5Dataset dataset =
          file.create_dataset("model/layer1.0.weight", Hdf5Number::float32, shape);
      const std::int64_t first[3] = {0, 0, 0}, upper[3] = {1, 4, 5}, second[3] = {1, 0, 0},
                         lower[3] = {2, 4, 5}, nothing[3] = {0, 4, 5};
      dataset.write(second, lower, Hdf5Number::float32, values.data() + 20);
      dataset.write(first, upper, Hdf5Number::float32, values.data());
      dataset.write(first, nothing, Hdf5Number::float32, nullptr);
      offset = dataset.offset();
    }
    file.create_group("state/inner");
    file.create_group("state");
    file.write_attribute("state", "seed", std::numeric_limits<std::uint64_t>::max());
    file.write_attribute("state", "step", std::int64_t{-7});
    file.write_attribute("state", "best", 0.25);
    file.write_attribute("state", "deck",
                         std::string(100'000, 'd'));  // more than the 64 KiB of an object header
    file.write_attribute("state", "step", std::int64_t{12});
    file.write_strings("classes", {"T-shirt/top", "", "Bag"});
    file.close();
  }
  const Hdf5Reader reader(index_own_hdf5(path));
  const Hdf5Index& file = reader.index();
  EXPECT_EQ(file.list_datasets("/"),
            (std::vector<std::string>{"classes", "model/layer1.0.weight"}));
  EXPECT_EQ(file.list_datasets("/model"), (std::vector<std::string>{"model/layer1.0.weight"}));
  EXPECT_EQ(file.attribute_uint("state", "seed"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(file.attribute_int("state", "step"), 12);
  EXPECT_EQ(file.attribute_double("state", "best"), 0.25);
  EXPECT_EQ(file.attribute_string("state", "deck"), std::string(100'000, 'd'));
  EXPECT_EQ(file.attributes("state").size(), 4u);
  EXPECT_EQ(file.strings("classes"), (std::vector<std::string>{"T-shirt/top", "", "Bag"}));
  EXPECT_FALSE(file.attribute("state", "none").has_value());
  EXPECT_THAT([&] { file.attribute_int("state", "best"); },
              ThrowsMessage<InputError>(HasSubstr("attribute best of state")));
  EXPECT_THAT([&] { file.dataset("model/none"); },
              ThrowsMessage<InputError>(HasSubstr("model/none is missing")));

  const StoredDataset& dataset = file.dataset("/model/layer1.0.weight");
  EXPECT_EQ(dataset.shape, (std::vector<std::int64_t>{3, 4, 5}));
  EXPECT_TRUE(dataset.native_order);
  std::vector<float> all(values.size()), part(2 * 5);
  reader.read(dataset, Hdf5Number::float32, all.data());
  EXPECT_EQ(all, values);
  const std::int64_t start[3] = {1, 1, 0}, count[3] = {1, 2, 5};
  reader.read(dataset, start, count, Hdf5Number::float32, part.data());
  EXPECT_THAT(part, ElementsAreArray(&values[25], part.size()));
  const std::int64_t beyond[3] = {2, 0, 0};
  EXPECT_THROW(reader.read(dataset, beyond, shape, Hdf5Number::float32, all.data()), InputError);

  // The offset reported at creation and at reading is the position of the bytes, including the user
  // block.
  EXPECT_EQ(dataset.offset, offset);
  EXPECT_GE(offset, 65536);
  std::vector<float> raw(values.size());
  File(path, File::Mode::read)
      .read_at(offset, raw.data(), static_cast<std::int64_t>(raw.size() * sizeof(float)));
  EXPECT_EQ(raw, values);
}

TEST(Hdf5, AUnionOfBoxesIsTransferredInRowMajorOrder) {
  const test::ScratchFolder folder;
  const std::int64_t shape[2] = {4, 7};
  // One rank writes columns 1, 2 and 4..6 of rows 1..3, another the remaining elements. The boxes
  // are listed in arbitrary order.
  const std::vector<Hdf5Box> mine{{{1, 4}, {3, 3}}, {{1, 1}, {3, 2}}},
      others{{{0, 0}, {1, 7}}, {{1, 0}, {3, 1}}, {{1, 3}, {3, 1}}}, empty{{{2, 2}, {0, 3}}};
  std::vector<float> part(15), rest(13), all(28), expected(28), again(15);
  std::iota(part.begin(), part.end(), 100.0f);
  std::iota(rest.begin(), rest.end(), 1.0f);
  for (std::size_t i = 0, in_part = 0, in_rest = 0; i < 28; ++i) {
    const std::size_t row = i / 7, column = i % 7;
    const bool is_mine = row > 0 && (column == 1 || column == 2 || column >= 4);
    expected[i] = is_mine ? part[in_part++] : rest[in_rest++];
  }
  {
    Hdf5File file = Hdf5File::create(folder / "boxes.h5", {});
    Hdf5Dataset dataset = file.create_dataset("a", Hdf5Number::float32, shape);
    dataset.write(mine, Hdf5Number::float32, part.data());
    dataset.write(others, Hdf5Number::float32, rest.data());
    dataset.write(empty, Hdf5Number::float32, nullptr);
    dataset.write(std::span<const Hdf5Box>(), Hdf5Number::float32, nullptr);
  }
  const Hdf5Reader reader(index_own_hdf5(folder / "boxes.h5"));
  const StoredDataset& dataset = reader.index().dataset("a");
  reader.read(dataset, Hdf5Number::float32, all.data());
  EXPECT_EQ(all, expected);
  reader.read(dataset, mine, Hdf5Number::float32, again.data());
  EXPECT_EQ(again, part);
  reader.read(dataset, empty, Hdf5Number::float32, nullptr);
  reader.read(dataset, std::span<const Hdf5Box>(), Hdf5Number::float32, nullptr);
  const std::vector<Hdf5Box> beyond{{{0, 0}, {1, 1}}, {{3, 6}, {1, 2}}};
  EXPECT_THROW(reader.read(dataset, beyond, Hdf5Number::float32, all.data()), InputError);
}

TEST(Hdf5, LargeDatasetsBeginWhereTheAlignmentSays) {
  const test::ScratchFolder folder;
  Hdf5File file =
      Hdf5File::create(folder / "aligned.h5", {.user_block_bytes = 0, .alignment = 4096});
  const std::int64_t small[1] = {100}, large[1] = {5000};
  file.create_dataset("small", Hdf5Number::uint8, small);
  EXPECT_EQ(file.create_dataset("large", Hdf5Number::uint8, large).offset() % 4096, 0);
}

TEST(Hdf5, ReadsAttributesOfAnyWidth) {
  const test::ScratchFolder folder;
  const std::string path = folder / "foreign.h5";
  const hid_t made = create_with_hdf5(path);
  put_attribute(made, "byte", H5T_NATIVE_INT8, std::int8_t{-3});
  put_attribute(made, "unsigned16", H5T_NATIVE_UINT16, std::uint16_t{65535});
  put_attribute(made, "big_endian", H5T_STD_I32BE, std::int32_t{__builtin_bswap32(77)});
  put_attribute(made, "single", H5T_NATIVE_FLOAT, 1.5f);
  const hid_t fixed = H5Tcopy(H5T_C_S1);
  H5Tset_size(fixed, 6);
  put_attribute(made, "fixed", fixed, "images");  // fills all six bytes, without a terminating zero
  const hid_t variable = H5Tcopy(H5T_C_S1);
  H5Tset_size(variable, H5T_VARIABLE);
  const char* text = "tokens";
  put_attribute(made, "variable", variable, text);
  const hid_t boolean = H5Tenum_create(H5T_NATIVE_INT8);
  const std::int8_t no = 0, yes = 1;
  H5Tenum_insert(boolean, "FALSE", &no);
  H5Tenum_insert(boolean, "TRUE", &yes);
  put_attribute(made, "bool", boolean, yes);
  const hsize_t two = 2;
  const hid_t pair = H5Screate_simple(1, &two, nullptr),
              list = H5Acreate2(made, "pair", H5T_NATIVE_INT, pair, H5P_DEFAULT, H5P_DEFAULT);
  const int numbers[2] = {1, 2};
  H5Awrite(list, H5T_NATIVE_INT, numbers);
  H5Aclose(list);
  H5Sclose(pair);
  for (const hid_t type : {fixed, variable, boolean}) H5Tclose(type);
  H5Fclose(made);

  const Hdf5Index file = index_own_hdf5(path);
  EXPECT_EQ(file.attribute_int("/", "byte"), -3);
  EXPECT_EQ(file.attribute_int("/", "unsigned16"), 65535);
  EXPECT_EQ(file.attribute_int("/", "big_endian"), 77);
  EXPECT_EQ(file.attribute_double("/", "single"), 1.5);
  EXPECT_EQ(file.attribute_double("/", "byte"), -3.0);
  EXPECT_EQ(file.attribute_string("/", "fixed"), "images");
  EXPECT_EQ(file.attribute_string("/", "variable"), "tokens");
  EXPECT_EQ(file.attribute_int("/", "bool"), 1);
  EXPECT_THAT([&] { file.attribute_int("/", "pair"); },
              ThrowsMessage<InputError>(HasSubstr("2 values")));
  EXPECT_THROW(file.attribute_uint("/", "byte"), InputError);
}

struct UntrustedFileTest : testing::Test {
  void SetUp() override {
    replace_file(folder / "secret", std::string(4096, 's'));
    const hid_t other = create_with_hdf5(folder / "other.h5");
    H5Gclose(H5Gcreate2(other, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(other);
    made = create_with_hdf5(path);
  }
  // Adds a dataset of bytes with this layout.
  void put_bytes(const char* name, std::vector<hsize_t> shape, hid_t layout, bool write) {
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t groups = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(groups, 1);
    const hid_t dataset =
        H5Dcreate2(made, name, H5T_NATIVE_UINT8, space, groups, layout, H5P_DEFAULT);
    H5Pclose(groups);
    ASSERT_GE(dataset, 0);
    if (write) {
      const std::vector<std::uint8_t> bytes(16, 9);
      const hsize_t start[1] = {0}, count[1] = {16};
      const hid_t memory = H5Screate_simple(1, count, nullptr);
      H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr);
      ASSERT_GE(H5Dwrite(dataset, H5T_NATIVE_UINT8, memory, space, H5P_DEFAULT, bytes.data()), 0);
      H5Sclose(memory);
    }
    H5Dclose(dataset);
    H5Sclose(space);
  }
  std::string refusal(const std::string& object) {
    if (made >= 0) H5Fclose(made);
    made = -1;
    return message_of<InputError>([&] { index_hdf5(path).dataset(object); });
  }
  /// Returns why the file is none that this program has written.
  std::string refusal_as_own() {
    return message_of<InputError>([&] { index_hdf5(path).refuse_places_outside(); });
  }

  test::ScratchFolder folder;
  std::string path = folder / "stranger.h5";
  hid_t made = -1;
};

TEST_F(UntrustedFileTest, LinksIntoAnotherFileAreNotFollowed) {
  put_bytes("plain", {16}, H5P_DEFAULT, true);
  H5Lcreate_external((folder / "other.h5").c_str(), "/group", made, "outside", H5P_DEFAULT,
                     H5P_DEFAULT);
  H5Lcreate_soft("/outside", made, "soft", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_EQ(refusal("plain"), "");
  for (const char* name : {"outside", "soft", "outside/x", "soft/x"})
    EXPECT_THAT(refusal(name), HasSubstr(": is a link into another file")) << name;
  EXPECT_THAT(refusal_as_own(), HasSubstr("/outside: is a link into another file"));
  EXPECT_EQ(index_hdf5(path).list_datasets("/"),
            (std::vector<std::string>{"outside", "plain", "soft"}));
}

TEST_F(UntrustedFileTest, SoftLinksAreFollowedWithinTheFile) {
  put_bytes("group/plain", {16}, H5P_DEFAULT, true);
  H5Lcreate_soft("/group", made, "alias", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("plain", made, "group/inside", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("/circle", made, "circle", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("/nowhere", made, "dangling", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_EQ(refusal("group/inside"), "");
  EXPECT_EQ(refusal("alias/inside"), "");
  EXPECT_THAT(refusal("circle"), HasSubstr("circle"));
  EXPECT_THAT(refusal("dangling"), HasSubstr("dangling is missing"));
  EXPECT_EQ(index_hdf5(path).list_datasets("alias"),
            (std::vector<std::string>{"alias/inside", "alias/plain"}));
}

TEST_F(UntrustedFileTest, ManyLinksAreNotFollowedWithoutEnd) {
  // Each of them follows ten of the next: 10^11 steps.
  put_bytes("group/plain", {16}, H5P_DEFAULT, true);
  for (int link = 1; link < 12; ++link) {
    std::string target;
    for (int i = 0; i < 10; ++i) target += "/l" + std::to_string(link + 1);
    H5Lcreate_soft(target.c_str(), made, ("l" + std::to_string(link)).c_str(), H5P_DEFAULT,
                   H5P_DEFAULT);
  }
  H5Lcreate_soft("/", made, "l12", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_THAT(refusal("l1"), HasSubstr("more than 16"));
}

TEST_F(UntrustedFileTest, ExternalStorageIsRefused) {
  const hid_t external = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(external, (folder / "secret").c_str(), 0, 4096);
  put_bytes("plain", {16}, H5P_DEFAULT, true);
  put_bytes("external", {4096}, external, false);
  H5Pclose(external);
  EXPECT_EQ(refusal("plain"), "");
  EXPECT_THAT(refusal("external"), HasSubstr("external storage"));
  EXPECT_THAT(refusal_as_own(), HasSubstr("external storage"));
}

TEST_F(UntrustedFileTest, VirtualDatasetsAreRefused) {
  const hid_t virtual_layout = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t count = 16;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  H5Pset_virtual(virtual_layout, space, (folder / "other.h5").c_str(), "/data", space);
  put_bytes("plain", {16}, H5P_DEFAULT, true);
  put_bytes("virtual", {16}, virtual_layout, false);
  H5Sclose(space);
  H5Pclose(virtual_layout);
  EXPECT_EQ(refusal("plain"), "");
  EXPECT_THAT(refusal("virtual"), HasSubstr("virtual dataset"));
  EXPECT_THAT(refusal_as_own(), HasSubstr("virtual dataset"));
}

TEST_F(UntrustedFileTest, ExtentsBeyondTheFileAreRefusedBeforeAllocation) {
  const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk[1] = {16};
  H5Pset_chunk(chunked, 1, chunk);
  put_bytes("sparse", {hsize_t{1} << 50}, chunked, true);
  put_bytes("unwritten", {16}, H5P_DEFAULT, false);
  const hid_t pair = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t pair_chunk[2] = {16, 16};
  H5Pset_chunk(pair, 2, pair_chunk);
  put_bytes("overflowing", {hsize_t{1} << 40, hsize_t{1} << 40}, pair, false);
  H5Pclose(chunked);
  H5Pclose(pair);
  EXPECT_THAT(refusal("sparse"), HasSubstr("cannot hold"));
  EXPECT_THAT(refusal("unwritten"), HasSubstr("never written"));
  EXPECT_THAT(refusal("overflowing"), HasSubstr("exceed 2^63 - 1 bytes"));
}

TEST(UserBlock, HoldsNoDataAndIsNotReadForDataThatWereNeverWritten) {
  const test::ScratchFolder folder;
  const std::string path = folder / "block.h5";
  for (const hsize_t block : {512, 4096}) {
    const hid_t creation = H5Pcreate(H5P_FILE_CREATE), chunked = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_userblock(creation, block);
    const hsize_t count = 16, chunk = 4;
    H5Pset_chunk(chunked, 1, &chunk);
    const hid_t made = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    for (const auto& [name, layout] :
         {std::pair("contiguous", hid_t{H5P_DEFAULT}), std::pair("chunked", chunked)})
      H5Dclose(H5Dcreate2(made, name, H5T_NATIVE_UINT8, space, H5P_DEFAULT, layout, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(chunked);
    H5Pclose(creation);
    H5Fclose(made);
    const auto refusal = [&](const char* name) {
      return message_of<InputError>([&] { index_hdf5(path).dataset(name); });
    };
    EXPECT_THAT(refusal("contiguous"), HasSubstr("/contiguous: was created but never written"));
    EXPECT_THAT(refusal("chunked"), HasSubstr("never written"));
    // An address below 0 leads into the user block: version 3, contiguous, address, 16 bytes.
    std::string bytes = read_text_file(path);
    const std::string unwritten = std::string("\x03\x01", 2) + std::string(8, '\xff') + '\x10';
    const std::size_t place = bytes.find(unwritten);
    ASSERT_NE(place, std::string::npos);
    bytes[place + 2] = '\x80';
    replace_file(path, bytes);
    EXPECT_NE(refusal("contiguous"), "");
  }
}

TEST_F(UntrustedFileTest, LyingAndShortenedContiguousDataAreRefused) {
  constexpr std::uint64_t unusual = 123'457;
  put_bytes("data", {unusual}, H5P_DEFAULT, true);
  H5Fclose(made);
  made = -1;
  std::string bytes = read_text_file(path);
  std::uint64_t larger = std::uint64_t{1} << 45;
  int places = 0;
  for (std::size_t i = 0; i + sizeof larger <= bytes.size(); ++i) {
    std::uint64_t found = 0;
    std::memcpy(&found, bytes.data() + i, sizeof found);
    if (found != unusual) continue;
    std::memcpy(bytes.data() + i, &larger, sizeof larger);
    ++places;
  }
  ASSERT_GT(places, 0);
  const std::string whole = read_text_file(path);
  replace_file(path, bytes);
  EXPECT_FALSE(refusal("data").empty());
  replace_file(path, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refusal("data"), HasSubstr("stranger.h5"));
  replace_file(path, "not HDF5 at all");
  EXPECT_THAT(refusal("data"), HasSubstr("not an HDF5 file"));
  std::filesystem::remove(path);
  EXPECT_THAT(refusal("data"), HasSubstr("No such file"));
}

}  // namespace
}  // namespace trireme::io
