// SPDX-License-Identifier: Apache-2.0
//
// Samples of archives: which images and classes belong together.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image_archive.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

using test::message_of;

/// Writes an archive of images and classes, and returns "NAME=LABEL ..." of its catalog. A name
/// that ends with .png is an image, every other one has the text behind the blank.
std::string labels_of(const test::ScratchFolder& folder, const std::vector<std::string>& files,
                      const std::string& image = "") {
  static const std::string png = png_file(3, 3, pixels_of(27));
  std::vector<std::pair<std::string, std::string>> members;
  for (const std::string& file : files) {
    const std::size_t blank = file.find(' ');
    members.emplace_back(file.substr(0, blank),
                         blank == std::string::npos ? png : file.substr(blank + 1));
  }
  put_file(folder / "a.tar", tar_file(members));
  ImageCatalog catalog = catalog_tar({folder / "a.tar"}, image);
  assign_labels(catalog, {}, {}, 0, std::ssize(catalog.entries));
  std::string text;
  for (const CatalogEntry& entry : catalog.entries)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", entry.name,
                        entry.problem.empty() ? fmt::to_string(entry.label) : "none");
  return text;
}

TEST(TarSamples, ARunOfAKeyThatComesAgainIsASample) {
  const test::ScratchFolder folder;
  const auto labels = [&](const std::vector<std::string>& files) {
    return labels_of(folder, files);
  };
  EXPECT_EQ(labels({"0.png", "0.cls 1", "1.png", "1.cls 2", "0.png", "0.cls 3"}),
            "0.png=1 1.png=2 0.png=3");
  // A file of another key between two runs need not be of a sample.
  EXPECT_EQ(labels({"d/0.cls 1", "d/0.png", "readme.md x", "d/0.cls 4", "d/0.png"}),
            "d/0.png=1 d/0.png=4");
  EXPECT_EQ(labels({"0.png", "0.json {\"label\": 1}", "1.png", "1.cls 9", "0.cls 2", "0.png"}),
            "0.png=1 1.png=9 0.png=2");
  // Files that name no class belong to the run.
  EXPECT_EQ(labels({"0.png", "0.meta.json {}", "0.cls 1", "1.png", "1.meta.json {}", "1.cls 2",
                    "0.png", "0.meta.json {\"label\": 7}", "0.cls 3"}),
            "0.png=1 1.png=2 0.png=3");
}

TEST(TarSamples, RunsWithoutImageOrClassAreOneSample) {
  const test::ScratchFolder folder;
  EXPECT_EQ(labels_of(folder, {"0.cls 1", "1.cls 2", "0.png", "1.png"}), "0.png=1 1.png=2");
  EXPECT_EQ(labels_of(folder, {"0.png", "1.png", "1.cls 2", "0.cls 1", "1.cls 2"}),
            "0.png=1 1.png=2");
  const auto refusal = [&](const std::vector<std::string>& files) {
    return message_of<InputError>([&] { labels_of(folder, files); });
  };
  for (const std::string& message :
       {refusal({"0.png", "0.cls 1", "1.png", "1.cls 2", "0.cls 3"}),
        refusal({"0.cls 1", "1.cls 2", "0.cls 3", "1.cls 4", "0.png", "1.png"})}) {
    EXPECT_THAT(message, HasSubstr("a.tar: the class of 0.png is 1 in 0.cls, but 3 in 0.cls"));
    EXPECT_THAT(message, HasSubstr("the key 0 comes "));
  }
  EXPECT_THAT(refusal({"0.png", "0.cls 1", "1.png", "1.cls 2", "0.png"}),
              HasSubstr("two images of one sample are called 0.png and 0.png"));
  EXPECT_THAT(refusal({"a/0.png", "a/0.txt x", "a/0.png", "a/0.txt x"}),
              HasSubstr("two images of one sample are called a/0.png and a/0.png"));
}

