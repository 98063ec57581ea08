// SPDX-License-Identifier: Apache-2.0
//
// Verifies a shard; `trireme verify` calls verify_shard().
//
// 1. With a seal: compare it with the bytes of the file, before HDF5 opens it.
// 2. Index the untrusted file, read its header and document offsets. A seal shows damage, not
//    origin, so a child process opens sealed shards, too.
// 3. With checksums: compare each block. Without: read everything once.
// 4. Tokens: check that each is below the vocabulary. Checksums cannot show this; they only show
//    that the data have not changed since they were written.
// 5. Compare tokenizer.model beside a shard with the digest in it.
#include "trireme/data/shards/verify.hpp"

#include <memory>
#include <optional>

#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "stored_list.hpp"
#include "stored_rows.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/seal.hpp"
#include "verify_samples.hpp"

namespace trireme::data {
namespace {

/// Compares the samples of a shard with its checksums, as verify_samples().
std::optional<std::string> compare_samples(const io::Hdf5Reader& reader,
                                           const ShardDescription& header) {
  const ShardKind& kind = shard_kind(header.kind);
  SampleForm form;
  form.target_use = TargetUse::of_shards;
  ShardIndex shard = kind.index(reader, header, form);
  const std::optional<ShardChecksums> checksums =
      read_checksums(reader, shard.samples(), header.samples);
  DatasetInfo info;
  info.vocabulary = header.vocabulary;
  info.pixel_type = header.pixel_type;
  info.target_kind = header.target.kind;
  info.target = header.target.extents;
  io::FilePool files(1);
  const std::unique_ptr<SampleSource> samples =
      kind.open(std::move(shard), info, form, {files, std::make_shared<RowCache>(0)});
  const std::string difference = samples->verify(checksums ? &*checksums : nullptr, {});
  if (!checksums) return std::nullopt;
  return difference;
}

}  // namespace

std::string verify_shard(const std::string& path) {
  const std::string seal = io::check_seal(path);
  return io::is_damage(seal) ? seal : io::with_seal(seal, verify_shard(io::index_hdf5(path)));
}

std::string verify_shard(io::Hdf5Index file) {
  const io::Hdf5Reader reader(std::move(file));
  return within_memory(reader.path(), [&] {
    const ShardDescription header = read_header(reader);
    std::string result = compare_samples(reader, header).value_or("no checksums");
    if (header.tokenizer == "sentencepiece")
      check_tokenizer_beside(reader.path(), header.tokenizer_digest, header.vocabulary);
    return result;
  });
}

std::optional<std::string> verify_samples(const io::Hdf5Reader& reader) {
  return compare_samples(reader, read_header(reader));
}

}  // namespace trireme::data
