// SPDX-License-Identifier: Apache-2.0
//
// Datasets of tokens: division of shards into samples, loading, and refusal of wrong shards.
#include <algorithm>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "flip_bit.hpp"
#include "image_set.hpp"
#include "support/count_allocations.hpp"
#include "support/scratch.hpp"
#include "token_set.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/shards/verify.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

using test::message_of;

constexpr std::int64_t context = 4;

TokenSetOptions of_vocabulary(std::int64_t vocabulary) {
  return {.vocabulary = vocabulary, .tokenizer = "bytes", .checksum_block = 16};
}

struct Sample {
  std::vector<std::int32_t> inputs, labels;
};
Sample sample_of(const Dataset& dataset, std::int64_t index) {
  Sample sample{std::vector<std::int32_t>(context, -7), std::vector<std::int32_t>(context, -7)};
  Sample apart = sample;
  dataset.read(index, reinterpret_cast<std::byte*>(sample.inputs.data()), sample.labels.data());
  // A pipeline stage reads only what it needs.
  dataset.read(index, reinterpret_cast<std::byte*>(apart.inputs.data()), nullptr);
  dataset.read(index, nullptr, apart.labels.data());
  EXPECT_EQ(apart.inputs, sample.inputs);
  EXPECT_EQ(apart.labels, sample.labels);
  return sample;
}

// Returns the first token of each sample in the set (docs/reference/files.md): sample i of a shard
// begins at i * context, and the last token of a shard is at most a label.
std::vector<std::int64_t> first_tokens(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> first;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    for (std::int64_t at = 0; at + context + 1 <= count; at += context) first.push_back(begin + at);
    begin += count;
  }
  return first;
}

void expect_samples(const Dataset& dataset, const std::vector<std::int64_t>& counts) {
  const std::vector<std::int64_t> first = first_tokens(counts);
  ASSERT_EQ(dataset.info().samples, static_cast<std::int64_t>(first.size()));
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Sample sample = sample_of(dataset, static_cast<std::int64_t>(i));
    for (std::int64_t t = 0; t < context; ++t) {
      EXPECT_EQ(sample.inputs[static_cast<std::size_t>(t)],
                token_at(first[i] + t, dataset.info().vocabulary))
          << i << " " << t;
      EXPECT_EQ(sample.labels[static_cast<std::size_t>(t)],
                token_at(first[i] + t + 1, dataset.info().vocabulary))
          << i << " " << t;
    }
  }
}

TEST(Tokens, SamplesAreCutFromEachShardAndTheNextTokenIsTheLabel) {
  for (const std::int64_t vocabulary : {256, 257, 65536, 65537}) {  // uint8, uint16, uint16, uint32
    const test::ScratchFolder folder;
    // 4 * context + 1 tokens hold 4 samples, 4 * context only 3. One token, none, and exactly one
    // context hold no sample.
    const std::vector<std::int64_t> counts{17, 16, 1, 4, 0, 5, 103};
    write_token_set(folder / "set", counts, of_vocabulary(vocabulary));
    const Dataset dataset(folder / "set", context);
    EXPECT_EQ(dataset.info().shard_samples, (std::vector<std::int64_t>{4, 3, 0, 0, 0, 1, 25}));
    EXPECT_EQ(dataset.info().tokens, 146);
    EXPECT_EQ(dataset.info().vocabulary, vocabulary);
    EXPECT_EQ(dataset.info().context, context);
    EXPECT_EQ(dataset.info().tokenizer, "bytes");
    EXPECT_EQ(dataset.sample().input_bytes(), 16);
    EXPECT_EQ(dataset.sample().labels.elements(), context);
    expect_samples(dataset, counts);
  }
}

TEST(Tokens, WithoutAContextAFolderIsDescribedOnly) {
  const test::ScratchFolder folder;
  write_token_set(folder / "set", {17, 16}, of_vocabulary(256));
  const Dataset dataset(folder / "set");
  EXPECT_EQ(dataset.info().kind, DatasetKind::tokens);
  EXPECT_EQ(dataset.info().tokens, 33);
  EXPECT_EQ(dataset.info().samples, 0);
}

TEST(Tokens, TheIdentityChangesWithTheSamples) {
  const test::ScratchFolder folder;
  write_token_set(folder / "a", {17, 16}, of_vocabulary(256));
  write_token_set(folder / "b", {17, 16}, of_vocabulary(300));
  write_token_set(folder / "c", {16, 17}, of_vocabulary(256));
  EXPECT_EQ(Dataset(folder / "a", context).info().identity,
            Dataset(folder / "b", context).info().identity);
  EXPECT_NE(Dataset(folder / "a", context).info().identity,
            Dataset(folder / "c", context).info().identity);
  EXPECT_NE(Dataset(folder / "a", context).info().identity,
            Dataset(folder / "a", 3).info().identity);
}