TEST(TarSamples, AnImageTakesTheClassWithTheLongestNameThatItBeginsWith) {
  const test::ScratchFolder folder;
  const auto labels = [&](const std::vector<std::string>& files) {
    return labels_of(folder, files);
  };
  EXPECT_EQ(labels({"v1/22.0.png", "v1/22.0.cls 0", "v1/22.1.png", "v1/22.1.cls 1"}),
            "v1/22.0.png=0 v1/22.1.png=1");
  EXPECT_EQ(labels({"b.2.5.cls 5", "b.2.cls 2", "b.2.png", "b.2.5.png"}), "b.2.png=2 b.2.5.png=5");
  EXPECT_EQ(labels({"s0.image.png", "s0.cls 3", "s1.image.png", "s1.label.cls 4"}),
            "s0.image.png=3 s1.image.png=4");
  // A class of another image is none, and neither is one of which an image is missing.
  EXPECT_EQ(labels({"a.0.png", "a.0.cls 1", "a.1.png", "b.cls 2"}), "a.0.png=1 a.1.png=none");
  // The same names again, all with one part before the first dot.
  EXPECT_EQ(labels({"a.0.png", "a.0.cls 0", "a.1.png", "a.1.cls 1", "a.0.png", "a.0.cls 2",
                    "a.1.png", "a.1.cls 3"}),
            "a.0.png=0 a.1.png=1 a.0.png=2 a.1.png=3");
}

TEST(TarSamples, OneOfSeveralImagesIsChosen) {
  const test::ScratchFolder folder;
  const std::vector<std::string> masks = {"s0.png", "s0.seg.png", "s0.cls 1",
                                          "s1.png", "s1.seg.png", "s1.cls 2"},
                                 views = {"a.5.left.png",  "a.5.cls 3", "a.5.right.png",
                                          "a.6.right.png", "a.6.cls 4", "a.6.LEFT.png"};
  const auto refusal = [&](const std::vector<std::string>& files, const std::string& image) {
    return message_of<InputError>([&] { labels_of(folder, files, image); });
  };
  EXPECT_THAT(refusal(masks, ""), HasSubstr("s0.png and s0.seg.png share the class in s0.cls"));
  EXPECT_THAT(refusal(masks, ""), HasSubstr("--image png or --image seg.png"));
  EXPECT_THAT(refusal(views, ""), HasSubstr("--image left.png or --image right.png"));
  EXPECT_EQ(labels_of(folder, masks, "png"), "s0.png=1 s1.png=2");
  EXPECT_EQ(labels_of(folder, masks, ".SEG.png"), "s0.seg.png=1 s1.seg.png=2");
  EXPECT_EQ(labels_of(folder, views, "left.png"), "a.5.left.png=3 a.6.LEFT.png=4");
  EXPECT_THAT(refusal(masks, "gif"), HasSubstr("--image gif: must be the end of the names"));
  // A sample without the chosen image is no sample that may be missing in silence.
  std::vector<std::string> one_lacks = masks;
  one_lacks[3] = "s1.jpg";
  EXPECT_EQ(labels_of(folder, one_lacks, "png"), "s0.png=1 s1.jpg=none");
  EXPECT_EQ(labels_of(folder, masks, "left.png"), "s0.png=none s1.png=none");
  // Nor is one of joined archives, whose key comes again with an image of another ending.
  for (const char* label : {"s0.cls 1", "s0.cls 2"})
    EXPECT_EQ(
        labels_of(folder, {"s0.jpg", "s0.cls 1", "s1.jpg", "s1.cls 3", "s0.png", label}, "jpg"),
        "s0.jpg=1 s1.jpg=3 s0.png=none");
}

