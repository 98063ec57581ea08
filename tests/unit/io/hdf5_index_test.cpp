// SPDX-License-Identifier: Apache-2.0
//
// The index of a file: reports of a child process are untrusted, and a child that crashes, exceeds
// a limit or stands still becomes an error that names the file.
#include "trireme/io/hdf5/hdf5_index.hpp"

#include <numeric>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::io {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

/// A file with a dataset, strings and attributes.
std::string write_example(const std::string& path) {
  Hdf5File file = Hdf5File::create(path, {.user_block_bytes = 512});
  const std::int64_t shape[2] = {3, 4};
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 1.0f);
  file.create_dataset("group/values", Hdf5Number::float32, shape)
      .write_all(Hdf5Number::float32, values.data());
  file.write_strings("classes", {"a", "bb"});
  file.write_attribute("/", "format", std::string("example"));
  file.write_attribute("group", "count", std::int64_t{7});
  file.close();
  return path;
}

/// A file of another program, with every storage and soft links.
std::string write_all_storages(const std::string& path) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
              chunked = H5Pcreate(H5P_DATASET_CREATE), compact = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t shape[2] = {10, 6}, chunk[2] = {4, 5};
  H5Pset_chunk(chunked, 2, chunk);
  H5Pset_shuffle(chunked);
  H5Pset_deflate(chunked, 4);
  H5Pset_layout(compact, H5D_COMPACT);
  const hid_t space = H5Screate_simple(2, shape, nullptr);
  std::vector<std::int32_t> values(60);
  std::iota(values.begin(), values.end(), -7);
  for (const auto& [name, type, layout] :
       {std::tuple("chunked", H5T_STD_I32LE, chunked),
        std::tuple("compact", H5T_STD_I16BE, compact),
        std::tuple("plain", H5T_IEEE_F64BE, hid_t{H5P_DEFAULT})}) {
    const hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(dataset);
  }
  H5Lcreate_soft("/chunked", file, "alias", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("alias", file, "second", H5P_DEFAULT, H5P_DEFAULT);
  H5Sclose(space);
  for (const hid_t list : {chunked, compact}) H5Pclose(list);
  H5Fclose(file);
  return path;
}

/// Reads the values of a dataset, if they are few.
void read(const File& file, const StoredDataset& dataset) {
  constexpr std::int64_t most = 8 << 20;
  if (!dataset.is_number() || dataset.elements() > most) return;
  std::vector<double> values(static_cast<std::size_t>(dataset.elements()));
  read_values(file, dataset, Hdf5Number::float64, values.data());
}

/// Uses everything of an index.
void use(const Hdf5Index& index, const File& file) {
  for (const std::string& path : index.list_datasets("/")) {
    const StoredDataset& dataset = index.dataset(path);
    ASSERT_GE(dataset.elements(), 0);
    if (dataset.offset >= 0) {
      ASSERT_LE(dataset.offset + dataset.bytes(), index.file_bytes());
    }
    for (const Hdf5Chunk& chunk : dataset.chunks)
      ASSERT_LE(chunk.offset + chunk.bytes, index.file_bytes());
    index.attributes(path);
    if (dataset.kind == StoredDataset::Kind::text) index.strings(path);
    read(file, dataset);
  }
}

TEST(Hdf5Index, IsTheSameOnAnotherRank) {
  const test::ScratchFolder folder;
  const Hdf5Index index = index_own_hdf5(write_example(folder / "example.h5"));
  const Hdf5Index other(index.path(), index.file_bytes(), index.report());
  EXPECT_EQ(other.list_datasets("/"), (std::vector<std::string>{"classes", "group/values"}));
  EXPECT_EQ(other.dataset("group/values").offset, index.dataset("group/values").offset);
  EXPECT_EQ(other.attribute_string("/", "format"), "example");
  EXPECT_EQ(other.attribute_int("group", "count"), 7);
  EXPECT_EQ(other.strings("classes"), (std::vector<std::string>{"a", "bb"}));
}

