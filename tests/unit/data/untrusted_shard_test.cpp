// SPDX-License-Identifier: Apache-2.0
//
// Shards of other programs: every storage and type that h5py can write is read, and files that are
// not shards are refused with a message that names the problem.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "image_set.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/shards/verify.hpp"

namespace trireme::data {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

constexpr std::int64_t samples = 50;

/// A shard written through HDF5's C interface, as h5py does; each member changes one property.
struct UntrustedShard {
  std::string format = "trireme-shard", kind = "images";
  bool variable_strings = true, has_version = true;
  double version = 1;
  std::vector<hsize_t> image_chunk;  // empty: contiguous
  std::vector<hsize_t> image_shape{hsize_t{samples}, 3, 2, 1};
  hid_t image_type = H5T_STD_U8LE, label_type = H5T_STD_I32LE;
  std::int64_t label_shift = 0;
  hsize_t label_count = samples;
  std::vector<std::string> class_attribute;
  std::function<void(hid_t)> after = [](hid_t) {};

  static hid_t text_type(bool variable, std::size_t bytes) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, variable ? H5T_VARIABLE : std::max<std::size_t>(bytes, 1));
    return type;
  }
  void put_text(hid_t owner, const char* name, const std::string& text) const {
    const hid_t type = text_type(variable_strings, text.size()), space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* characters = text.c_str();
    H5Awrite(attribute, type,
             variable_strings ? static_cast<const void*>(&characters) : characters);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
  }
  void put_classes(hid_t owner) const {
    std::vector<const char*> texts;
    for (const std::string& text : class_attribute) texts.push_back(text.c_str());
    const hsize_t count = texts.size();
    const hid_t type = text_type(true, 0), space = H5Screate_simple(1, &count, nullptr);
    const hid_t attribute = H5Acreate2(owner, "classes", type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, texts.data());
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
  }
  void write(const std::string& path) const {
    const ImageSet set(samples);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (!format.empty()) put_text(file, "format", format);
    if (!kind.empty()) put_text(file, "kind", kind);
    if (has_version) {
      const hid_t space = H5Screate(H5S_SCALAR),
                  attribute =
                      H5Acreate2(file, "version", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT);
      H5Awrite(attribute, H5T_NATIVE_DOUBLE, &version);
      H5Aclose(attribute);
      H5Sclose(space);
    }
    if (!class_attribute.empty()) put_classes(file);
    const hid_t layout = H5Pcreate(H5P_DATASET_CREATE);
    if (!image_chunk.empty()) {
      H5Pset_chunk(layout, static_cast<int>(image_chunk.size()), image_chunk.data());
      H5Pset_shuffle(layout);
      H5Pset_deflate(layout, 4);
    }
    const hid_t image_space =
        H5Screate_simple(static_cast<int>(image_shape.size()), image_shape.data(), nullptr);
    const hid_t images =
        H5Dcreate2(file, "images", image_type, image_space, H5P_DEFAULT, layout, H5P_DEFAULT);
    std::vector<std::byte> pixels = set.images;
    const auto values = static_cast<std::size_t>(H5Sget_simple_extent_npoints(image_space));
    pixels.resize(std::max(pixels.size(), values));  // for other shapes
    H5Dwrite(images, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, pixels.data());
    std::vector<std::int64_t> wide;
    for (const std::int32_t label : set.labels) wide.push_back(label + label_shift);
    const hid_t label_space = H5Screate_simple(1, &label_count, nullptr);
    const hid_t labels =
        H5Dcreate2(file, "labels", label_type, label_space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(labels, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, wide.data());
    for (const hid_t dataset : {images, labels}) H5Dclose(dataset);
    for (const hid_t space : {image_space, label_space}) H5Sclose(space);
    H5Pclose(layout);
    after(file);
    H5Fclose(file);
  }
};

std::string refusal(const UntrustedShard& shard) {
  const test::ScratchFolder folder;
  shard.write(folder / "made_by_hand.h5");
  const std::string message = message_of<InputError>([&] { Dataset(folder.path()); });
  EXPECT_THAT(message, AnyOf("", HasSubstr("made_by_hand.h5")));
  return message;
}

