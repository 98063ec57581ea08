// Recognizes forms of files by their first bytes.
#include "trireme/io/file_form.hpp"

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
  EXPECT_EQ(name_of(std::string(257, 'a') + "ustar"), "a tar archive");
  EXPECT_EQ(name_of("PAR1...."), "a Parquet file");
  // Numbers, texts, and what is too short.
  for (const std::string& other :
       {""s, "P"s, "\x80\4"s, "\x80\4\x95 numbers that end with the opcode of a pickle."s,
        "\x80\2]q no end"s, "one\ntwo\n"s})
    EXPECT_EQ(name_of(other), "") << other.substr(0, 5);
}

}  // namespace
}  // namespace trireme::io