TEST(TarSamples, ImagesOfFoldersAreSamplesThatMayBeChosen) {
  const test::ScratchFolder folder;
  const std::vector<std::string> files = {"a/x.png", "a/x.seg.png", "b/2.5.png", "b/2.5.seg.png"};
  EXPECT_EQ(labels_of(folder, files), "a/x.png=0 a/x.seg.png=0 b/2.5.png=1 b/2.5.seg.png=1");
  EXPECT_EQ(labels_of(folder, files, "png"), "a/x.png=0 b/2.5.png=1");
  EXPECT_EQ(labels_of(folder, files, "seg.png"), "a/x.seg.png=0 b/2.5.seg.png=1");
  EXPECT_THAT([&] { labels_of(folder, files, "left.png"); },
              ThrowsMessage<InputError>(
                  HasSubstr("a.tar: --image left.png takes none of its images, as a/x.png")));
  const ImageCatalog catalog = catalog_tar({folder / "a.tar"});
  EXPECT_THAT(catalog.class_warning, HasSubstr("2 images have the name of another image"));
  EXPECT_THAT(catalog.class_warning, HasSubstr("as a/x.seg.png beside a/x.png"));
  EXPECT_EQ(catalog.class_note, "");
  labels_of(folder, {"v/a/x.png", "v/b/y.1.png", "v/b/y.2.png"});
  const ImageCatalog levels = catalog_tar({folder / "a.tar"});
  EXPECT_EQ(levels.class_warning, "");
  EXPECT_THAT(levels.class_note, HasSubstr("the innermost ones: v/a/x.png is of the class a"));
  // Without its images a class would have no number, and others would have its.
  EXPECT_THAT([&] { labels_of(folder, {"a/x.jpg", "b/y.png", "b/y.mask.png"}, "png"); },
              ThrowsMessage<InputError>(
                  HasSubstr("a.tar: --image png leaves the class \"a\" without an image")));
}

TEST(TarSamples, ClassesWithoutAnImageAreCounted) {
  const test::ScratchFolder folder;
  const auto warning = [&](const std::vector<std::string>& files) {
    labels_of(folder, files);
    return catalog_tar({folder / "a.tar"}).class_warning;
  };
  EXPECT_EQ(warning({"0.png", "0.cls 1", "1.png", "1.cls 0"}), "");
  const std::string text = warning({"0.png", "0.cls 1", "1.webp x", "1.cls 0", "2.cls 1"});
  EXPECT_THAT(text, HasSubstr("2 files with classes have no image beside them, as 1.cls"));
}

TEST(TarSamples, NumbersThatAreNotWholeAreNoNames) {
  const test::ScratchFolder folder;
  for (const char* word : {"3.0", "1e1", "-2", "nan"})
    EXPECT_EQ(labels_of(folder, {"0.png", fmt::format("0.cls {}", word), "1.png", "1.cls 1"}),
              "0.png=none 1.png=1")
        << word;
  // A byte order mark is no part of a number, and a name may begin with one.
  EXPECT_EQ(labels_of(folder, {"0.png",
                               "0.cls \xEF\xBB\xBF"
                               "3",
                               "1.png", "1.cls 1"}),
            "0.png=3 1.png=1");
  EXPECT_EQ(labels_of(folder, {"0.png", "0.cls 3.0 l", "1.png", "1.cls 1.6 l"}), "0.png=1 1.png=0");
}

TEST(TarSamples, PrintsOfNumbersAreNoNames) {
  const test::ScratchFolder folder;
  for (const char* word : {"tensor(3)", "tensor(3, device='cuda:0')", "[3]", "b'3'", "'3'", "\"3\"",
                           "(3,)", "np.int64(3)", "array([3], dtype=int64)", "\"cat\""}) {
    const std::string message = message_of<InputError>(
        [&] { labels_of(folder, {"0.png", fmt::format("0.cls {}", word), "1.png", "1.cls [4]"}); });
    EXPECT_THAT(message, HasSubstr("a.tar: 0.png: its class is ")) << word;
    EXPECT_THAT(message, HasSubstr("how a program prints a value"));
    // Beside other names it may be a name.
    EXPECT_THAT(labels_of(folder, {"0.png", fmt::format("0.cls {}", word), "1.png", "1.cls zebra"}),
                HasSubstr("1.png=1"));
  }
  for (const char* word :
       {"cat (3)", "3rd", "(cat)", "[3, 4]", "it's", "c(3)d", "f(x)", "\"a\" b \"c\""})
    EXPECT_EQ(labels_of(folder, {"0.png", fmt::format("0.cls {}", word)}), "0.png=0") << word;
}

