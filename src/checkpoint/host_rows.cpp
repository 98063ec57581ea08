#include "host_rows.hpp"

#include "rows.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::checkpoint {
namespace {

bool in_place(const Piece& piece) { return in_host_memory(device_of(piece.data).kind); }

/// Where local row `row` begins.
float* place_of(const Piece& piece, std::int64_t row) {
  return piece.data + (row - piece.row_begin) * part_of(piece).row_elements();
}

std::size_t bytes_of(const Piece& piece, std::int64_t rows) {
  return static_cast<std::size_t>(rows * part_of(piece).row_elements()) * sizeof(float);
}

}  // namespace

HostRows::HostRows(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) synchronize(piece.stream);
}

std::int64_t HostRows::at_once(const Piece& piece) {
  return in_place(piece) ? std::max<std::int64_t>(1, piece.row_end - piece.row_begin)
                         : rows_a_round(part_of(piece).row_elements());
}

const float* HostRows::read(const Piece& piece, std::int64_t begin, std::int64_t end) {
  float* rows = open(piece, begin, end);
  if (!in_place(piece))
    copy_bytes(piece.stream, rows, place_of(piece, begin), bytes_of(piece, end - begin));
  return rows;
}

float* HostRows::open(const Piece& piece, std::int64_t begin, std::int64_t end) {
  TRIREME_EXPECT(piece.row_begin <= begin && begin <= end && end <= piece.row_end);
  if (in_place(piece)) return place_of(piece, begin);
  const std::int64_t elements = (end - begin) * part_of(piece).row_elements();
  if (elements > capacity_) {
    buffer_.reset();  // before the new one is taken
    buffer_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements));
    capacity_ = elements;
  }
  return buffer_.get();
}

void HostRows::close(const Piece& piece, std::int64_t begin, std::int64_t end) {
  if (!in_place(piece))
    copy_bytes(piece.stream, place_of(piece, begin), buffer_.get(), bytes_of(piece, end - begin));
}

std::uint64_t digest_of(HostRows& rows, const Piece& piece) {
  const parallel::TensorPartition part = part_of(piece);
  std::uint64_t sum = 0;
  for_each_round(piece, HostRows::at_once(piece), [&](std::int64_t begin, std::int64_t end) {
    sum += digest_rows(*piece.spec, part, begin, end, rows.read(piece, begin, end));
  });
  return sum;
}

}  // namespace trireme::checkpoint
