// SPDX-License-Identifier: Apache-2.0
//
// The readers of texts, tokens and tokenizers that are fuzzed: see readers.cpp.
#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "formats.hpp"
#include "input_folder.hpp"
#include "reader_tools.hpp"
#include "trireme/data/tokens/token_file.hpp"
#include "trireme/data/tokens/tokenizer.hpp"

namespace trireme::fuzz {
namespace {

/// Converts the tokens of a file.
bool use_tokens(const data::TokenFile& file) {
  constexpr std::int64_t max_tokens = 1 << 16;
  const std::vector<data::TokenFile> files = {file};
  const std::int64_t count = std::min(file.count, max_tokens);
  const data::TokenSplit split = data::hold_out_ends(files, count / 4);
  const auto ranges = data::slice_ranges(split.training, 0, count);
  expect(data::count_documents(files, ranges) >= std::ssize(ranges), "documents of the ranges");
  if (count > 0)
    data::write_token_ranges(InputFolder::of_process() / "shard.h5",
                             {.vocabulary = 1000, .tokenizer = {}}, files, ranges,
                             !file.document_ends.empty());
  return true;
}

bool read_npy(const std::string& bytes) {
  return use_tokens(data::npy_token_file(write_input(bytes)));
}

std::vector<std::string> npy_seeds() {
  std::vector<std::string> files;
  for (const int version : {1, 2}) {
    const std::string header = version == 1
                                   ? "{'descr': '<u2', 'fortran_order': False, 'shape': (8,), }\n"
                                   : "{'descr': '|i1', 'fortran_order': False, 'shape': (8,), }\n";
    std::string file = "\x93NUMPY";
    file += {static_cast<char>(version), 0};
    if (version == 1)
      put(file, static_cast<std::uint16_t>(header.size()));
    else
      put(file, static_cast<std::uint32_t>(header.size()));
    file += header;
    for (char token = 0; token < 8; ++token)
      file += version == 1 ? std::string{token, 1} : std::string{token};
    files.push_back(file);
  }
  return files;
}

/// The input is NAME.idx; NAME.bin has 64 bytes.
bool read_megatron(const std::string& bytes) {
  const InputFolder& folder = InputFolder::of_process();
  folder.write("input.bin", std::string(64, '\1'));
  const std::optional<data::TokenFile> file =
      data::megatron_token_file(folder.write("input.idx", bytes));
  return file && use_tokens(*file);
}

std::vector<std::string> megatron_seeds() {
  std::vector<std::string> files;
  for (const std::int64_t token_bytes : {1, 2}) {
    constexpr char uint8 = 1, uint16 = 8;
    std::string file("MMIDIDX\0\0", 9);
    put(file, std::uint64_t{1});
    file += token_bytes == 1 ? uint8 : uint16;
    put(file, std::uint64_t{4});
    put(file, std::uint64_t{3});
    const std::int64_t length = 16 / token_bytes;
    for (int i = 0; i < 4; ++i) put(file, static_cast<std::int32_t>(length));
    for (std::int64_t i = 0; i < 4; ++i) put(file, i * length * token_bytes);
    for (const std::int64_t begin : {0, 1, 4}) put(file, begin);
    files.push_back(file);
    files.push_back(file + std::string(4, '\0'));  // with modes
  }
  return files;
}

/// Files with the header of llm.c, and without: then the tokens are uint16, as those of nanoGPT.
bool read_llm_c(const std::string& bytes) {
  const std::string path = write_input(bytes);
  if (const auto file = data::llm_c_token_file(path)) return use_tokens(*file);
  return use_tokens(data::raw_token_file(path, 2));
}

std::vector<std::string> llm_c_seeds() {
  std::vector<std::string> files;
  for (const std::int32_t version : {1, 7}) {
    std::string file;
    put(file, version == 1 ? 20240520 : 20240801);
    put(file, version);
    put(file, std::int32_t{8});
    file.resize(1024, '\0');
    file.append(static_cast<std::size_t>(version == 1 ? 16 : 32), '\0');
    files.push_back(file);
  }
  files.push_back(std::string(32, '\1'));
  return files;
}

bool read_text(const std::string& bytes) {
  const std::string path = write_input(bytes);
  // The smallest tokenizer that encodes every piece and demands UTF-8.
  class Utf8Tokenizer : public data::Tokenizer {
   public:
    std::string name() const override { return "test"; }
    std::int64_t vocabulary() const override { return 70000; }
    std::vector<std::int32_t> encode(std::string_view text) const override {
      return {text.begin(), text.end()};
    }
    std::string decode(std::span<const std::int32_t>) const override { return ""; }
    bool is_text(std::int32_t) const override { return true; }
  };
  const std::string spool = InputFolder::of_process() / "spool";
  const auto lines = data::sample_lines({{path}}, 4);
  expect(lines.size() <= 4, "lines of a sample");
  const data::TokenFile file =
      data::encode_text_file({path}, *data::byte_tokenizer(), spool).tokens;
  const bool is_utf8 =
      accepts([&] { data::encode_text_file({path}, Utf8Tokenizer(), spool + ".2"); });
  return is_utf8 && file.count >= 0;
}

/// Texts in JSON Lines, with and without lines that cannot be used.
bool read_jsonl(const std::string& bytes) {
  const std::string path = write_input(bytes), spool = InputFolder::of_process() / "spool";
  const auto encode = [&](bool skip) {
    return data::encode_text_file({path, "text", skip}, *data::byte_tokenizer(), spool);
  };
  data::EncodedText all = encode(true);
  data::end_documents(all.tokens, 256);
  expect(std::ssize(all.tokens.added) == std::ssize(all.tokens.document_ends), "ends of documents");
  const bool good = accepts([&] { encode(false); });
  expect(good == all.skipped.empty(), "lines that are left out");
  return good && use_tokens(all.tokens);
}

std::vector<std::string> jsonl_seeds() {
  const std::string lines =
      "{\"text\": \"one\\ntwo \\u00e9\", \"id\": 7, \"more\": [1, {\"text\": null}]}\n\r\n"
      "{\"id\": -1.5e3, \"text\": \"\xe2\x82\xac\"}";
  return {lines, gzip_file(lines), "{\"text\": \"\"}\n{\"text\": \"a\", \"text\": \"b\"}\n"};
}

std::vector<std::string> text_seeds() {
  std::string lines;
  while (lines.size() < 9000)
    lines += "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 " + lines.substr(0, 70);
  return {"one\ntwo\n\nthree", lines, gzip_file(lines), gzip_file("one\ntwo\n")};
}

/// The model of a SentencePiece tokenizer.
bool read_sentencepiece(const std::string& bytes) {
  const auto tokenizer = data::sentencepiece_tokenizer(bytes, "input");
  const std::vector<std::int32_t> ids = tokenizer->encode("one two caf\xc3\xa9 \xe2\x82\xac 123");
  tokenizer->decode(ids);
  return true;
}

std::vector<std::string> sentencepiece_seeds() {
  if (!data::has_sentencepiece()) return {};
  std::vector<std::string> lines;
  for (int i = 0; i < 100; ++i) lines.push_back(fmt::format("one two {} three {}", i, i * i));
  return {data::train_tokenizer(lines, 280)};
}

constexpr Reader readers_of_tokens[] = {
    {"npy", read_npy, npy_seeds, nullptr},
    {"megatron", read_megatron, megatron_seeds, nullptr},
    {"llm_c", read_llm_c, llm_c_seeds, nullptr},
    {"text", read_text, text_seeds, nullptr},
    {"jsonl", read_jsonl, jsonl_seeds, nullptr},
    {"sentencepiece", read_sentencepiece, sentencepiece_seeds, nullptr},
};

}  // namespace

std::span<const Reader> token_readers() { return readers_of_tokens; }

}  // namespace trireme::fuzz
