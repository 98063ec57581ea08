// SPDX-License-Identifier: Apache-2.0
//
// Reading a written file back, each rank its share of the 4 MiB blocks: their hashes for the seal,
// and digests to compare with memory.
#include "read_back.hpp"

#include <algorithm>

#include "digest.hpp"
#include "trireme/base/check.hpp"
#include "trireme/device/profile_range.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t float_bytes = 4;

/// Returns the contribution of bytes [begin, end) of the file to the digest of a tensor: of all
/// elements that start in this range. `data` holds these bytes and up to 3 more, for an element
/// that crosses `end`.
std::uint64_t partial_digest(const FileExtent& tensor, std::int64_t begin, std::int64_t end,
                             const char* data) {
  const auto first_at_or_after = [&](std::int64_t position) {
    return std::clamp<std::int64_t>((position - tensor.offset + float_bytes - 1) / float_bytes, 0,
                                    tensor.elements);
  };
  if (tensor.offset >= end || tensor.offset + tensor.elements * float_bytes <= begin) return 0;
  const std::int64_t first = tensor.offset >= begin ? 0 : first_at_or_after(begin),
                     last = first_at_or_after(end);
  if (first >= last) return 0;
  return digest_values(data + (tensor.offset + first * float_bytes - begin),
                       static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last - first));
}

}  // namespace

ReadBack read_share(int rank, int size, const std::string& path, std::int64_t user_block,
                    std::int64_t file_bytes, std::span<const FileExtent> tensors,
                    std::span<char> buffer) {
  const ProfileRange range("trireme/checkpoint/read_back", "checkpoint");
  const std::int64_t blocks = io::seal_blocks(file_bytes - user_block);
  ReadBack found{std::vector<std::uint64_t>(static_cast<std::size_t>(blocks)),
                 std::vector<std::uint64_t>(tensors.size())};
  const io::File file(path, io::File::Mode::read);
  ensure(file.size() == file_bytes,
         "{}: has {} bytes on one rank, {} on another: the file system shows different files", path,
         file.size(), file_bytes);
  for (std::int64_t block = blocks * rank / size; block < blocks * (rank + 1) / size; ++block) {
    const std::int64_t begin = user_block + block * io::seal_block_bytes,
                       end = std::min(begin + io::seal_block_bytes, file_bytes);
    file.read_at(begin, buffer.data(), std::min(end + float_bytes - 1, file_bytes) - begin);
    found.block_hashes[static_cast<std::size_t>(block)] =
        io::xxh3(buffer.data(), static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < tensors.size(); ++i)
      found.digests[i] += partial_digest(tensors[i], begin, end, buffer.data());
  }
  return found;
}

void sum_over_ranks(const comm::Communicator& world, ReadBack& found) {
  world.all_reduce(std::span(found.block_hashes), comm::Reduction::sum);
  world.all_reduce(std::span(found.digests), comm::Reduction::sum);
}

}  // namespace trireme::checkpoint
