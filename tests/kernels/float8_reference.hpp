// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reference for float8 in double precision: values of codes by their definition (Micikevicius et
// al. 2022, table 1), rounding by a search among all values.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "trireme/kernels/float8.hpp"

namespace trireme::test {

template <class T>
double float8_value(std::uint8_t code) {
  const bool e4m3 = std::is_same_v<T, Float8E4M3>;
  const int bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, last = e4m3 ? 15 : 31;
  const int mantissa = code & ((1 << bits) - 1), exponent = (code & 127) >> bits;
  double magnitude = 0;
  if (e4m3 && exponent == last && mantissa == 7)
    magnitude = NAN;
  else if (!e4m3 && exponent == last)
    magnitude = mantissa == 0 ? INFINITY : NAN;
  else
    magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - bits)
                              : std::ldexp((1 << bits) + mantissa, exponent - bias - bits);
  return code >> 7 != 0 ? -magnitude : magnitude;
}

/// Code of the largest number. The codes from 0 to it are the finite, nonnegative numbers in
/// ascending order.
template <class T>
constexpr std::uint8_t max_finite_code = std::is_same_v<T, Float8E4M3> ? 0x7E : 0x7B;

template <class T>
std::uint8_t nearest_code(double value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (!std::isfinite(value)) return 0x7F | sign;
  static const std::vector<double> numbers = [] {
    std::vector<double> all;
    for (std::uint8_t code = 0; code <= max_finite_code<T>; ++code)
      all.push_back(float8_value<T>(code));
    return all;
  }();
  const double magnitude = std::abs(value);
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  if (above == numbers.end()) return max_finite_code<T> | sign;
  auto code = static_cast<std::uint8_t>(above - numbers.begin());
  if (*above == magnitude) return code | sign;
  const double up = *above - magnitude, down = magnitude - *(above - 1);
  if (down < up || (down == up && code % 2 == 1)) --code;
  return code | sign;
}

/// Returns the largest power of two in [2^-126, 2^126] under which `largest` stays in the range of
/// T.
template <class T>
double reference_scale(double largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  int power = 126;
  while (power > -126 && std::ldexp(largest, power) > float8_value<T>(max_finite_code<T>)) --power;
  return std::ldexp(1.0, power);
}

/// Returns the values of a tensor after rounding to float8 and back.
template <class T>
std::vector<double> float8_rounded(std::vector<double> values) {
  double largest = 0;
  for (const double value : values)
    largest = std::isnan(value) ? INFINITY : std::max(largest, std::abs(value));
  const double scale = reference_scale<T>(largest);
  for (double& value : values) value = float8_value<T>(nearest_code<T>(value * scale)) / scale;
  return values;
}

}  // namespace trireme::test
