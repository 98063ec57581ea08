// Reads files in the idx format of MNIST; see https://yann.lecun.com/exdb/mnist for the format.
#include "trireme/data/idx.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "gzip_reader.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// The greatest ratio that zlib reaches. A header that claims more than this is damaged.
constexpr std::int64_t max_deflate_ratio = 1032;

}  // namespace

IdxReader::IdxReader(const std::string& path, int rank)
    : path_(path), file_(std::make_unique<GzipReader>(path)) {
  const std::int64_t file_bytes = file_->file_bytes();

  const auto header_bytes = static_cast<std::size_t>(4 + 4 * rank);
  unsigned char header[4 + 4 * 8];
  TRIREME_EXPECT(rank >= 1 && rank <= 8);
  read({reinterpret_cast<std::byte*>(header), header_bytes});
  validate(header[0] == 0 && header[1] == 0 && header[2] == 8 && header[3] == rank,
           "{}: begins with the bytes {:02x} {:02x} {:02x} {:02x}, where an idx file of {} begins "
           "with 00 00 08 {:02x}",
           path, header[0], header[1], header[2], header[3], rank == 3 ? "images" : "labels", rank);
  std::int64_t bytes = 1;
  for (int i = 0; i < rank; ++i) {
    const unsigned char* at = header + 4 + 4 * i;
    shape_.push_back((std::int64_t{at[0]} << 24) | (std::int64_t{at[1]} << 16) |
                     (std::int64_t{at[2]} << 8) | std::int64_t{at[3]});
    const bool overflow = __builtin_mul_overflow(bytes, shape_.back(), &bytes);
    validate(!overflow && shape_.back() > 0, "{}: its header says extents [{}], which are invalid",
             path, fmt::join(shape_, ", "));
  }
  const auto head = static_cast<std::int64_t>(header_bytes);
  if (file_->compressed()) {
    validate(bytes / max_deflate_ratio <= file_bytes,
             "{}: its header says [{}], {} bytes, which the {} compressed bytes cannot hold", path,
             fmt::join(shape_, ", "), bytes, file_bytes);
  } else {
    validate(bytes == file_bytes - head,
             "{}: its header says [{}], {} bytes, but {} follow it: the file is {}", path,
             fmt::join(shape_, ", "), bytes, file_bytes - head,
             bytes > file_bytes - head ? "cut short" : "longer than its header says");
  }
  bytes_read_ = 0;
}

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
