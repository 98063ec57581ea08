// SPDX-License-Identifier: Apache-2.0
//
// Reads files in the idx format of MNIST; see https://yann.lecun.com/exdb/mnist for the format.
#include "idx.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "channel_order.hpp"
#include "data/shards/shard_limits.hpp"
#include "gzip_reader.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// The greatest ratio that zlib reaches. A header that claims more than this is damaged.
constexpr std::int64_t max_deflate_ratio = 1032;

}  // namespace

IdxReader::IdxReader(const std::string& path, Items items)
    : path_(path), file_(std::make_unique<GzipReader>(path)) {
  const std::int64_t file_bytes = file_->file_bytes();
  // 1. Two zeros, the code of bytes, the number of dimensions.
  unsigned char start[4];
  read(std::as_writable_bytes(std::span(start)));
  const int dimensions = start[3];
  const bool of_images = items == Items::images,
             fits = of_images ? dimensions == 3 || dimensions == 4 : dimensions == 1;
  validate(start[0] == 0 && start[1] == 0 && start[2] == 8 && fits,
           "{}: begins with the bytes {:02x} {:02x} {:02x} {:02x}, where an idx file of {} begins "
           "with 00 00 08 {}",
           path, start[0], start[1], start[2], start[3], of_images ? "images" : "labels",
           of_images ? "03 (gray) or 00 00 08 04 (with channels)" : "01");
  // 2. The extents, big-endian.
  std::int64_t bytes = 1;
  for (int i = 0; i < dimensions; ++i) {
    unsigned char at[4];
    read(std::as_writable_bytes(std::span(at)));
    shape_.push_back((std::int64_t{at[0]} << 24) | (std::int64_t{at[1]} << 16) |
                     (std::int64_t{at[2]} << 8) | std::int64_t{at[3]});
    const bool overflow = __builtin_mul_overflow(bytes, shape_.back(), &bytes);
    validate(!overflow && shape_.back() > 0, "{}: its header says extents [{}], which are invalid",
             path, fmt::join(shape_, ", "));
  }
  validate(dimensions < 4 || shape_[3] <= max_channels,
           "{}: its header says extents [{}]; images have 1 to {} channels", path,
           fmt::join(shape_, ", "), max_channels);
  const std::string problem = channels_first_problem(shape_);
  validate(problem.empty(), "{}: its header says {}", path, problem);
  if (file_->compressed()) {
    validate(bytes / max_deflate_ratio <= file_bytes,
             "{}: its header says [{}], {} bytes, which the {} compressed bytes cannot hold", path,
             fmt::join(shape_, ", "), bytes, file_bytes);
  } else {
    validate(bytes == file_bytes - header_bytes(),
             "{}: its header says [{}], {} bytes, but {} follow it: the file is {}", path,
             fmt::join(shape_, ", "), bytes, file_bytes - header_bytes(),
             bytes > file_bytes - header_bytes() ? "cut short" : "longer than its header says");
  }
  bytes_read_ = 0;
}

bool IdxReader::compressed() const { return file_->compressed(); }

std::int64_t IdxReader::file_bytes() const { return file_->file_bytes(); }

IdxReader::~IdxReader() = default;
IdxReader::IdxReader(IdxReader&&) noexcept = default;

std::int64_t IdxReader::item_bytes() const {
  std::int64_t bytes = 1;
  for (std::size_t i = 1; i < shape_.size(); ++i) bytes *= shape_[i];
  return bytes;
}

void IdxReader::read(std::span<std::byte> out) {
  const std::size_t got = file_->read(out);
  bytes_read_ += static_cast<std::int64_t>(got);
  validate(got == out.size(), "{}: is cut short: {} bytes are missing after {} of its data", path_,
           out.size() - got, bytes_read_);
}

void IdxReader::skip(std::int64_t items) {
  std::vector<std::byte> waste(1 << 16);
  for (std::int64_t left = items * item_bytes(); left > 0;) {
    const std::int64_t part = std::min(left, static_cast<std::int64_t>(waste.size()));
    read({waste.data(), static_cast<std::size_t>(part)});
    left -= part;
  }
}

void IdxReader::finish() {
  std::byte beyond{};
  validate(file_->read({&beyond, 1}) == 0, "{}: holds more bytes than its header says ([{}])",
           path_, fmt::join(shape_, ", "));
}

}  // namespace trireme::data