TEST(Tokens, ShardsOfDifferentDatasetsAreRefused) {
  const test::ScratchFolder folder;
  write_token_set(folder / "short", {4, 4, 1}, of_vocabulary(256));
  EXPECT_THAT([&] { Dataset(folder / "short", context); },
              ThrowsMessage<InputError>(HasSubstr("no sample of context 4")));
  write_token_set(folder / "kinds", {17}, of_vocabulary(256));
  ImageSet(5).write(folder / "images", {5});
  std::filesystem::copy(folder / "images/shard_00000.h5", folder / "kinds/shard_00001.h5");
  EXPECT_THAT([&] { Dataset(folder / "kinds", context); },
              ThrowsMessage<InputError>(HasSubstr("shard_00001.h5: contains images, but")));
  write_token_set(folder / "vocabularies", {17}, of_vocabulary(256));
  write_token_set(folder / "other", {17}, of_vocabulary(300));
  std::filesystem::copy(folder / "other/shard_00000.h5", folder / "vocabularies/shard_00001.h5");
  EXPECT_THAT([&] { Dataset(folder / "vocabularies", context); },
              ThrowsMessage<InputError>(HasSubstr("shard_00001.h5: tokens of vocabulary 300")));
}

TEST(Tokens, ATokenPastTheVocabularyIsNotWritten) {
  const test::ScratchFolder folder;
  const std::string message = message_of<InputError>([&] {
    write_token_shard(folder / "shard.h5", of_vocabulary(100), 3, {},
                      [&](std::span<std::byte> out) {
                        for (std::size_t i = 0; i < 3; ++i) put_token(out, i, 98 + i, 1);
                      });
  });
  EXPECT_THAT(message, HasSubstr("token 100 at position 2 is not below the vocabulary of 100"));
  EXPECT_FALSE(std::filesystem::exists(folder / "shard.h5"));
}

TEST(Tokens, ATokenPastTheVocabularyIsNamedWhenRead) {
  for (const std::int64_t vocabulary : {100, 1000, 100000}) {
    const test::ScratchFolder folder;
    const TokenSetOptions options = of_vocabulary(vocabulary);
    write_token_shard(folder / "shard.h5", options, 30, {}, [&](std::span<std::byte> out) {
      for (std::size_t i = 0; i < 30; ++i) put_token(out, i, vocabulary - 1, options.token_bytes());
    });
    // The writer refuses such a token, so it is put there afterwards.
    std::vector<std::byte> wrong(static_cast<std::size_t>(options.token_bytes()));
    put_token(wrong, 0, vocabulary, options.token_bytes());
    const std::int64_t tokens = io::index_hdf5(folder / "shard.h5").dataset("tokens").offset;
    io::File(folder / "shard.h5", io::File::Mode::update)
        .write_at(tokens + 21 * options.token_bytes(), wrong.data(), options.token_bytes());
    const Dataset dataset(folder.path(), context);
    for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(sample_of(dataset, i).labels[3], vocabulary - 1);
    const std::string message =
        message_of<InputError>([&] { sample_of(dataset, 5); });  // tokens 20 to 24
    EXPECT_THAT(message, HasSubstr("shard.h5"));
    EXPECT_THAT(message, HasSubstr(fmt::format("token {} at position 21", vocabulary)));
  }
}

/// A shard as another program writes it.
struct UntrustedTokens {
  hid_t type = H5T_STD_U16LE;
  std::vector<hsize_t> shape{60};
  hsize_t chunk = 0;  // 0: contiguous
  bool compressed = false;
  std::int64_t vocabulary = 0;  // 0: no attribute
  const char* vocabulary_at = "tokens";

