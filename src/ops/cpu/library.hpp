// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ops/dispatch/problem.hpp"
#include "primitive.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops::cpu {

/// An operand of a product, in our plain order and in the format that the library computes in.
/// Without `convert` both are the same, and the operand is used in place.
struct Operand {
  std::int64_t bytes = 0;  ///< size in the library's format
  /// Number of the pair of formats. A square weight can have one library format for both
  /// directions, but is read by columns in one of them, so the library's format alone does not
  /// identify the copy.
  std::uint32_t format = 0;
  std::optional<Primitive> convert;
};

/// A prepared product: result = first times second, where "times" is a convolution, a matrix
/// product, or one of their gradients.
struct Product {
  /// Arguments: first, second, result, scratchpad, and the bias if there is one.
  Primitive primitive;
  Operand first, second, result;
  /// Adds the result, in its own format, to a tensor in plain order. Only for gradients that may be
  /// added.
  std::optional<Primitive> add_result;
  std::int64_t scratchpad_bytes = 0;
};

/// The plain format of an operand and the format that its primitive needs.
struct FormatPair {
  dnnl::memory::desc plain, library;
  bool operator==(const FormatPair& other) const {
    return plain == other.plain && library == other.library;
  }
};

/// The oneDNN side of a context: engine, stream, and a cache of every product used so far. Looking
/// up a known product allocates nothing.
class Library {
 public:
  /// `fusions`: as in ContextOptions.
  explicit Library(bool fusions);

  /// Returns the product of a problem, made by make(*this) at its first use. Throws Failure with
  /// the problem if oneDNN cannot make it.
  template <class Make>
  Product& product(const Problem& problem, const Make& make) {
    const auto found = products_.find(problem);
    if (found != products_.end()) return *found->second;
    return *products_.emplace(problem, std::make_unique<Product>(translate_errors(problem, make)))
                .first->second;
  }

  const dnnl::engine& engine() const { return engine_; }
  dnnl_stream_t stream() const { return stream_.get(); }
  bool fusions() const { return fusions_; }

  /// Returns an operand that the primitive reads, with its conversion from plain order.
  Operand input(const FormatPair& formats);
  /// Returns such an operand with a conversion that is not oneDNN's. No other operand may have
  /// equal formats and another conversion.
  Operand input(const FormatPair& formats, Primitive convert);
  /// Returns the operand that the primitive writes, with its conversion to plain order.
  Operand output(const FormatPair& formats);

 private:
  std::uint32_t format_number(const FormatPair& formats);
  template <class Make>
  Product translate_errors(const Problem& problem, const Make& make) {
    try {
      return make(*this);
    } catch (const dnnl::error& error) {
      throw Failure(describe(problem, error.what()));
    }
  }
  static std::string describe(const Problem& problem, const char* reason);

  bool fusions_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<Problem, std::unique_ptr<Product>, ProblemHash> products_;
  std::vector<FormatPair> formats_;
};

/// Returns the library of a context whose target is the CPU.
Library& library_of(Context& context);

/// Returns the weight in the format that `operand` needs. A kept copy is reused if version and
/// format agree; otherwise the copy is made. Call within an ArenaScope of the workspace, which
/// holds the copy if the weight keeps none.
Tensor prepared_weight(Context& context, const Operand& operand, const Weight& weight,
                       PreparedWeight::Copy PreparedWeight::* direction);

/// Operands of a product in plain order. `second_prepared`: `second` comes from prepared_weight().
struct Operands {
  Tensor first, second, result, bias;
  bool second_prepared = false;
};
/// Launches a product. Conversions and scratchpad use the workspace; on meta only the workspace is
/// taken. `Write::add` needs a product with `add_result`.
void run(Context& context, const Product& product, const Operands& operands,
         Write write = Write::assign);

}  // namespace trireme::ops::cpu