TEST(TarSamples, AFileThatIsNotJsonIsNamed) {
  const test::ScratchFolder folder;
  for (const char* value : {"NaN", "-Infinity", "Infinity"}) {
    const std::string json = fmt::format("0.json {{\"label\": 1, \"x\": {}}}", value);
    // 1. Beside other samples that have a class.
    labels_of(folder, {"0.png", json, "1.png", "1.cls 1"});
    ImageCatalog catalog = catalog_tar({folder / "a.tar"});
    EXPECT_THAT(
        catalog.entries[0].class_problem,
        StartsWith(fmt::format("the file .json beside it: is not JSON: {} at byte ", value)));
    // 2. Alone.
    const std::string message = message_of<InputError>([&] { labels_of(folder, {"0.png", json}); });
    EXPECT_THAT(message, HasSubstr("a.tar: 0.png: the file .json beside it: is not JSON"));
  }
}

TEST(TarSamples, AnArchiveWithoutEndMarkIsNamed) {
  const test::ScratchFolder folder;
  const std::string png = png_file(3, 3, pixels_of(27));
  const std::string whole = tar_file({{"0.png", png}, {"0.cls", "1"}}),
                    cut = whole.substr(0, whole.size() - 1024);
  const auto warning = [&](const std::string& bytes) {
    put_file(folder / "a.tar", bytes);
    return catalog_tar({folder / "a.tar"}).source_warning;
  };
  for (const std::string& cut_short : {cut, whole + cut})
    EXPECT_THAT(warning(cut_short), HasSubstr("a.tar: has no end mark (blocks of zeros) after its "
                                              "last file 0.cls, so it may have been cut"));
  for (const std::string& good : {whole, whole + whole, cut + whole, cut + std::string(512, '\0'),
                                  whole + std::string(9216, '\0')})
    EXPECT_EQ(warning(good), "");
}

TEST(TarSamples, AClassInAFormThatIsNotReadIsNoNameOfAnArchive) {
  const test::ScratchFolder folder;
  const auto catalog_of = [&](const std::string& directory, const std::string& ending,
                              const std::string& content, const std::string& second) {
    const std::string png = png_file(3, 3, pixels_of(27));
    for (const char* name : {"a.tar", "b.tar"})
      put_file(folder / name, tar_file({{directory + "0.png", png},
                                        {directory + "0." + ending, content},
                                        {second + "1.png", png},
                                        {second + "1." + ending, content}}));
    ImageCatalog catalog = catalog_tar({folder / "a.tar", folder / "b.tar"});
    assign_labels(catalog, {}, {}, 0, std::ssize(catalog.entries));
    return catalog;
  };
  const std::string large = "{\"label\": 1, \"text\": \"" + std::string(70'000, 'x') + "\"}";
  for (const auto& [ending, content] : std::vector<std::pair<std::string, std::string>>{
           {"class", "1"}, {"index", "1"}, {"json", "{\"label\": 1,"}, {"json", large}}) {
    const std::string refusal =
        message_of<InputError>([&] { catalog_of("", ending, content, ""); });
    EXPECT_THAT(refusal, HasSubstr("4 images have files beside them that name no class, as 0." +
                                   ending + " beside 0.png"));
    // Folders are classes whatever else is in them.
    const ImageCatalog folders = catalog_of("cat/", ending, content, "dog/");
    EXPECT_EQ(folders.classes, (std::vector<std::string>{"cat", "dog"}));
    EXPECT_THAT(folders.class_warning, HasSubstr("the classes are the folders, and these files"));
  }
  // Without files beside the images the archives are classes, as those of ImageNet.
  for (const char* name : {"a.tar", "b.tar"})
    put_file(folder / name, tar_file({{"0.png", png_file(3, 3, pixels_of(27))}}));
  ImageCatalog catalog = catalog_tar({folder / "a.tar", folder / "b.tar"});
  assign_labels(catalog, {}, {}, 0, std::ssize(catalog.entries));
  EXPECT_EQ(catalog.classes, (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace trireme::data
