#include "trireme/optim/norms.hpp"

#include <algorithm>
#include <span>

#include "trireme/base/check.hpp"

namespace trireme::optim {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}
template <class T>
std::span<std::byte> writable_bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span<T>(values));
}

}  // namespace

SquareSums::SquareSums(const parallel::ParameterStore& store, const NormGroups& groups, const parallel::StateMemory& memory)
    : store_(store), model_(groups.model), counted_(groups.counted), rows_(store.owned().rows(), memory) {
  const auto& entries = store.list().entries();
  TRIREME_EXPECT(groups.tensors == 0 || groups.global_index.size() == entries.size());
  TRIREME_EXPECT(counted_.empty() || counted_.size() == entries.size());
  const bool alone = groups.tensors == 0;
  const std::size_t tensors = alone ? entries.size() : static_cast<std::size_t>(groups.tensors);
  for (std::size_t t = 0; t < entries.size(); ++t) {
    const std::size_t global = alone ? t : static_cast<std::size_t>(groups.global_index[t]);
    TRIREME_EXPECT(global < tensors);
    index_.push_back(entries[t].spec.role == parallel::Role::statistic ? tensors : global);
  }
  if (counted_.empty()) counted_.assign(entries.size(), 1);
  squares_.resize(tensors + 1);
  if (model_.size() > 1) parts_.resize(squares_.size() * static_cast<std::size_t>(model_.size()));

  // Whose is each row, and the how manieth of theirs.
  const auto& layout = store.layout();
  const bool sharded = store.sharding().kind != parallel::ShardKind::none;
  const auto ranks = static_cast<std::size_t>(sharded ? store.sharding().size() : 1);
  std::vector<std::size_t> counts(ranks), owner, number;
  for (const ops::FlatRow& row : layout.rows()) {
    const auto bucket = static_cast<std::size_t>(layout.slot({row.tensor}).bucket);
    const std::vector<std::int64_t>& bounds = store.owned().buckets()[bucket].bounds;
    const auto after = std::upper_bound(bounds.begin(), bounds.end(), row.offset - layout.buckets()[bucket].begin);
    owner.push_back(static_cast<std::size_t>(after - bounds.begin()) - 1);
    number.push_back(counts[owner.back()]++);
  }
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  for (std::size_t r = 0; r < owner.size(); ++r) place_.push_back(owner[r] * longest + number[r]);
  mine_.resize(longest);
  sums_ = {mine_, memory};
  if (sharded) gathered_.resize(longest * ranks);
}

void SquareSums::measure(ops::Context& context, const Tensor& flat) {
  for (const parallel::Shard::Window& window : store_.owned().windows()) measure(context, window, flat.rows(window.begin, window.end));
  add_up(context);
}

void SquareSums::measure(ops::Context& context, parallel::WindowedBuffer& buffer) {
  for (const parallel::Shard::Window& window : store_.owned().windows()) measure(context, window, buffer.open(context, window));
  add_up(context);
}

void SquareSums::measure(ops::Context& context, const parallel::Shard::Window& window, const Tensor& elements) {
  ops::row_square_sums(context, elements, rows_.on(context.stream()) + window.row_begin, static_cast<std::int64_t>(window.row_end - window.row_begin),
                       sums_.on(context.stream()) + window.row_begin);
}

/// The sums of squares by tensor from those of the owned rows.
void SquareSums::add_up(ops::Context& context) {
  sums_.fetch(context.stream());
  if (!gathered_.empty()) store_.sharding().data.all_gather(bytes_of(mine_), writable_bytes_of(gathered_));
  const std::vector<double>& rows = gathered_.empty() ? mine_ : gathered_;
  std::fill(squares_.begin(), squares_.end(), 0.0);
  for (std::size_t r = 0; r < place_.size() && !context.meta(); ++r) {
    const auto tensor = static_cast<std::size_t>(store_.layout().rows()[r].tensor);
    if (counted_[tensor] != 0) squares_[index_[tensor]] += rows[place_[r]];
  }
  if (model_.size() > 1) {
    model_.all_gather(bytes_of(squares_), writable_bytes_of(parts_));
    for (std::size_t t = 0; t < squares_.size(); ++t) {
      squares_[t] = 0;
      for (std::size_t at = t; at < parts_.size(); at += squares_.size()) squares_[t] += parts_[at];
    }
  }
  weights_ = 0;
  for (std::size_t t = 0; t + 1 < squares_.size(); ++t) weights_ += squares_[t];
}

}  // namespace trireme::optim