  void write(const std::string& path) const {
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t text = H5Tcopy(H5T_C_S1), scalar = H5Screate(H5S_SCALAR);
    H5Tset_size(text, 16);
    for (const auto& [name, value] : {std::pair("format", "trireme-shard\0\0"),
                                      std::pair("kind", "tokens\0\0\0\0\0\0\0\0\0")}) {
      const hid_t attribute = H5Acreate2(file, name, text, scalar, H5P_DEFAULT, H5P_DEFAULT);
      H5Awrite(attribute, text, value);
      H5Aclose(attribute);
    }
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < 60; ++i) values.push_back(token_at(i, 256));
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                layout = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk > 0) H5Pset_chunk(layout, 1, &chunk);
    if (compressed) H5Pset_deflate(layout, 4);
    const hid_t dataset = H5Dcreate2(file, "tokens", type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    if (vocabulary != 0) {
      const hid_t owner = H5Oopen(file, vocabulary_at, H5P_DEFAULT);
      const hid_t attribute =
          H5Acreate2(owner, "vocabulary", H5T_STD_I16BE, scalar, H5P_DEFAULT, H5P_DEFAULT);
      H5Awrite(attribute, H5T_NATIVE_INT64, &vocabulary);
      H5Aclose(attribute);
      H5Oclose(owner);
    }
    for (const hid_t id : {space, scalar}) H5Sclose(id);
    H5Dclose(dataset);
    H5Pclose(layout);
    H5Tclose(text);
    H5Fclose(file);
  }
};

TEST(Tokens, OfOtherProgramsAreReadWhateverTheirStorageAndType) {
  for (const hid_t type :
       {H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U16BE, H5T_STD_U32LE, H5T_STD_U32BE}) {
    for (const hsize_t chunk : {0, 1, 7, 60}) {
      const test::ScratchFolder folder;
      UntrustedTokens shard;
      shard.type = type;
      shard.chunk = chunk;
      shard.compressed = chunk > 0;
      shard.vocabulary = 256;
      shard.vocabulary_at = chunk == 7 ? "/" : "tokens";
      shard.write(folder / "shard.h5");
      const Dataset dataset(folder.path(), context);
      EXPECT_EQ(dataset.info().vocabulary, 256);
      expect_samples(dataset, {60});
      EXPECT_EQ(verify_shard(folder / "shard.h5"), "no checksums");
    }
  }
}

TEST(Tokens, WithoutAVocabularyTheTypeIsTheBound) {
  for (const auto& [type, vocabulary] :
       {std::pair(H5T_STD_U8LE, std::int64_t{256}), std::pair(H5T_STD_U16LE, std::int64_t{65536}),
        std::pair(H5T_STD_U32LE, std::int64_t{2147483647})}) {
    const test::ScratchFolder folder;
    UntrustedTokens shard;
    shard.type = type;
    shard.write(folder / "shard.h5");
    EXPECT_EQ(Dataset(folder.path(), context).info().vocabulary, vocabulary);
  }
}

TEST(Tokens, DatasetsOfTheWrongFormAreNamed) {
  const auto refusal = [](const UntrustedTokens& shard) {
    const test::ScratchFolder folder;
    shard.write(folder / "by_hand.h5");
    const std::string message = message_of<InputError>([&] { Dataset(folder.path(), context); });
    EXPECT_THAT(message, HasSubstr("by_hand.h5"));
    return message;
  };
  UntrustedTokens is_signed;
  is_signed.type = H5T_STD_I32LE;
  EXPECT_THAT(refusal(is_signed), HasSubstr("tokens must be uint8, uint16 or uint32"));
  UntrustedTokens wide;
  wide.type = H5T_STD_U64LE;
  EXPECT_THAT(refusal(wide), HasSubstr("tokens must be uint8, uint16 or uint32"));
  UntrustedTokens real;
  real.type = H5T_IEEE_F32LE;
  EXPECT_THAT(refusal(real), HasSubstr("tokens must be uint8, uint16 or uint32"));
  UntrustedTokens table;
  table.shape = {6, 10};
  EXPECT_THAT(refusal(table), HasSubstr("has 2 dimensions [6, 10]"));
  UntrustedTokens negative;
  negative.vocabulary = -5;
  EXPECT_THAT(refusal(negative), HasSubstr("attribute vocabulary is -5"));
}