TEST(Hdf5Index, AnyChangedReportIsRefusedOrWithinTheFile) {
  const test::ScratchFolder folder;
  const std::uint64_t key = random_key(3, "reports");
  int refused = 0;
  for (const std::string& path :
       {write_example(folder / "example.h5"), write_all_storages(folder / "storages.h5")}) {
    const Hdf5Index index = index_own_hdf5(path);
    const File file(path, File::Mode::read);
    use(index, file);
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      std::string report = index.report();
      const RandomWords draw = philox(key, i, 0);
      if (draw.word[0] % 8 == 0) report.resize(draw.word[1] % report.size());
      for (std::uint32_t change = 0; change <= draw.word[0] % 3 && !report.empty(); ++change) {
        const RandomWords at = philox(key, i, change + 1);
        report[at.word[0] % report.size()] =
            static_cast<char>(at.word[1] % 4 == 0 ? 0xFF : at.word[2]);
      }
      try {
        use(Hdf5Index(path, index.file_bytes(), report), file);
      } catch (const InputError& error) {
        ++refused;
        ASSERT_THAT(error.what(), HasSubstr(path));
      }
    }
  }
  EXPECT_GT(refused, 10'000);
}

/// Writes a file whose metadata cache is stored as one image in the file.
void write_cache_image(const std::string& path) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  H5AC_cache_image_config_t image{};
  image.version = H5AC__CURR_CACHE_IMAGE_CONFIG_VERSION;
  image.generate_image = true;
  image.entry_ageout = H5AC__CACHE_IMAGE__ENTRY_AGEOUT__NONE;
  ASSERT_GE(H5Pset_mdc_image_config(access, &image), 0);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  ASSERT_GE(file, 0);
  H5Gclose(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Fclose(file);
  H5Pclose(access);
}

TEST(Hdf5Index, AFileWithAMetadataCacheImageIsRefused) {
  const test::ScratchFolder folder;
  write_cache_image(folder / "image.h5");
  if (testing::Test::HasFatalFailure()) return;
  const std::string refusal = message_of<InputError>([&] { index_hdf5(folder / "image.h5"); });
  EXPECT_THAT(refusal, HasSubstr("image.h5: contains a metadata cache image"));
  EXPECT_THAT(refusal, HasSubstr("h5repack"));
}

/// A file with a dataset "x" in chunks of one byte.
void write_chunks(const std::string& path, hsize_t chunks, bool fletcher = false,
                  hsize_t unwritten = 0) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
              layout = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t one = 1;
  H5Pset_chunk(layout, 1, &one);
  if (fletcher) H5Pset_fletcher32(layout);
  const hid_t space = H5Screate_simple(1, &chunks, nullptr);
  const hid_t dataset =
      H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, layout, H5P_DEFAULT);
  const std::vector<std::uint8_t> values(chunks, 1);
  const hsize_t first = unwritten, count = chunks - unwritten;
  const hid_t memory = H5Screate_simple(1, &count, nullptr);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, nullptr, &count, nullptr);
  ASSERT_GE(H5Dwrite(dataset, H5T_NATIVE_UINT8, memory, space, H5P_DEFAULT, values.data()), 0);
  for (const hid_t id : {memory, space}) H5Sclose(id);
  H5Pclose(layout);
  H5Dclose(dataset);
  H5Fclose(file);
}

TEST(Hdf5Index, ChunksThatCannotBeReadAreRefusedWithTheRemedy) {
  const test::ScratchFolder folder;
  const std::string path = folder / "x.h5";
  const auto refusal = [&] {
    return message_of<InputError>([&] { index_hdf5(path).dataset("x"); });
  };
  write_chunks(path, 1000);
  EXPECT_EQ(refusal(), "");
  write_chunks(path, 2'000'001);
  EXPECT_THAT(refusal(),
              HasSubstr("stored in 2000001 chunks; up to 2000000 can be read; `h5repack"));
  write_chunks(path, 10, true);
  EXPECT_THAT(refusal(), HasSubstr("uses the filter 3 (fletcher32)"));
  EXPECT_THAT(refusal(), HasSubstr("h5repack -f NONE"));
  write_chunks(path, 10, false, 4);
  EXPECT_THAT(refusal(), HasSubstr("chunk 1 of 10 was never written"));
}

/// Runs a shell script in place of the child process.
struct ChildProcess : testing::Test {
  void SetUp() override { write_example(path); }
  void TearDown() override { set_hdf5_index_command({}); }
  std::string refusal(const std::string& script, double idle_seconds = 120) {
    set_hdf5_index_command({"/bin/sh", "-c", script, "sh"}, idle_seconds);
    return message_of<InputError>([&] { index_hdf5(path); });
  }

  test::ScratchFolder folder;
  std::string path = folder / "example.h5";
};

