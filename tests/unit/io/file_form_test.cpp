// SPDX-License-Identifier: Apache-2.0
//
// Recognizes forms of files by their first bytes.
#include "trireme/io/file_form.hpp"

#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/io/file.hpp"

namespace trireme::io {
namespace {

TEST(FileForm, WellKnownFormsAreRecognized) {
  const test::ScratchFolder folder;
  using namespace std::string_literals;
  const auto name_of = [&](const std::string& content) {
    replace_file(folder / "a", content);
    const std::optional<FileForm> form = recognize_form(folder / "a");
    return form ? form->name : "";
  };
  const auto zip = [](const std::string& entry) {
    std::string header = "PK\3\4"s + std::string(22, '\0');
    header += static_cast<char>(entry.size());
    return header + std::string(3, '\0') + entry + "content";
  };
  EXPECT_EQ(name_of(zip("arr_0.npy")), "an .npz archive of NumPy");
  EXPECT_EQ(name_of(zip("archive/data.pkl")), "a file of PyTorch (torch.save)");
  EXPECT_EQ(name_of(zip("a.txt")), "a ZIP archive");
  EXPECT_EQ(name_of("PK\3\4"), "a ZIP archive");
  EXPECT_EQ(name_of("\x1f\x8b\x08\0\0"s), "a gzip file");
  EXPECT_EQ(name_of("\x93NUMPY\1\0"s), "a .npy file of NumPy");
  EXPECT_EQ(name_of("\x80\4\x95\6\0\0\0\0\0\0\0]K\1K\2e."s), "a pickle of Python");
  EXPECT_EQ(name_of("\x80\2]q\0(K\1K\2e."s), "a pickle of Python");
  EXPECT_EQ(name_of("\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20rest"s),
            "a file of PyTorch (torch.save)");
  std::string tar(512, '\0');
  tar.replace(0, 1, "a").replace(257, 5, "ustar").replace(148, 6, fmt::format("{:06o}", 912));
  EXPECT_EQ(name_of(tar), "a tar archive");
  EXPECT_EQ(name_of("PAR1\x15\4....PAR1"), "a Parquet file");
  EXPECT_EQ(name_of("(lp0\nI1\naI2\na."), "a pickle of Python");
  EXPECT_EQ(name_of("}q\0(U\1aq\1K\1u."s), "a pickle of Python");
  EXPECT_EQ(name_of("BZh91AY&SY\0\1"s), "a bzip2 file");
  EXPECT_EQ(name_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
            "a pointer of git-lfs");
  EXPECT_EQ(name_of(std::string(16, '\0') + "\xde\xc0\xef\xbe"), "an LMDB database");
  // The length 5 of a record, and its checksum as TensorFlow writes it.
  EXPECT_EQ(name_of("\5\0\0\0\0\0\0\0\xea\xb2\x04\x3e....."s), "a TFRecord file");
  EXPECT_EQ(name_of("\5\0\0\0\0\0\0\0\xea\xb2\x04\x3f....."s), "");
  EXPECT_EQ(name_of("{\"metadata\": {\"total_size\": 4}, \"weight_map\": {}}"),
            "the JSON index of a model in several safetensors files");
  EXPECT_EQ(name_of("{\n  \"version\": \"1.0\",\n  \"truncation\": null,"),
            "a tokenizer.json of Hugging Face");
  EXPECT_EQ(name_of("{\"text\": \"\xe2\x82\xac\"}"), "a JSON file");
  EXPECT_EQ(name_of("IQ== 0\nIg== 1\n"), "a vocabulary of tiktoken");
  // Texts and numbers that begin as a form does.
  tar[0] = 'b';
  for (const std::string& other :
       {"PAR1 is a magic number.\nPAR1"s, "PAR1\0\1\2\3"s, std::string(257, 'a') + "ustar", tar,
        "(see below).\n"s, "cats and dogs."s, "]]."s, "}\n."s, "(dp0 is no operation)."s,
        "(lp0\nno end"s, "BZh91AY&SY is bzip2's magic number"s, "abcd1AY&SY\0"s, "ARROW1 text"s,
        "version https://git-lfs.github.com/spec/v1 is how a pointer begins"s})
    EXPECT_EQ(name_of(other), "") << other.substr(0, 8);
  // Numbers, texts, and what is too short.
  for (const std::string& other :
       {""s, "P"s, "\x80\4"s, "\x80\4\x95 numbers that end with the opcode of a pickle."s,
        "\x80\2]q no end"s, "one\ntwo\n"s, "some 12\n"s, "{ }"s})
    EXPECT_EQ(name_of(other), "") << other.substr(0, 5);
  EXPECT_FALSE(recognize_form(folder / "no such file"));
  EXPECT_EQ(recognize_form("s3://bucket/train")->name, "an address, not a path");
  std::filesystem::create_directory(folder / "table");
  EXPECT_FALSE(recognize_form(folder / "table"));
  replace_file(folder / "table/data.mdb", "");
  EXPECT_EQ(recognize_form(folder / "table")->name, "an LMDB database");
}

}  // namespace
}  // namespace trireme::io