TEST(Tokens, AnyFlippedBitIsFoundAndItsBlockNamed) {
  const test::ScratchFolder folder;
  const std::string path = folder / "shard.h5";
  // With the head of the seal only, the checksums must find the bit.
  const auto verify = [](const std::string& path) { return verify_shard(io::index_hdf5(path)); };
  const std::vector<std::uint64_t> documents{0, 10, 10, 100};
  write_token_shard(path, of_vocabulary(1000), 100, documents, [](std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{1});
  });
  const ShardDescription shard = describe_shard(path);
  EXPECT_EQ(shard.documents, 3);
  EXPECT_EQ(shard.token_bytes, 2);
  for (const char* words :
       {"tokens: 100", "uint16", "vocabulary: 1000", "documents: 3", "tokenizer: bytes"})
    EXPECT_THAT(to_text(shard), HasSubstr(words));
  EXPECT_EQ(verify(path), "");
  std::vector<std::uint64_t> checksums(7);
  io::Hdf5Reader(io::index_own_hdf5(path))
      .read_all("checksums", io::Hdf5Number::uint64, checksums.data());
  const std::vector<std::byte> block(16 * 2, std::byte{1});
  EXPECT_EQ(checksums[5], io::xxh3(block.data(), block.size()));
  EXPECT_EQ(checksums[6], io::xxh3(block.data(), 4 * 2));
  const auto [tokens, offsets] = [&] {
    const io::Hdf5Index file = io::index_own_hdf5(path);
    return std::pair(file.dataset("tokens").offset, file.dataset("documents").offset);
  }();
  flip_bit(path, tokens + 99 * 2);
  EXPECT_THAT(verify(path), HasSubstr("block 6 of /tokens (tokens 96 to 99)"));
  flip_bit(path, tokens + 99 * 2);
  flip_bit(path, offsets + 3 * 8);
  EXPECT_THAT([&] { verify(path); }, ThrowsMessage<InputError>(HasSubstr("/documents")));
  EXPECT_THAT([&] { describe_shard(path); }, ThrowsMessage<InputError>(HasSubstr("/documents")));
  EXPECT_THAT([&] { Dataset(folder.path(), 10); },
              ThrowsMessage<InputError>(HasSubstr("/documents")));
}

TEST(Tokens, ABlockIsComparedWithEachSampleThatHasTokensOfIt) {
  const test::ScratchFolder folder;
  write_token_set(folder.path(), {100}, of_vocabulary(1000));  // 16 tokens a checksum
  const std::string path = folder / "shard_00000.h5";
  flip_bit(path, io::index_own_hdf5(path).dataset("tokens").offset + 40 * 2);
  // Samples of 8 tokens and the next one: block 2 (tokens 32 to 47) is in samples 3 (label 32) to
  // 5.
  const Dataset dataset(index_dataset(folder.path(), {}, true), 8);
  EXPECT_EQ(dataset.checksum_blocks(), 7);
  for (std::int64_t sample = 0; sample < dataset.info().samples; ++sample) {
    const Dataset::ChecksumBlocks blocks = dataset.checksum_blocks_of(sample);
    std::string message;
    for (std::int64_t block = blocks.range.first; block < blocks.range.end; ++block)
      message += message_of<InputError>([&] { dataset.compare_block(blocks.shard, block); });
    const auto names_block = HasSubstr("block 2 of /tokens (tokens 32 to 47)");
    if (sample >= 3 && sample <= 5)
      EXPECT_THAT(message, names_block) << sample;
    else
      EXPECT_THAT(message, Not(names_block)) << sample;
  }
}

struct TokenLoaderTest : testing::Test {
  static constexpr std::int64_t global = 8;
  void SetUp() override {
    write_token_set(folder / "set", {61, 90, 53}, of_vocabulary(300));
  }  // 15, 22 and 13 samples

  LoaderOptions options(std::int64_t micro, int rank, int size) const {
    LoaderOptions options;
    options.order = {.seed = 5, .samples = 50, .shuffle = Shuffle::full};
    options.batching = {.samples = 50, .global_batch = global};
    options.micro = micro;
    options.data_rank = rank;
    options.data_size = size;
    return options;
  }
  struct Row {
    std::int64_t sample;
    std::uint64_t key;
    std::vector<std::int32_t> inputs, labels;
    bool operator==(const Row&) const = default;
  };
  static std::vector<Row> rows_of(const MicroBatch& batch, std::int64_t micro) {
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < micro; ++i) {
      Row row{batch.samples[i], batch.sample_keys[i], {}, {}};
      if (batch.inputs.defined())
        row.inputs.assign(batch.inputs.as<std::int32_t>() + i * context,
                          batch.inputs.as<std::int32_t>() + (i + 1) * context);
      if (batch.labels.defined())
        row.labels.assign(batch.labels.as<std::int32_t>() + i * context,
                          batch.labels.as<std::int32_t>() + (i + 1) * context);
      rows.push_back(std::move(row));
    }
    return rows;
  }
  std::vector<Row> steps(std::int64_t count, std::int64_t micro, int size) const {
    const Dataset dataset(folder / "set", context);
    std::vector<std::unique_ptr<Loader>> replicas;
    for (int rank = 0; rank < size; ++rank) {
      replicas.push_back(std::make_unique<Loader>(dataset, options(micro, rank, size)));
      replicas.back()->start({0, 0});
    }
    std::vector<Row> seen;
    for (std::int64_t step = 0; step < count; ++step)
      for (const auto& replica : replicas)
        for (std::int64_t part = 0; part < global / (micro * size); ++part)
          for (Row& row : rows_of(replica->next(), micro)) seen.push_back(std::move(row));
    return seen;
  }
  test::ScratchFolder folder;
};

