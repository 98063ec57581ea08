#include "trireme/parallel/parameter.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::parallel {

ParameterId ParameterList::declare(ParameterSpec spec) {
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.spec.name == spec.name; });
  ensure(same == entries_.end(), "parameter {} is declared twice: a checkpoint could hold only one of the two", spec.name);
  TRIREME_EXPECT(spec.shape.elements() > 0);
  TRIREME_EXPECT(spec.inner == InnerOrder::plain || spec.shape.rank() == 4);
  entries_.push_back({std::move(spec), block_});
  return {static_cast<std::int32_t>(entries_.size()) - 1};
}

std::int64_t memory_index(const ParameterSpec& spec, std::int64_t inner) {
  if (spec.inner == InnerOrder::plain) return inner;
  const std::int64_t pixels = spec.shape[2] * spec.shape[3];
  return inner % pixels * spec.shape[1] + inner / pixels;
}

void initialize_rows(const ParameterSpec& spec, std::uint64_t seed, std::int64_t row_begin, std::int64_t row_end, float* rows) {
  TRIREME_EXPECT(0 <= row_begin && row_begin <= row_end && row_end <= spec.rows());
  const std::int64_t row_elements = spec.row_elements();
  const Initializer& initializer = spec.initializer;
  if (initializer.kind == Initializer::Kind::constant) {
    std::fill_n(rows, (row_end - row_begin) * row_elements, static_cast<float>(initializer.value));
    return;
  }
  const std::uint64_t key = random_key(seed, "init/" + spec.name);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    float* out = rows + (row - row_begin) * row_elements;
    for (std::int64_t inner = 0; inner < row_elements; ++inner) {
      const auto index = static_cast<std::uint64_t>(row * row_elements + inner);
      const double unit = initializer.kind == Initializer::Kind::normal ? normal_at(key, index) : 2 * uniform_at(key, index) - 1;
      out[memory_index(spec, inner)] = static_cast<float>(initializer.value * unit);
    }
  }
}

}  // namespace trireme::parallel
