#pragma once

// Kernels over the rows of a matrix whose elements are made each for itself, so that the cut shows
// nowhere. On the host a row is a piece (launch.hpp). On a device a thread takes a pack of some
// neighbouring rows: a body has for it
//   static constexpr int lanes, rows_at_once;
//   template <int rows, int lanes> void take(row, column) const   // elements [row, row + rows) x
//   [column, column + lanes): it loads all before it stores any
// with `lanes` as given or 1, and `rows` as given or 1.

#include "launch.hpp"
#include "pack.hpp"
#include "trireme/base/philox.hpp"  // wide_product

namespace trireme::kernels {

constexpr std::int64_t dividend_limit = std::int64_t{1} << 31;

/// Division of numbers below 2^31 by one that stays the same: a product and a shift (Granlund &
/// Montgomery 1994), a fifth of what a division takes.
class Divisor {
 public:
  explicit Divisor(std::int64_t divisor) : divisor_(divisor) {
    if (divisor >= dividend_limit) return;  // every quotient is 0
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

/// Threads of a device over a matrix [rows, packs * lanes] and the first `rest` elements of the row
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

/// functor(index) for every index of [0, count), which Divisors take.
template <class Space, class Functor>
void for_each_small_index(const Space& space, const std::string& label, std::int64_t count,
                          const Functor& functor) {
  if (count >= dividend_limit) throw Failure("a tensor is too large for one launch of " + label);
  for_each_index(space, label, count, functor);
}

template <int lanes, class Space, class Body>
void for_each_pack(const Space& space, const std::string& label, std::int64_t rows,
                   std::int64_t packs, std::int64_t rest, const Body& body) {
  const PackedRows<Body, lanes> threads(body, rows, packs, rest);
  for_each_small_index(space, label, threads.threads(), threads);
}

/// body over a matrix [rows, width]. `packed`: every row of every operand begins where packs may
/// (packs_fit, and strides that are multiples of Body::lanes).
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