TEST_F(ChildProcess, ACrashNamesTheFileAndTheSignal) {
  EXPECT_THAT(refusal("kill -SEGV $$"), HasSubstr("example.h5: HDF5 "));
  EXPECT_THAT(refusal("kill -SEGV $$"), HasSubstr("crashes on this file (Segmentation fault)"));
  EXPECT_THAT(refusal("exit 1"), HasSubstr("crashes on this file"));
}

TEST_F(ChildProcess, ALimitIsNamed) {
  EXPECT_THAT(refusal("exit 2"), HasSubstr("its metadata need more than 149 MiB of memory"));
  EXPECT_THAT(refusal("kill -PROF $$"), HasSubstr("within 4 s of processor time"));
}

TEST_F(ChildProcess, OneThatMakesNoProgressIsEnded) {
  for (const char* script : {"exec sleep 60", "exec 3>&-; exec sleep 60"}) {
    set_hdf5_index_command({"/bin/sh", "-c", script, "sh"}, 0.5);
    EXPECT_THAT([&] { index_hdf5(path); }, ThrowsMessage<Failure>(HasSubstr("example.h5: HDF5 ")));
    EXPECT_THAT([&] { index_hdf5(path); },
                ThrowsMessage<Failure>(HasSubstr("made no progress for 0.5 s")));
  }
}

TEST_F(ChildProcess, OneThatHasReportedAllFilesIsNotWaitedFor) {
  EXPECT_EQ(
      refusal("printf 'e\\003\\000\\000\\000\\000\\000\\000\\000odd' >&3; exec sleep 60", 0.5),
      path + ": odd");
}

TEST_F(ChildProcess, AFailureOfTheMachineIsNoFaultOfTheFile) {
  set_hdf5_index_command(
      {"/bin/sh", "-c", "printf 'f\\003\\000\\000\\000\\000\\000\\000\\000odd' >&3", "sh"});
  EXPECT_EQ(message_of<Failure>([&] { index_hdf5(path); }), path + ": odd");
}

TEST_F(ChildProcess, OneThatComputesMayTakeLonger) {
  // It computes for two seconds and then reports an error in the file.
  const std::string script =
      "end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 20000 ]; "
      "do "
      "i=$((i + 1)); done; done; printf 'e\\003\\000\\000\\000\\000\\000\\000\\000odd' >&3";
  EXPECT_EQ(refusal(script, 1.0), path + ": odd");
}

TEST_F(ChildProcess, AnyOutputIsRefused) {
  EXPECT_THAT(refusal("echo what else could be written here >&3"), HasSubstr("exceeds 64 MiB"));
  // An end mark without objects.
  EXPECT_THAT(refusal("printf '.\\000\\000\\000\\000\\000\\000\\000\\000' >&3"),
              HasSubstr("example.h5: has no root group"));
  EXPECT_THAT(refusal("printf 'o\\003\\000\\000\\000\\000\\000\\000\\000odd."
                      "\\000\\000\\000\\000\\000\\000\\000\\000' >&3"),
              HasSubstr("example.h5: the report about this file is wrong"));
}

TEST_F(ChildProcess, OneThatIsKilledFromOutsideIsAFailure) {
  set_hdf5_index_command({"/bin/sh", "-c", "kill -KILL $$", "sh"});
  EXPECT_THAT([&] { index_hdf5(path); }, ThrowsMessage<Failure>(HasSubstr("killed by signal 9")));
  set_hdf5_index_command({"/nowhere/trireme"});
  EXPECT_THAT([&] { index_hdf5(path); }, ThrowsMessage<Failure>(HasSubstr("cannot be started")));
}

TEST_F(ChildProcess, TheFirstFileAtFaultIsNamed) {
  std::vector<std::string> paths;
  for (int i = 0; i < 40; ++i) paths.push_back(folder / ("file" + std::to_string(i)));
  for (const std::string& one : paths) replace_file(one, "no HDF5");
  // Each child reports the same error for every file.
  set_hdf5_index_command(
      {"/bin/sh", "-c",
       "for file; do printf 'e\\003\\000\\000\\000\\000\\000\\000\\000odd' >&3; done", "sh"});
  EXPECT_EQ(message_of<InputError>([&] { index_hdf5(paths, [](std::size_t, Hdf5Index) {}); }),
            paths[0] + ": odd");
}

}  // namespace
}  // namespace trireme::io
