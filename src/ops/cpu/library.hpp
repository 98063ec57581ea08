#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../problem.hpp"
#include "primitive.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops::cpu {

/// An operand of a product: our plain order on one side, the form that the library computes in on
/// the other. Without `convert` the two are the same and the operand is used where it lies.
struct Operand {
  std::int64_t bytes = 0;    ///< of the library's form
  std::uint32_t format = 0;  ///< number of the two forms: a square weight has one library form both
                             ///< ways, but is read by columns in one of them
  std::optional<Primitive> convert;
};

/// result = first times second, whichever of convolution, matrix product or their gradients that
/// is.
struct Product {
  Primitive
      primitive;  ///< arguments: first, second, result, scratchpad, and the bias where there is one
  Operand first, second, result;
  std::optional<Primitive>
      add_result;  ///< result in plain order += its form; made where a gradient may be added
  std::int64_t scratchpad_bytes = 0;
};

/// The form a product's operand is given in and the form that its primitive wants.
struct FormatPair {
  dnnl::memory::desc plain, library;
  bool operator==(const FormatPair& other) const {
    return plain == other.plain && library == other.library;
  }
};

/// The oneDNN side of a context: engine, stream, and every product met so far. Looking one up
/// allocates nothing.
class Library {
 public:
  Library();

  template <class Make>
  Product& product(const Problem& problem, const Make& make) {
    const auto found = products_.find(problem);
    if (found != products_.end()) return *found->second;
    return *products_.emplace(problem, std::make_unique<Product>(translate_errors(problem, make)))
                .first->second;
  }

  const dnnl::engine& engine() const { return engine_; }
  dnnl_stream_t stream() const { return stream_.get(); }

  /// An operand that the primitive reads.
  Operand input(const FormatPair& formats);
  /// The one it writes.
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

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<Problem, std::unique_ptr<Product>, ProblemHash> products_;
  std::vector<FormatPair> formats_;
};

/// The library of a context whose target is the CPU.
Library& library_of(Context& context);

/// The weight as `operand` wants it: made anew where the prepared form is of another version or
/// format. Call within an ArenaScope of the workspace: that is where the form goes when the weight
/// has no place of its own.
Tensor prepared_weight(Context& context, const Operand& operand, const Weight& weight,
                       PreparedWeight::Copy PreparedWeight::* direction);

/// Runs a product on operands in plain order; conversions and scratchpad use the workspace. On meta
/// only memory is taken. A `weight` is given as `second`, already prepared. Only a product with
/// `add_result` can add.
struct Operands {
  Tensor first, second, result, bias;
  bool second_prepared = false;
};
void run(Context& context, const Product& product, const Operands& operands,
         Write write = Write::assign);

}  // namespace trireme::ops::cpu
