// SPDX-License-Identifier: Apache-2.0
//
// Conversion of token files and texts into shards.
#include "trireme/data/tokens/token_file.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gzip_file.hpp"
#include "image_archive.hpp"
#include "support/scratch.hpp"
#include "token_set.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/shards/verify.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_form.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

template <class Number>
std::string raw(const std::vector<std::int64_t>& tokens) {
  std::string bytes;
  for (const std::int64_t token : tokens) {
    const auto number = static_cast<Number>(token);
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return bytes;
}

// Writes a file as numpy.save does: the header is padded with blanks to a multiple of 64 bytes.
std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string padded = header;
  const std::size_t start = version == 1 ? 10 : 12;
  while ((start + padded.size() + 1) % 64 != 0) padded += ' ';
  padded += '\n';
  std::string text = "\x93NUMPY";
  text += version;
  text += '\0';
  for (std::size_t i = 0; i < start - 8; ++i) text += static_cast<char>(padded.size() >> (8 * i));
  return text + padded + data;
}
std::string npy_header(const std::string& type, const std::string& shape) {
  return "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

std::vector<std::int64_t> some_tokens(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(token_at(i, vocabulary));
  return tokens;
}

std::vector<std::int64_t> tokens_of(const std::string& shard) {
  const io::Hdf5Reader reader(io::index_own_hdf5(shard));
  const io::StoredDataset& stored = reader.index().dataset("tokens");
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(stored.elements()));
  reader.read(stored, io::Hdf5Number::int64, tokens.data());
  return tokens;
}

TEST(TokenFile, EveryTypeOfNumbersBecomesTheNarrowestThatHoldsTheVocabulary) {
  const test::ScratchFolder folder;
  const std::vector<std::int64_t> tokens = some_tokens(101, 120);
  const auto expect = [&](const TokenFile& file) {
    EXPECT_EQ(file.count, 101);
    for (const std::int64_t vocabulary : {120, 50257, 128256}) {
      const TokenSetOptions options{.vocabulary = vocabulary, .tokenizer = {}};
      write_token_ranges(folder / "shard.h5", options, {file}, {{0, 0, 101}}, false);
      EXPECT_EQ(tokens_of(folder / "shard.h5"), tokens);
      const ShardDescription shard = describe_shard(folder / "shard.h5");
      EXPECT_EQ(shard.token_bytes, vocabulary == 120 ? 1 : vocabulary == 50257 ? 2 : 4);
      EXPECT_EQ(shard.vocabulary, vocabulary);
      EXPECT_EQ(verify_shard(folder / "shard.h5"), "");
    }
  };
  for (const auto& [bytes, text] :
       {std::pair(1, raw<std::uint8_t>(tokens)), std::pair(2, raw<std::uint16_t>(tokens)),
        std::pair(4, raw<std::uint32_t>(tokens))}) {
    io::replace_file(folder / "tokens.bin", text);
    expect(raw_token_file(folder / "tokens.bin", bytes));
  }
  for (const auto& [type, text] :
       {std::pair("|u1", raw<std::uint8_t>(tokens)), std::pair("<u2", raw<std::uint16_t>(tokens)),
        std::pair("<u4", raw<std::uint32_t>(tokens)), std::pair("<i4", raw<std::int32_t>(tokens)),
        std::pair("<i8", raw<std::int64_t>(tokens)), std::pair("|i1", raw<std::int8_t>(tokens))}) {
    for (const char version : {1, 2, 3}) {
      io::replace_file(folder / "tokens.npy", npy(npy_header(type, "(101,)"), text, version));
      expect(npy_token_file(folder / "tokens.npy"));
    }
  }
}

