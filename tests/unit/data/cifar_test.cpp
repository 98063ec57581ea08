// SPDX-License-Identifier: Apache-2.0
//
// Files of CIFAR's binary version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Returns a file of CIFAR: `labels` of each record, then pixels of one value.
std::string cifar(int records, int labels, int label, char pixel) {
  std::string file;
  for (int i = 0; i < records; ++i) {
    file.append(static_cast<std::size_t>(labels), static_cast<char>(label));
    file.append(3072, pixel);
  }
  return file;
}

TEST(Cifar, LabelsDecideWhereTheLengthFitsBothVersions) {
  const test::ScratchFolder folder;
  const auto read = [&](const std::string& one, const std::string& two) {
    io::replace_file(folder / "1.bin", one);
    io::replace_file(folder / "2.bin", two);
    return catalog_cifar({folder / "1.bin", folder / "2.bin"});
  };
  const auto expect = [](const ImageCatalog& catalog, const char* version, std::size_t records) {
    EXPECT_EQ(catalog.class_source, version);
    EXPECT_EQ(catalog.entries.size(), records);
  };
  const std::string ten = cifar(3074, 1, 9, '\xc8'), hundred = cifar(3073, 2, 9, '\xc8');
  ASSERT_EQ(ten.size(), hundred.size());
  expect(read(ten, ten), "CIFAR-10", 2 * 3074);
  expect(read(hundred, hundred), "CIFAR-100", 2 * 3073);
  expect(read(hundred, cifar(2, 2, 99, 0)), "CIFAR-100", 3075);
  expect(read(cifar(2, 1, 3, 0), ten), "CIFAR-10", 3076);
  // Dark images can be read as labels.
  const ImageCatalog dark = read(cifar(3073, 2, 5, 0), cifar(3073, 2, 5, 0));
  expect(dark, "CIFAR-10", 2 * 3074);
  EXPECT_THAT(dark.class_warning, HasSubstr("fit CIFAR-10 and CIFAR-100; it is read as CIFAR-10"));
  EXPECT_EQ(read(ten, ten).class_warning, "");
  EXPECT_THAT([&] { read(ten, hundred); }, ThrowsMessage<InputError>(HasSubstr("label 200")));
  EXPECT_THAT([&] { read(cifar(5, 1, 9, 0), cifar(5, 2, 9, 0)); },
              ThrowsMessage<InputError>(HasSubstr("and the other files: no file of records")));
}

}  // namespace
}  // namespace trireme::data
