// SPDX-License-Identifier: Apache-2.0
//
// The seal of shards: `verify` finds every changed byte, a start finds another length, and shards
// without a seal stay valid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image_set.hpp"
#include "support/scratch.hpp"
#include "token_set.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/shards/verify.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

const std::vector<std::string> classes{"T-shirt", "Trouser", "Pullover", "Dress", "Coat"};

void write_text(const std::string& path, const std::string& text) {
  io::File file(path, io::File::Mode::create);
  file.write_at(0, text.data(), static_cast<std::int64_t>(text.size()));
}

/// A folder with one sealed shard of images and its bytes.
struct ShardSeal : testing::Test {
  const test::ScratchFolder folder;
  std::string path = folder / shard_file_name(0), whole;
  void SetUp() override {
    ImageSet(40).write(folder.path(), {40}, classes);
    whole = io::read_text_file(path);
    ASSERT_EQ(verify_shard(path), "");
  }
  /// Returns what verify_shard() finds after the change of one byte.
  std::string verify_changed(std::size_t at, char by = 1) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ by);
    write_text(path, changed);
    const std::string found = verify_shard(path);
    write_text(path, whole);
    return found;
  }
  std::string refusal() {
    return message_of<InputError>([&] { index_dataset(folder.path()); });
  }
  /// Removes the user block with the seal.
  void remove_seal() { write_text(path, whole.substr(whole.find("\x89HDF"))); }
};

TEST_F(ShardSeal, ChangesOfClassNamesAttributesAndValuesAreFound) {
  for (const char* text : {"Trouser", "trireme-shard", "images", "version", "checksums"}) {
    const std::size_t at = whole.find(text);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_THAT(verify_changed(at), HasSubstr("do not match the seal")) << text;
  }
}

TEST_F(ShardSeal, EveryChangedByteIsFound) {
  const std::uint64_t key = random_key(3, "shard seal test");
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::size_t at = philox(key, i, 0).word[0] % whole.size();
    const std::string found =
        verify_changed(at, static_cast<char>(1 + philox(key, i, 0).word[1] % 255));
    EXPECT_TRUE(!found.empty() && found != "no seal" && found != "no checksums") << at;
  }
}

TEST_F(ShardSeal, AStartChecksTheHeadAndTheLengthOnly) {
  EXPECT_EQ(refusal(), "");
  std::string changed = whole;
  changed[whole.find("Trouser")] = 't';
  write_text(path, changed);
  EXPECT_EQ(refusal(), "");  // only `verify` reads every byte
  write_text(path, whole + '\0');
  EXPECT_THAT(refusal(), HasSubstr("it was cut short or extended"));
  write_text(path, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(refusal(), HasSubstr("it was cut short or extended"));
  changed = whole;
  changed[20] = static_cast<char>(changed[20] ^ 1);  // a hash
  write_text(path, changed);
  EXPECT_THAT(refusal(), HasSubstr("the seal itself is damaged"));
  EXPECT_THAT([&] { describe_shard(path); },
              ThrowsMessage<InputError>(HasSubstr("the seal itself")));
}

TEST_F(ShardSeal, AShardWithoutASealIsValidAndVerifySaysThatItHasNone) {
  const DatasetInfo sealed = Dataset(folder.path()).info();
  remove_seal();
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(verify_shard(path), "no seal");
  EXPECT_FALSE(describe_shard(path).sealed);
  const Dataset dataset(folder.path());
  EXPECT_EQ(dataset.info().identity, sealed.identity);
  EXPECT_EQ(dataset.info().classes, classes);
  const ImageSet set(40);
  for (std::int64_t i = 0; i < 40; ++i) {
    std::vector<std::byte> image(static_cast<std::size_t>(set.sample_bytes()));
    dataset.read(i, image.data(), nullptr);
    EXPECT_TRUE(std::equal(image.begin(), image.end(), set.image(i).begin())) << i;
  }
}

TEST(ShardSealOfTokens, CoversTokensDocumentsAndTheVocabulary) {
  const test::ScratchFolder folder;
  const std::string path = folder / "shard.h5";
  const TokenSetOptions options{.vocabulary = 300, .tokenizer = "bytes", .checksum_block = 0};
  const std::vector<std::uint64_t> documents{0, 30, 100};
  write_token_shard(path, options, 100, documents, [&](std::span<std::byte> out) {
    for (std::size_t i = 0; i < 100; ++i)
      put_token(out, i, token_at(static_cast<std::int64_t>(i), 300), options.token_bytes());
  });
  EXPECT_EQ(verify_shard(path), "");  // the seal alone covers a shard without /checksums
  const std::string whole = io::read_text_file(path);
  for (const char* text : {"vocabulary", "tokenizer", "documents"}) {
    std::string changed = whole;
    changed[whole.find(text)] = 'x';
    write_text(path, changed);
    EXPECT_THAT(verify_shard(path), HasSubstr("do not match the seal")) << text;
  }
}

}  // namespace
}  // namespace trireme::data