TEST(TokenFile, WrongFilesAreRefusedWithNameAndFault) {
  const test::ScratchFolder folder;
  const std::string path = folder / "tokens.npy";
  const auto refusal = [&](const std::string& text) {
    io::replace_file(path, text);
    const std::string message = message_of<InputError>([&] { npy_token_file(path); });
    EXPECT_THAT(message, HasSubstr(path));
    return message;
  };
  const std::string data(20, '\1');
  EXPECT_THAT(refusal(npy(npy_header("<f4", "(5,)"), data)), HasSubstr("'<f4'"));
  EXPECT_THAT(refusal(npy(npy_header(">u2", "(10,)"), data)), HasSubstr("'>u2'"));
  EXPECT_THAT(refusal(npy(npy_header("<u2", "(5, 2)"), data)), HasSubstr("[5, 2]"));
  EXPECT_THAT(refusal(npy(npy_header("<u2", "()"), data)), HasSubstr("one dimension"));
  EXPECT_THAT(refusal(npy(npy_header("<u2", "(11,)"), data)),
              HasSubstr("11 elements of 2 bytes, but 20 bytes"));
  EXPECT_THAT(refusal(npy(npy_header("<u2", "(9223372036854775807,)"), data)),
              HasSubstr("but 20 bytes"));
  EXPECT_THAT(refusal(npy("{'fortran_order': False, 'shape': (10,), }", data)),
              HasSubstr("no descr"));
  EXPECT_THAT(refusal(npy("{'descr': '<u2', 'fortran_order': False, 'shape':", data)),
              HasSubstr("expected extents"));
  EXPECT_THAT(refusal(npy(npy_header("<u2", "(10,)"), data, 9)), HasSubstr("version 9"));
  EXPECT_THAT(refusal(npy(npy_header("<u2", "(10,)"), data).substr(0, 50)), HasSubstr("header"));
  EXPECT_THAT(refusal("not an array at all"), HasSubstr(".npy"));
  EXPECT_THAT(refusal("x"), HasSubstr("too short"));
  EXPECT_THAT([&] { npy_token_file(folder / "none"); },
              ThrowsMessage<InputError>(HasSubstr("none")));
  io::replace_file(path, "abc");
  EXPECT_THAT([&] { raw_token_file(path, 2); },
              ThrowsMessage<InputError>(HasSubstr("3 bytes are not a whole number of tokens")));
}

/// Returns a file as llm.c writes it: 256 int32, then the tokens.
std::string llm_c(std::int32_t magic, std::int32_t version, std::int32_t count,
                  const std::string& tokens) {
  std::vector<std::int64_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw<std::int32_t>(header) + tokens;
}

TEST(TokenFile, TheHeaderOfLlmCIsNotReadAsTokens) {
  const test::ScratchFolder folder;
  const std::string path = folder / "train.bin";
  const std::vector<std::int64_t> tokens = some_tokens(90, 500);
  const auto read = [&](const std::string& content) {
    io::replace_file(path, content);
    const std::optional<TokenFile> file = llm_c_token_file(path);
    if (!file) return std::vector<std::int64_t>{};
    write_token_ranges(folder / "shard.h5", {.vocabulary = 500, .tokenizer = {}}, {*file},
                       {{0, 0, file->count}}, false);
    return tokens_of(folder / "shard.h5");
  };
  EXPECT_EQ(read(llm_c(20240520, 1, 90, raw<std::uint16_t>(tokens))), tokens);
  EXPECT_EQ(read(llm_c(20240801, 7, 90, raw<std::uint32_t>(tokens))), tokens);
  // nanoGPT itself writes no header.
  for (const std::string& plain : {std::string(), std::string("ab"), raw<std::uint16_t>(tokens)}) {
    io::replace_file(path, plain);
    EXPECT_FALSE(llm_c_token_file(path).has_value());
  }
}

TEST(TokenFile, AWrongHeaderOfLlmCIsNamed) {
  const test::ScratchFolder folder;
  const std::string path = folder / "train.bin";
  const auto refusal = [&](const std::string& content) {
    io::replace_file(path, content);
    return message_of<InputError>([&] { llm_c_token_file(path); });
  };
  const std::string data(20, '\1'), whole = llm_c(20240520, 1, 10, data);
  EXPECT_EQ(refusal(whole), "");
  EXPECT_THAT(refusal(llm_c(20240520, 2, 10, data)), HasSubstr("version 2"));
  EXPECT_THAT(refusal(llm_c(20240520, 1, 11, data)),
              HasSubstr("counts 11 tokens of 2 bytes, but 20 bytes follow"));
  EXPECT_THAT(refusal(llm_c(20240520, 1, -1, data)), HasSubstr("counts -1 tokens"));
  EXPECT_THAT(refusal(llm_c(20240801, 7, 10, data)), HasSubstr("counts 10 tokens of 4 bytes"));
  EXPECT_THAT(refusal(whole.substr(0, 100)), HasSubstr("but 0 bytes follow"));
  EXPECT_THAT(refusal(whole.substr(0, 4)), HasSubstr("version 0"));
  EXPECT_THAT(refusal(llm_c(20240522, 1, 10, data)), HasSubstr("an evaluation"));
}