void expect_same_samples(const UntrustedShard& shard) {
  const test::ScratchFolder folder;
  shard.write(folder / "made_by_hand.h5");
  const Dataset dataset(folder.path());
  const ImageSet set(samples);
  ASSERT_EQ(dataset.info().samples, samples);
  for (std::int64_t i = 0; i < samples; ++i) {
    // The order differs from that of the chunks.
    const std::int64_t index = i * 7 % samples;
    std::vector<std::byte> image(static_cast<std::size_t>(set.sample_bytes()));
    std::int32_t label = -1;
    dataset.read(index, image.data(), &label);
    EXPECT_TRUE(std::equal(image.begin(), image.end(), set.image(index).begin())) << index;
    EXPECT_EQ(label, set.labels[static_cast<std::size_t>(index)]);
  }
  EXPECT_EQ(verify_shard(folder / "made_by_hand.h5"), "no checksums");
}

TEST(UntrustedShard, IsReadWhateverItsStorageAndTypes) {
  expect_same_samples({});
  UntrustedShard chunked;
  chunked.image_chunk = {8, 3, 2, 1};
  chunked.label_type = H5T_STD_I64LE;
  expect_same_samples(chunked);
  // Chunks as h5py guesses them, which also cut samples, and big-endian labels one byte wider than
  // necessary.
  UntrustedShard split;
  split.image_chunk = {16, 2, 1, 1};
  split.label_type = H5T_STD_U16BE;
  split.variable_strings = false;
  expect_same_samples(split);
  UntrustedShard plain;
  plain.has_version = false;
  plain.kind = "";
  plain.label_type = H5T_STD_U8LE;
  expect_same_samples(plain);
}

/// Reads the set as shards of one type and returns the values of all samples as doubles.
template <class T>
std::vector<double> values_as(const UntrustedShard& shard, DType type) {
  const test::ScratchFolder folder;
  shard.write(folder / "made_by_hand.h5");
  const Dataset dataset(folder.path());
  EXPECT_EQ(dataset.info().pixel_type, type);
  EXPECT_EQ(dataset.sample().dtype, type);
  std::vector<double> values;
  std::vector<T> image(static_cast<std::size_t>(dataset.sample().input.elements()));
  for (std::int64_t i = 0; i < samples; ++i) {
    dataset.read(i, reinterpret_cast<std::byte*>(image.data()), nullptr);
    values.insert(values.end(), image.begin(), image.end());
  }
  EXPECT_EQ(verify_shard(folder / "made_by_hand.h5"), "no checksums");
  return values;
}

TEST(UntrustedShard, PixelsOfEveryTypeStorageAndByteOrderAreRead) {
  std::vector<double> expected;
  for (const std::byte value : ImageSet(samples).images)
    expected.push_back(std::to_integer<int>(value));
  for (const bool chunked : {false, true}) {
    UntrustedShard shard;
    if (chunked) shard.image_chunk = {8, 3, 2, 1};
    for (const hid_t type : {H5T_STD_U16LE, H5T_STD_U16BE}) {
      shard.image_type = type;
      EXPECT_EQ(values_as<std::uint16_t>(shard, DType::uint16), expected);
    }
    for (const hid_t type : {H5T_IEEE_F32LE, H5T_IEEE_F32BE}) {
      shard.image_type = type;
      EXPECT_EQ(values_as<float>(shard, DType::float32), expected);
    }
  }
}

TEST(UntrustedShard, ValuesThatAreNotFiniteAreNamed) {
  for (const float value : {std::numeric_limits<float>::infinity(), -HUGE_VALF, NAN}) {
    UntrustedShard shard;
    shard.image_type = H5T_IEEE_F32LE;
    shard.after = [value](hid_t file) {
      // Images are 3 x 2 x 1: this is row 2, column 1 of sample 7.
      std::vector<float> images(samples * 6, 0.5f);
      images[7 * 6 + 5] = value;
      const hid_t dataset = H5Dopen2(file, "images", H5P_DEFAULT);
      H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, images.data());
      H5Dclose(dataset);
    };
    const test::ScratchFolder folder;
    shard.write(folder / "made_by_hand.h5");
    const Dataset dataset(folder.path());
    std::vector<float> image(6);
    const auto read = [&](std::int64_t sample) {
      return message_of<InputError>(
          [&] { dataset.read(sample, reinterpret_cast<std::byte*>(image.data()), nullptr); });
    };
    EXPECT_EQ(read(6), "");
    for (const std::string& message :
         {read(7), message_of<InputError>([&] { verify_shard(folder / "made_by_hand.h5"); })})
      EXPECT_THAT(message,
                  HasSubstr("made_by_hand.h5: sample 7 has a value that is infinite or NaN (row 2, "
                            "column 1, channel 0)"));
  }
}