TEST_F(TokenLoaderTest, EveryLayoutSeesTheSameSamplesUnderTheSameKeys) {
  const std::vector<Row> reference = steps(14, 8, 1);  // two epochs and a third
  EXPECT_EQ(steps(14, 2, 1), reference);
  EXPECT_EQ(steps(14, 2, 4), reference);
  const Dataset dataset(folder / "set", context);
  std::set<std::uint64_t> keys;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const Sample sample = sample_of(dataset, reference[i].sample);
    EXPECT_EQ(reference[i].inputs, sample.inputs);
    EXPECT_EQ(reference[i].labels, sample.labels);
    EXPECT_EQ(reference[i].key, sample_key(static_cast<std::int64_t>(i) / 48,
                                           reference[i].sample));  // an epoch has 6 steps of 8
    keys.insert(reference[i].key);
  }
  // The same sample has another key in another epoch.
  EXPECT_EQ(keys.size(), reference.size());
  EXPECT_EQ(sample_key(2, 9), mix64(mix64(2 + 0x9E3779B97F4A7C15ull) ^ 9));
}

TEST_F(TokenLoaderTest, UnrequestedPartsAreNotRead) {
  const std::vector<Row> reference = steps(3, 4, 1);
  const Dataset dataset(folder / "set", context);
  for (const auto& [inputs, labels] :
       {std::pair(true, false), std::pair(false, true), std::pair(false, false)}) {
    LoaderOptions some = options(4, 0, 1);
    some.inputs = inputs;
    some.labels = labels;
    Loader loader(dataset, some);
    loader.start({0, 0});
    std::size_t at = 0;
    for (int i = 0; i < 6; ++i) {
      const MicroBatch& batch = loader.next();
      EXPECT_EQ(batch.inputs.defined(), inputs);
      EXPECT_EQ(batch.labels.defined(), labels);
      for (const Row& row : rows_of(batch, 4)) {
        const Row& meant = reference[at++];
        EXPECT_EQ(row,
                  (Row{meant.sample, meant.key, inputs ? meant.inputs : std::vector<std::int32_t>{},
                       labels ? meant.labels : std::vector<std::int32_t>{}}));
      }
    }
  }
  // A loader of neither inputs nor labels does not read the disk.
  std::filesystem::resize_file(folder / "set/shard_00000.h5", 2048);
  LoaderOptions none = options(4, 0, 1);
  none.inputs = none.labels = false;
  Loader loader(dataset, none);
  loader.start({0, 0});
  for (int i = 0; i < 24; ++i) EXPECT_EQ(loader.next().valid_rows, 4);
}

TEST_F(TokenLoaderTest, EvaluationIsFilledUpWithRowsThatCountForNothing) {
  const Dataset dataset(folder / "set", context);
  LoaderOptions one_pass = options(8, 0, 1);
  one_pass.training = false;
  Loader loader(dataset, one_pass);
  loader.start({0, 0});
  ASSERT_EQ(loader.micro_batches_per_pass(), 7);
  std::int64_t at = 0;
  for (int round = 0; round < 7; ++round) {
    for (const Row& row : rows_of(loader.next(), 8)) {
      if (at < 50) {
        EXPECT_EQ(row, (Row{at, sample_key(0, at), sample_of(dataset, at).inputs,
                            sample_of(dataset, at).labels}));
      } else {
        EXPECT_EQ(row, (Row{-1, 0, std::vector<std::int32_t>(context, 0),
                            std::vector<std::int32_t>(context, -1)}));
      }
      ++at;
    }
  }
  EXPECT_EQ(at, 56);
}

TEST_F(TokenLoaderTest, ASteadyStepAllocatesNothing) {
  const Dataset dataset(folder / "set", context);
  Loader loader(dataset, options(4, 0, 1));
  loader.start({0, 0});
  for (int i = 0; i < 10; ++i) loader.next();
  const std::int64_t before = allocations_so_far();
  std::int64_t sum = 0;
  for (int i = 0; i < 200; ++i) sum += loader.next().inputs.as<std::int32_t>()[0];
  EXPECT_EQ(allocations_so_far(), before);
  EXPECT_GT(sum, 0);
}

}  // namespace
}  // namespace trireme::data