TEST(TokenFile, TokensOutsideTheVocabularyAreNamed) {
  const test::ScratchFolder folder;
  const auto refusal = [&](const std::string& type, const std::string& data) {
    io::replace_file(folder / "tokens.npy", npy(npy_header(type, "(4,)"), data));
    const TokenFile file = npy_token_file(folder / "tokens.npy");
    return message_of<InputError>([&] {
      write_token_ranges(folder / "shard.h5", {.vocabulary = 100, .tokenizer = {}}, {file},
                         {{0, 1, 3}}, false);
    });
  };
  EXPECT_THAT(refusal("<u2", raw<std::uint16_t>({1, 2, 3, 100})),
              HasSubstr("tokens.npy: token 100 at position 3 is outside the vocabulary of 100"));
  EXPECT_THAT(refusal("<i8", raw<std::int64_t>({1, 2, -1, 3})),
              HasSubstr("token -1 at position 2"));
  EXPECT_THAT(refusal("<u8", raw<std::uint64_t>({1, 2, std::int64_t{1} << 40, 3})),
              HasSubstr("at position 2"));
  EXPECT_FALSE(std::filesystem::exists(folder / "shard.h5"));
  EXPECT_EQ(refusal("<u2", raw<std::uint16_t>({100, 2, 3, 99})),
            "");  // the first token is not part of the range
}

TEST(TokenFile, RunsOfSeveralFilesFollowOneAnotherAndAreDocuments) {
  const test::ScratchFolder folder;
  const std::vector<std::int64_t> all = some_tokens(90, 500);
  io::replace_file(folder / "a", raw<std::uint16_t>({all.begin(), all.begin() + 40}));
  io::replace_file(folder / "b", raw<std::uint16_t>({all.begin() + 40, all.end()}));
  const std::vector<TokenFile> files{raw_token_file(folder / "a", 2),
                                     raw_token_file(folder / "b", 2)};
  const std::vector<TokenRange> runs{{0, 0, 40}, {1, 0, 50}};
  const std::vector<TokenRange> part = slice_ranges(runs, 30, 60);
  EXPECT_EQ(part, (std::vector<TokenRange>{{0, 30, 10}, {1, 0, 20}}));
  EXPECT_EQ(slice_ranges(runs, 40, 90), (std::vector<TokenRange>{{1, 0, 50}}));
  EXPECT_TRUE(slice_ranges(runs, 40, 40).empty());
  write_token_ranges(folder / "shard.h5", {.vocabulary = 500, .tokenizer = {}}, files, part, true);
  EXPECT_EQ(tokens_of(folder / "shard.h5"),
            std::vector<std::int64_t>(all.begin() + 30, all.begin() + 60));
  std::vector<std::uint64_t> documents(3);
  io::Hdf5Reader(io::index_own_hdf5(folder / "shard.h5"))
      .read_all("documents", io::Hdf5Number::uint64, documents.data());
  EXPECT_EQ(documents, (std::vector<std::uint64_t>{0, 10, 30}));
}

TEST(TokenFile, TheEndOfEveryFileIsHeldOutInProportion) {
  std::vector<TokenFile> files;
  for (const std::int64_t count : {100, 1, 0, 37, 62}) files.push_back({"", 0, 1, false, count});
  for (const std::int64_t held : {0, 1, 20, 199, 200}) {
    const TokenSplit split = hold_out_ends(files, held);
    EXPECT_EQ(count_tokens(split.held_out), held);
    EXPECT_EQ(count_tokens(split.training), 200 - held);
    for (const TokenRange& run : split.training) EXPECT_EQ(run.first, 0);
    for (const TokenRange& run : split.held_out) {
      EXPECT_EQ(run.first + run.count, files[run.file].count);
      EXPECT_NEAR(static_cast<double>(run.count),
                  static_cast<double>(held) * static_cast<double>(files[run.file].count) / 200, 1)
          << "rounding of two sums";
    }
  }
}

