// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels over the rows of a matrix whose elements are computed independently, so that the
// partition of the work never changes a bit.
// On the host a row is a piece (launch.hpp). On a device a thread takes one pack of some
// neighboring rows. The body has for it:
//
//   static constexpr int lanes, rows_at_once;
//   template <int rows, int lanes> void process(row, column) const;
//
// process() handles elements [row, row + rows) x [column, column + lanes) and loads all of them
// before it stores any. `lanes` is the body's own or 1, and so is `rows`.

#include "launch.hpp"
#include "pack.hpp"
#include "trireme/base/philox.hpp"  // wide_product

namespace trireme::kernels {

/// Exclusive upper limit of the indices that a Divisor can divide.
constexpr std::int64_t dividend_limit = std::int64_t{1} << 31;

/// Divides numbers below 2^31 by a fixed number: one product and one shift (Granlund and Montgomery
/// 1994), a fifth of the cost of a division.
class Divisor {
 public:
  explicit Divisor(std::int64_t divisor) : divisor_(divisor) {
    // Every quotient is 0.
    if (divisor >= dividend_limit) return;
    int bits = 0;
    while ((std::int64_t{1} << bits) < divisor) ++bits;
    shift_ = 31 + bits;
    multiplier_ = static_cast<std::uint32_t>(
        (std::uint64_t{1} << shift_) / static_cast<std::uint64_t>(divisor) + 1);
  }
  KOKKOS_FUNCTION std::int64_t value() const { return divisor_; }
  KOKKOS_FUNCTION std::int64_t quotient(std::int64_t dividend) const {
    return static_cast<std::int64_t>(
        wide_product(static_cast<std::uint32_t>(dividend), multiplier_) >> shift_);
  }

 private:
  std::int64_t divisor_;
  std::uint32_t multiplier_ = 0;
  int shift_ = 0;
};

/// Device threads over a matrix [rows, packs * lanes] and the first `rest` elements of the row
/// after it.
template <class Body, int lanes>
class PackedRows {
 public:
  PackedRows(const Body& body, std::int64_t rows, std::int64_t packs, std::int64_t rest)
      : body_(body),
        rows_(rows),
        packs_(packs),
        units_((rows + Body::rows_at_once - 1) / Body::rows_at_once * packs),
        rest_(rest) {}

  std::int64_t threads() const { return units_ + rest_; }

  KOKKOS_FUNCTION void operator()(std::int64_t thread) const {
    if (thread >= units_) {
      body_.template process<1, 1>(rows_, thread - units_);
      return;
    }
    const std::int64_t group = packs_.quotient(thread),
                       column = (thread - group * packs_.value()) * lanes;
    std::int64_t row = group * Body::rows_at_once;
    if (row + Body::rows_at_once <= rows_) {
      body_.template process<Body::rows_at_once, lanes>(row, column);
    } else {
      TRIREME_ROLLED
      for (; row < rows_; ++row) body_.template process<1, lanes>(row, column);
    }
  }

 private:
  Body body_;
  std::int64_t rows_;
  Divisor packs_;
  std::int64_t units_, rest_;
};

/// Throws Failure if a Divisor cannot divide all indices below count.
inline void check_dividends(const std::string& label, std::int64_t count) {
  if (count >= dividend_limit)
    throw Failure(
        "a tensor has more elements or rows than one launch can index (2^31); reduce the "
        "micro-batch: " +
        label);
}

/// Enqueues functor(index) for every index in [0, count). Throws Failure if count is too large for
/// a Divisor.
template <class Space, class Functor>
void for_each_small_index(const Space& space, const std::string& label, std::int64_t count,
                          const Functor& functor) {
  check_dividends(label, count);
  for_each_index(space, label, count, functor);
}

/// Enqueues the body over a matrix [rows, packs * lanes] and `rest` more elements, on a device.
template <int lanes, class Space, class Body>
void for_each_pack(const Space& space, const std::string& label, std::int64_t rows,
                   std::int64_t packs, std::int64_t rest, const Body& body) {
  const PackedRows<Body, lanes> threads(body, rows, packs, rest);
  for_each_small_index(space, label, threads.threads(), threads);
}

/// Enqueues the body over a matrix [rows, width]. `packed`: all rows of all operands are aligned to
/// packs (packs_fit, and strides that are multiples of Body::lanes).
template <class Space, class Body>
void for_each_row(const Space& space, const std::string& label, std::int64_t rows,
                  std::int64_t width, [[maybe_unused]] bool packed, const Body& body) {
  if (rows <= 0 || width <= 0) return;
  if constexpr (on_host<Space>) {
    for_each_piece(space, label, rows, body);
  } else if (packed && width % Body::lanes == 0) {
    for_each_pack<Body::lanes>(space, label, rows, width / Body::lanes, 0, body);
  } else {
    for_each_pack<1>(space, label, rows, width, 0, body);
  }
}

}  // namespace trireme::kernels