TEST(UntrustedShard, TheShardsOfAFolderHaveOneTypeAndOnlyUint8IsScaled) {
  const test::ScratchFolder folder;
  UntrustedShard shard;
  shard.image_type = H5T_STD_U16LE;
  shard.write(folder / "a.h5");
  ImageForm crop{.kind = ImageForm::Kind::random_resized_crop, .size = 2};
  EXPECT_THAT([&] { Dataset(folder.path(), {0, crop}); },
              ThrowsMessage<InputError>(
                  HasSubstr("holds uint16 images, but only uint8 images can be scaled")));
  UntrustedShard().write(folder / "b.h5");
  EXPECT_THAT([&] { Dataset(folder.path()); },
              ThrowsMessage<InputError>(HasSubstr("b.h5: images of uint8 among images of uint16")));
}

TEST(UntrustedShard, ClassesMayBeAnAttribute) {
  const test::ScratchFolder folder;
  UntrustedShard shard;
  shard.class_attribute = {"a", "b", "c", "d", "e", "f"};
  shard.write(folder / "shard.h5");
  EXPECT_EQ(Dataset(folder.path()).info().classes, shard.class_attribute);
  EXPECT_EQ(Dataset(folder.path()).info().target.count, 6);
  shard.class_attribute[3] = "b";
  EXPECT_THAT(refusal(shard), HasSubstr("two classes have the name \"b\""));
  for (const char* name : {"b\n", "b\x7f", "b\xff"}) {
    shard.class_attribute[3] = name;
    EXPECT_THAT(refusal(shard), HasSubstr("has control characters or is not UTF-8")) << name;
  }
  // Beside a dataset it must say the same.
  shard.class_attribute[3] = "d";
  std::vector<const char*> texts;
  for (const std::string& name : shard.class_attribute) texts.push_back(name.c_str());
  shard.after = [&](hid_t file) {
    const hsize_t count = texts.size();
    const hid_t type = UntrustedShard::text_type(true, 0),
                space = H5Screate_simple(1, &count, nullptr),
                dataset =
                    H5Dcreate2(file, "classes", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data());
    H5Dclose(dataset);
    H5Sclose(space);
    H5Tclose(type);
  };
  EXPECT_EQ(refusal(shard), "");
  std::swap(texts[0], texts[1]);
  EXPECT_THAT(refusal(shard), HasSubstr("the dataset /classes and the attribute classes differ"));
}

TEST(UntrustedShard, FormatVersionAndKindAreChecked) {
  UntrustedShard shard;
  shard.format = "";
  EXPECT_THAT(refusal(shard), HasSubstr("format = \"trireme-shard\""));
  shard.format = "trireme-checkpoint";
  EXPECT_THAT(refusal(shard), HasSubstr("has the format \"trireme-checkpoint\""));
  UntrustedShard newer;
  newer.version = 2;
  EXPECT_THAT(refusal(newer), HasSubstr("version 2"));
  UntrustedShard kind;
  kind.kind = "pictures";
  EXPECT_THAT(refusal(kind), HasSubstr("kind = \"pictures\" is unknown"));
  kind.kind = "encoded-images";
  EXPECT_THAT(refusal(kind), HasSubstr("/bytes is missing"));
}

TEST(UntrustedShard, DatasetsOfTheWrongFormAreNamed) {
  UntrustedShard flat;
  flat.image_shape = {hsize_t{samples}, 6};
  EXPECT_THAT(refusal(flat), HasSubstr("/images: has 2 dimensions [50, 6]"));
  UntrustedShard wide;
  wide.image_type = H5T_STD_U32LE;
  EXPECT_THAT(refusal(wide), HasSubstr("images: contains unsigned integers of 32 bits"));
  UntrustedShard negative;
  negative.image_type = H5T_STD_I8LE;
  EXPECT_THAT(refusal(negative), HasSubstr("images: contains signed integers of 8 bits"));
  UntrustedShard real;
  real.image_type = H5T_IEEE_F64LE;
  EXPECT_THAT(refusal(real), HasSubstr("images: contains real numbers of 64 bits"));
  UntrustedShard fewer;
  fewer.label_count = samples - 1;
  EXPECT_THAT(refusal(fewer), HasSubstr("labels: extents [49] do not fit the 50 images"));
  UntrustedShard real_labels;
  real_labels.label_type = H5T_IEEE_F32LE;
  EXPECT_THAT(refusal(real_labels), HasSubstr("labels must be whole numbers"));
  UntrustedShard channels;
  channels.image_shape = {1, 1, 1, 1025};
  channels.label_count = 1;
  EXPECT_THAT(refusal(channels), HasSubstr("1025 channels"));
}

