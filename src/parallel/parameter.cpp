// SPDX-License-Identifier: Apache-2.0
//
// Partitions of tensors over the tensor group, the list of declared parameters, and initial values.
//
// Blocks declare their parameters through ParameterList::declare() when a model is built.
// ParameterStore::initialize() and the checkpoint code then use TensorPartition and
// initialize_rows().

#include "trireme/parallel/parameter.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::parallel {

namespace {

using Segment = TensorPartition::Segment;

/// Returns the part of an extent that rank `rank` of `size` receives: a range of each section,
/// merged if adjacent.
std::vector<Segment> share_of(std::int64_t extent, const std::vector<std::int64_t>& sections,
                              int rank, int size) {
  std::vector<Segment> share;
  std::int64_t section_begin = 0, local = 0;
  const std::vector<std::int64_t> whole{extent};
  for (const std::int64_t section : sections.empty() ? whole : sections) {
    const std::int64_t begin = section_begin + section * rank / size,
                       count = section_begin + section * (rank + 1) / size - begin;
    if (!share.empty() && share.back().file + share.back().count == begin) {
      share.back().count += count;
    } else if (count > 0) {
      share.push_back({begin, local, count});
    }
    section_begin += section;
    local += count;
  }
  TRIREME_EXPECT(section_begin == extent);
  return share;
}

std::int64_t extent_of(const std::vector<Segment>& share) {
  return share.empty() ? 0 : share.back().local + share.back().count;
}

}  // namespace

TensorPartition::TensorPartition(const ParameterSpec& spec, int rank, int size)
    : rows_(spec.rows()),
      row_elements_(spec.row_elements()),
      segments_{{0, 0, row_elements_}},
      row_segments_{{0, 0, rows_}},
      shape_(spec.shape),
      inner_(spec.inner),
      replicated_(spec.split.along == Split::Along::none || size == 1) {
  TRIREME_EXPECT(0 <= rank && rank < size);
  TRIREME_EXPECT(spec.inner == InnerOrder::plain || spec.split.along == Split::Along::none);
  if (spec.split.along == Split::Along::none) return;
  if (spec.split.along == Split::Along::rows && spec.shape.rank() > 1) {
    row_segments_ = share_of(rows_, spec.split.sections, rank, size);
    row_begin_ = row_segments_.empty() ? rows_ * rank / size : row_segments_.front().file;
    rows_ = shape_[0] = extent_of(row_segments_);
  } else {
    TRIREME_EXPECT(spec.shape.rank() == 1 || spec.shape.rank() == 2);
    segments_ = share_of(row_elements_, spec.split.sections, rank, size);
    row_elements_ = shape_[shape_.rank() - 1] = extent_of(segments_);
  }
}

std::vector<Segment> TensorPartition::row_segments(std::int64_t begin, std::int64_t end) const {
  TRIREME_EXPECT(0 <= begin && begin <= end && end <= rows_);
  std::vector<Segment> rows;
  for (const Segment& segment : row_segments_) {
    const std::int64_t first = std::max(begin, segment.local),
                       last = std::min(end, segment.local + segment.count);
    if (first < last) rows.push_back({segment.file + first - segment.local, first, last - first});
  }
  return rows;
}

Shape TensorPartition::memory_shape() const {
  return inner_ == InnerOrder::channels_last ? Shape{shape_[0], shape_[2], shape_[3], shape_[1]}
                                             : shape_;
}

ParameterId ParameterList::declare(ParameterSpec spec) {
  if (is_head_) spec.form = MatrixForm::none;
  // A second declaration is valid only for equal tied parameters.
  if (const int same = find(spec.name); same >= 0) {
    const ParameterSpec& first = entries_[static_cast<std::size_t>(same)].spec;
    ensure(first.tied && spec.tied,
           "parameter {} is declared twice: a checkpoint could hold only one of the two",
           spec.name);
    ensure(first == spec, "parameter {} is tied, but its two blocks declare it differently",
           spec.name);
    return {same};
  }
  TRIREME_EXPECT(spec.shape.elements() > 0);
  TRIREME_EXPECT(spec.inner == InnerOrder::plain || spec.shape.rank() == 4);
  TRIREME_EXPECT(!spec.joined ||
                 (!spec.tied && !entries_.empty() && entries_.back().block == block_));
  TensorPartition part(spec, tensor_rank_, tensor_size_);
  index_of_name_.emplace(spec.name, static_cast<int>(entries_.size()));
  entries_.push_back({std::move(spec), block_, std::move(part)});
  return {static_cast<std::int32_t>(entries_.size()) - 1};
}

int ParameterList::find(std::string_view name) const {
  const auto found = index_of_name_.find(name);
  return found == index_of_name_.end() ? -1 : found->second;
}

std::int64_t memory_index(const ParameterSpec& spec, std::int64_t inner) {
  if (spec.inner == InnerOrder::plain) return inner;
  const std::int64_t pixels = spec.shape[2] * spec.shape[3];
  return inner % pixels * spec.shape[1] + inner / pixels;
}

void initialize_rows(const ParameterSpec& spec, const TensorPartition& part, std::uint64_t seed,
                     std::int64_t row_begin, std::int64_t row_end, float* rows) {
  TRIREME_EXPECT(0 <= row_begin && row_begin <= row_end && row_end <= part.rows());
  const Initializer& initializer = spec.initializer;
  if (initializer.kind == Initializer::Kind::constant) {
    std::fill_n(rows, (row_end - row_begin) * part.row_elements(),
                static_cast<float>(initializer.value));
    return;
  }
  // Random values depend on (seed, name, index in the file), not on the layout.
  const std::uint64_t key = random_key(seed, "init/" + spec.name);
  for (const Segment& range : part.row_segments(row_begin, row_end)) {
    for (std::int64_t row = 0; row < range.count; ++row) {
      float* out = rows + (range.local + row - row_begin) * part.row_elements();
      const std::int64_t file_row = (range.file + row) * spec.row_elements();
      for (const Segment& segment : part.segments()) {
        for (std::int64_t i = 0; i < segment.count; ++i) {
          const auto index = static_cast<std::uint64_t>(file_row + segment.file + i);
          const double unit = initializer.kind == Initializer::Kind::normal
                                  ? normal_at(key, index)
                                  : 2 * uniform_at(key, index) - 1;
          out[memory_index(spec, segment.local + i)] = static_cast<float>(initializer.value * unit);
        }
      }
    }
  }
}

}  // namespace trireme::parallel
