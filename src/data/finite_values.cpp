// SPDX-License-Identifier: Apache-2.0
#include "finite_values.hpp"

namespace trireme::data {
namespace {

/// Returns whether one of `count` numbers is infinite or NaN: all bits of its exponent are 1.
template <class Bits>
bool any_not_finite(const Bits* numbers, std::int64_t count, Bits exponent) {
  unsigned found = 0;
  for (std::int64_t i = 0; i < count; ++i)
    found |= static_cast<unsigned>((numbers[i] & exponent) == exponent);
  return found != 0;
}

template <class Bits>
std::int64_t find_in(const std::byte* values, std::int64_t count, Bits exponent) {
  const auto* numbers = reinterpret_cast<const Bits*>(values);
  if (!any_not_finite(numbers, count, exponent)) return -1;
  std::int64_t at = 0;
  while ((numbers[at] & exponent) != exponent) ++at;
  return at;
}

}  // namespace

std::int64_t find_not_finite(DType type, const std::byte* values, std::int64_t count) {
  if (type == DType::float32) return find_in(values, count, std::uint32_t{0x7F800000});
  if (type == DType::float16) return find_in(values, count, std::uint16_t{0x7C00});
  return -1;
}

}  // namespace trireme::data