TEST(TokenFile, EveryDocumentGetsOneTokenAtItsEnd) {
  const test::ScratchFolder folder;
  constexpr std::int64_t end = 99;
  // The second document of the file has the token already.
  io::replace_file(folder / "a", raw<std::int32_t>({1, 2, 3, 4, end, 6, 7}));
  io::replace_file(folder / "b", raw<std::uint16_t>({8, 9}));
  io::replace_file(folder / "c", raw<std::uint16_t>({10, end}));
  io::replace_file(folder / "none", "");
  std::vector<TokenFile> files{{folder / "a", 0, 4, true, 7, {3, 5, 7}},
                               raw_token_file(folder / "b", 2),
                               raw_token_file(folder / "c", 2),
                               raw_token_file(folder / "none", 2)};
  for (TokenFile& file : files) end_documents(file, end);
  const std::vector<std::int64_t> whole{1, 2, 3, end, 4, end, 6, 7, end, 8, 9, end, 10, end};
  const std::vector<TokenRange> ranges = hold_out_ends(files, 0).training;
  ASSERT_EQ(count_tokens(ranges), std::ssize(whole));
  for (const std::int64_t vocabulary : {100, 1000, 100'000}) {
    const TokenSetOptions options{.vocabulary = vocabulary, .tokenizer = {}, .end_of_text = end};
    for (std::int64_t begin = 0; begin < std::ssize(whole); ++begin) {
      for (std::int64_t last = begin + 1; last <= std::ssize(whole); ++last) {
        write_token_ranges(folder / "shard.h5", options, files, slice_ranges(ranges, begin, last),
                           true);
        EXPECT_EQ(tokens_of(folder / "shard.h5"),
                  std::vector<std::int64_t>(whole.begin() + begin, whole.begin() + last));
      }
    }
    const ShardDescription shard = describe_shard(folder / "shard.h5");
    EXPECT_EQ(shard.end_of_text, end);
  }
  write_token_ranges(folder / "shard.h5", {.vocabulary = 100, .tokenizer = {}}, files, ranges,
                     true);
  std::vector<std::uint64_t> documents(6);
  io::Hdf5Reader(io::index_own_hdf5(folder / "shard.h5"))
      .read_all("documents", io::Hdf5Number::uint64, documents.data());
  EXPECT_EQ(documents, (std::vector<std::uint64_t>{0, 4, 6, 9, 12, 14}));
  EXPECT_EQ(describe_shard(folder / "shard.h5").end_of_text, -1);
}

TEST(TokenFile, ShardsOfOneFolderEndTheirDocumentsAlike) {
  const test::ScratchFolder folder;
  const auto make = [&](const std::string& name, std::int64_t end) {
    io::replace_file(folder / "a", raw<std::uint8_t>({1, 2, 3}));
    write_token_ranges(folder / name, {.vocabulary = 100, .tokenizer = {}, .end_of_text = end},
                       {raw_token_file(folder / "a", 1)}, {{0, 0, 3}}, true);
  };
  make("1.h5", 99);
  make("2.h5", 99);
  EXPECT_EQ(index_dataset(folder / "").info.end_of_text, 99);
  EXPECT_EQ(dataset_index_from_bytes(to_bytes(index_dataset(folder / ""))).info.end_of_text, 99);
  for (const std::int64_t other : {-1, 98}) {
    make("2.h5", other);
    EXPECT_THAT([&] { index_dataset(folder / ""); },
                ThrowsMessage<InputError>(
                    HasSubstr(other < 0 ? "2.h5: its documents end with no token of their own"
                                        : "2.h5: its documents end with token 98")));
  }
}

TEST(TextFile, BytesOfPlainAndCompressedTextsAreTheirTokens) {
  const test::ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 1'000'000; ++i)
    // Any bytes, several pieces long.
    text += static_cast<char>(i * 7 + i / 1000);
  io::replace_file(folder / "plain", text);
  compress_to(folder / "packed.gz", text);
  const std::unique_ptr<Tokenizer> bytes = byte_tokenizer();
  const TokenFile plain = encode_text_file({folder / "plain"}, *bytes, folder / "spool0").tokens,
                  packed =
                      encode_text_file({folder / "packed.gz"}, *bytes, folder / "spool1").tokens;
  EXPECT_EQ(plain.path, folder / "plain");
  EXPECT_FALSE(std::filesystem::exists(folder / "spool0"));
  EXPECT_EQ(packed.count, plain.count);
  EXPECT_EQ(io::read_text_file(packed.path), text);
}

