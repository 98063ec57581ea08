#include "values.hpp"

#include <algorithm>

#include "host_rows.hpp"
#include "rows.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t element_bytes = sizeof(float);

/// Local rows [begin, end) of a part, which stand in file order at `rows`, to where their tensor
/// lies.
void write_rows(const io::File& file, const Extent& tensor, const parallel::ParameterSpec& spec,
                const parallel::TensorPartition& part, std::int64_t begin, std::int64_t end,
                const float* rows) {
  const auto put = [&](std::int64_t element, const float* values, std::int64_t count) {
    file.write_at(tensor.offset + element * element_bytes, values, count * element_bytes);
  };
  const std::int64_t first = part.row_begin() + begin;
  if (part.row_elements() == spec.row_elements()) {
    put(first * spec.row_elements(), rows, (end - begin) * spec.row_elements());
    return;
  }
  for (std::int64_t row = 0; row < end - begin; ++row) {
    for (const parallel::TensorPartition::Segment& segment : part.segments()) {
      put((first + row) * spec.row_elements() + segment.file_column,
          rows + row * part.row_elements() + segment.column, segment.count);
    }
  }
}

void write_piece(const io::File& file, const Extent& tensor, const Piece& piece, HostRows& host,
                 float* staging) {
  const parallel::ParameterSpec& spec = *piece.spec;
  const parallel::TensorPartition part = part_of(piece);
  const bool plain = spec.inner == parallel::InnerOrder::plain;
  for_each_round(piece, plain ? HostRows::at_once(piece) : rows_a_round(part.row_elements()),
                 [&](std::int64_t begin, std::int64_t end) {
                   const float* rows = host.read(piece, begin, end);
                   if (!plain) to_file_order(spec, end - begin, rows, staging);
                   write_rows(file, tensor, spec, part, begin, end, plain ? rows : staging);
                 });
}

}  // namespace

std::int64_t elements_of(const Piece& piece) {
  return (piece.row_end - piece.row_begin) * part_of(piece).row_elements();
}

bool holds_whole_rows(const Piece& piece) {
  return part_of(piece).row_elements() == piece.spec->row_elements();
}

std::int64_t staging_elements(std::span<const Piece> pieces) {
  std::int64_t most = 1;
  for (const Piece& piece : pieces) {
    if (piece.spec->inner == parallel::InnerOrder::plain) continue;
    const std::int64_t row_elements = piece.spec->row_elements();  // such a tensor is never split
    most = std::max(
        most, std::min(rows_a_round(row_elements), piece.row_end - piece.row_begin) * row_elements);
  }
  return most;
}

void write_values(const std::string& path, std::span<const Piece> pieces,
                  std::span<const Extent> tensors, std::span<const char> left_out, float* staging) {
  io::File file(path, io::File::Mode::update);
  HostRows host(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i == pieces.size() / 2) enter_phase("checkpoint-write");
    const bool written = !left_out.empty() && left_out[i] != 0;
    if (!written && pieces[i].row_begin < pieces[i].row_end)
      write_piece(file, tensors[i], pieces[i], host, staging);
  }
  file.sync();
  file.close();
}

}  // namespace trireme::checkpoint