TEST(UntrustedShard, ImagesWithChannelsFirstAreRefusedUnlessTheirLayoutIsNamed) {
  for (const hsize_t height : {hsize_t{1}, hsize_t{2}, hsize_t{3}, hsize_t{4}, hsize_t{13}}) {
    const hsize_t side = height == 13 ? 14 : 8;
    UntrustedShard shard;
    shard.image_shape = {hsize_t{samples}, height, side, side};
    for (const bool chunked : {false, true}) {
      if (chunked) shard.image_chunk = {8, height, side, side};
      const std::string message = refusal(shard);
      EXPECT_THAT(message, HasSubstr("/images: extents [50, "));
      EXPECT_THAT(message, HasSubstr("images = images.transpose(0, 2, 3, 1)"));
    }
  }
  for (const std::vector<hsize_t>& shape : {std::vector<hsize_t>{samples, 3, 5, 4},
                                            {samples, 3, 4, 6},
                                            {samples, 4, 128, 1},  // a thin spectrogram
                                            {samples, 12, 20, 13},
                                            {samples, 8, 8, 13},
                                            {samples, 13, 8, 8}}) {
    UntrustedShard shard;
    shard.image_shape = shape;
    EXPECT_EQ(refusal(shard), "");
  }
}

TEST(UntrustedShard, TheLayoutOfImagesIsObeyed) {
  for (const bool of_root : {false, true}) {
    UntrustedShard shard;
    shard.image_shape = {hsize_t{samples}, 3, 8, 9};
    std::string layout = "hwc";
    shard.after = [&](hid_t file) {
      const hid_t images = H5Dopen2(file, "images", H5P_DEFAULT);
      shard.put_text(of_root ? file : images, "layout", layout);
      H5Dclose(images);
    };
    EXPECT_EQ(refusal(shard), "");
    for (const char* other : {"chw", "nchw", ""}) {
      layout = other;
      EXPECT_THAT(refusal(shard), HasSubstr(fmt::format("layout = \"{}\" is unknown", other)));
    }
  }
}

TEST(UntrustedShard, LabelsThatAreNoClassesAreNamed) {
  UntrustedShard negative;
  negative.label_shift = -1;
  EXPECT_THAT(refusal(negative), HasSubstr("label -1 of sample 0"));
  UntrustedShard large;
  large.label_type = H5T_STD_I64LE;
  large.label_shift = std::int64_t{1} << 40;
  EXPECT_THAT(refusal(large), HasSubstr("is not a class"));
  UntrustedShard past;
  past.class_attribute = {"a", "b"};
  EXPECT_THAT(refusal(past), HasSubstr("labels must be 0 to 1"));
}

TEST(UntrustedShard, ALargeLabelWithoutNamesMakesNoLargeModel) {
  UntrustedShard large;
  large.label_shift = (1 << 16) - 5;  // the largest label is 4
  EXPECT_EQ(refusal(large), "");
  large.label_shift += 1;
  EXPECT_THAT(refusal(large), HasSubstr("label 65536 makes 65537 classes of 50 samples"));
}

TEST(UntrustedShard, DataThatLieElsewhereAreRefused) {
  UntrustedShard linked;
  linked.after = [](hid_t file) {
    H5Ldelete(file, "labels", H5P_DEFAULT);
    H5Lcreate_external("/etc/hostname", "/labels", file, "labels", H5P_DEFAULT, H5P_DEFAULT);
  };
  EXPECT_THAT(refusal(linked), HasSubstr("link into another file"));
  UntrustedShard without;
  without.after = [](hid_t file) { H5Ldelete(file, "labels", H5P_DEFAULT); };
  EXPECT_THAT(refusal(without), HasSubstr("labels is missing"));
  UntrustedShard elsewhere;
  elsewhere.after = [](hid_t file) {
    H5Ldelete(file, "images", H5P_DEFAULT);
    const hsize_t shape[4] = {hsize_t{samples}, 3, 2, 1};
    const hid_t space = H5Screate_simple(4, shape, nullptr), layout = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_virtual(layout, space, "/etc/other.h5", "/images", space);
    H5Dclose(H5Dcreate2(file, "images", H5T_STD_U8LE, space, H5P_DEFAULT, layout, H5P_DEFAULT));
    H5Pclose(layout);
    H5Sclose(space);
  };
  EXPECT_THAT(refusal(elsewhere), HasSubstr("virtual dataset"));
}

}  // namespace
}  // namespace trireme::data