TEST(TextFile, GzipFilesOfOtherFormsAreRefused) {
  const test::ScratchFolder folder;
  using namespace std::string_literals;
  const auto refusal = [&](const std::string& content) {
    compress_to(folder / "a.gz", content);
    return message_of<InputError>(
        [&] { encode_text_file({folder / "a.gz"}, *byte_tokenizer(), folder / "spool"); });
  };
  EXPECT_EQ(refusal("a text"), "");
  EXPECT_EQ(refusal("{\"text\": 1}"), "");
  EXPECT_THAT(refusal("\x1f\x8b\x08 again"), HasSubstr("a.gz: is packed twice"));
  EXPECT_THAT(refusal("BZh91AY&SY\1 again"), HasSubstr("holds a bzip2 file; unpack it once"));
  EXPECT_THAT(refusal(tar_file({{"a", "text"}})), HasSubstr("holds a tar archive, not a text"));
  EXPECT_THAT(refusal("PK\3\4 and so on"), HasSubstr("holds a ZIP archive, not a text"));
}

TEST(TextFile, DamagedCompressedTextsAreRefused) {
  const test::ScratchFolder folder;
  compress_to(folder / "packed.gz", std::string(100'000, 'x'));
  std::string packed = io::read_text_file(folder / "packed.gz");
  io::replace_file(folder / "short.gz", packed.substr(0, packed.size() / 2));
  packed[packed.size() - 6] ^= 1;
  io::replace_file(folder / "wrong.gz", packed);
  const std::unique_ptr<Tokenizer> bytes = byte_tokenizer();
  EXPECT_THAT([&] { encode_text_file({folder / "short.gz"}, *bytes, folder / "spool"); },
              ThrowsMessage<InputError>(
                  HasSubstr("short.gz: is damaged: its compressed data are cut short")));
  EXPECT_THAT([&] { encode_text_file({folder / "wrong.gz"}, *bytes, folder / "spool"); },
              ThrowsMessage<InputError>(HasSubstr("wrong.gz: is damaged")));
}

TEST(TextFile, NothingButZerosMayFollowAGzipMember) {
  const test::ScratchFolder folder;
  const auto member = [&](const std::string& text) {
    compress_to(folder / "member.gz", text);
    return io::read_text_file(folder / "member.gz");
  };
  const std::string first = member("one "), second = member("two "), third = member("three ");
  const auto encode = [&](const std::string& packed) {
    io::replace_file(folder / "a.gz", packed);
    return encode_text_file({folder / "a.gz"}, *byte_tokenizer(), folder / "spool").tokens.count;
  };
  EXPECT_EQ(encode(first + second + third), 14);
  EXPECT_EQ(encode(first + member("") + second + std::string(1000, '\0')), 8);
  for (std::size_t i = 0; i < second.size(); ++i) {
    // zlib does not compare these bytes of a header: a hint, a time, a level and a system.
    if (i >= 3 && i < 10) continue;
    std::string damaged = second;
    damaged[i] ^= 1;
    EXPECT_THAT([&] { encode(first + damaged + third); },
                ThrowsMessage<InputError>(HasSubstr("a.gz: is damaged: ")))
        << i;
  }
  for (std::size_t bytes = 1; bytes < second.size(); ++bytes)
    EXPECT_THAT([&] { encode(first + second.substr(0, bytes)); },
                ThrowsMessage<InputError>(HasSubstr("its compressed data are cut short")))
        << bytes;
  for (const std::string& rest :
       {std::string("junk"), std::string(300'000, '\0') + "junk", std::string(10, '\0') + second})
    EXPECT_THAT([&] { encode(first + rest); },
                ThrowsMessage<InputError>(
                    HasSubstr(fmt::format("the bytes from {} on, after the end of compressed data",
                                          first.size() + rest.find_first_not_of('\0')))));
}

TEST(TextFile, LinesForTrainingAreTheSameAtEveryCallAndFromTheWholeText) {
  const test::ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += fmt::format("line {}\n", i);
  text += std::string(3000, 'y');
  io::replace_file(folder / "text", text);
  const std::vector<std::string> lines = sample_lines({{folder / "text"}}, 1000);
  EXPECT_EQ(lines, sample_lines({{folder / "text"}}, 1000));
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1000u);
  double sum = 0;
  for (const std::string& line : lines) {
    EXPECT_TRUE(line.starts_with("line ") || line == std::string(1024, 'y') ||
                line == std::string(952, 'y'))
        << line;
    if (line.starts_with("line ")) sum += std::stod(line.substr(5));
  }
  EXPECT_NEAR(sum / 1000, 25'000,
              // Uniform: the standard deviation is n / sqrt(12). Tolerance: five of the mean's.
              5 * 14434 / std::sqrt(1000.0));
  for (const std::int64_t count : {1, 2, 3, 5, 10, 20, 40, 80})
    EXPECT_EQ(std::ssize(sample_lines({{folder / "text"}}, count)), count);
  const std::vector<std::string> few = sample_lines({{folder / "text"}}, 100'000);
  EXPECT_EQ(few.size(), 50'003u);
  EXPECT_EQ(few.front(), "line 0");
}

TEST(TokenFile, DocumentsOfEveryLengthGetTheirEnd) {
  const test::ScratchFolder folder;
  // Blocks of 65,536 tokens are read: documents begin, end and lie around their ends.
  const std::vector<std::int64_t> lengths{1, 2, 65'533, 1, 65'536, 65'537, 200'000, 3, 65'535, 1};
  std::vector<std::uint16_t> tokens(
      static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})),
      5);
  TokenFile file{.path = folder / "a", .token_bytes = 2, .count = std::ssize(tokens)};
  std::vector<std::int64_t> ends, expected;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    file.document_ends.push_back((i == 0 ? 0 : file.document_ends.back()) + lengths[i]);
    const bool is_ended = i % 3 == 0;
    tokens[static_cast<std::size_t>(file.document_ends.back()) - 1] = is_ended ? 9 : 7;
    ends.push_back(file.document_ends.back() + static_cast<std::int64_t>(expected.size()));
    if (!is_ended) expected.push_back(ends.back()++);
  }
  io::replace_file(folder / "a",
                   std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
  end_documents(file, 9);
  EXPECT_EQ(file.document_ends, ends);
  EXPECT_EQ(file.added, expected);
  EXPECT_EQ(file.count, ends.back());
}

TEST(TextFile, TheSampleForTrainingIsLimited) {
  const test::ScratchFolder folder;
  const auto sample_of = [&](const std::string& text) {
    io::replace_file(folder / "text", text);
    return sample_lines({{folder / "text"}}, 1'000'000);
  };
  // Ordinary lines are all taken, in their order.
  std::string text;
  std::vector<std::string> lines;
  for (int i = 0; i < 1000; ++i)
    for (const std::string& line : {fmt::format("line {}", i), std::string(128, '-')}) {
      lines.push_back(line);
      text += line + "\n";
    }
  EXPECT_EQ(sample_of(text), lines);
  // Long lines with one beginning are few, however they end.
  for (const std::string& unit : {std::string("a"), std::string("ab"), std::string("word ")}) {
    text.clear();
    while (text.size() < 1'000'000) text += unit;
    // A line is cut at 1 KiB, so it may begin with every letter of the unit.
    EXPECT_LE(sample_of(text).size(), 64 * unit.size());
    text.clear();
    for (int i = 0; i < 500; ++i) text += std::string(129, 'a') + std::to_string(i) + "\n";
    EXPECT_EQ(sample_of(text).size(), 64u);
  }
  // Characters are counted, not bytes.
  const std::string wide = "\xe6\xbc\xa2";
  text.clear();
  for (int i = 0; i < 200'000; ++i) {
    text += std::to_string(1'000'000 + i);
    for (int c = 0; c < 93; ++c) text += c % 7 == i % 7 ? wide : "b";
    text += "\n";
  }
  const std::vector<std::string> some = sample_of(text);
  EXPECT_EQ(some.size(), (std::size_t{16} << 20) / 100);
  EXPECT_EQ(some, sample_of(text));
  EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
}

}  // namespace
}  // namespace trireme::data
