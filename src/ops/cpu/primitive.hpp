// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <dnnl.hpp>

#include "trireme/device/device.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops::cpu {

/// A prepared call: of oneDNN, with the primitive and a memory object for each argument, or of a
/// kernel of this library. Running it allocates nothing; oneDNN's C++ interface would build a map
/// at every call.
class Primitive {
 public:
  static constexpr int max_arguments = 5;
  /// The addresses of the arguments; those after the last one are null.
  using Addresses = std::array<void*, max_arguments>;
  using Kernel = std::function<void(const Addresses&)>;
  struct Argument {
    int name;  ///< DNNL_ARG_...
    dnnl::memory::desc desc;
  };
  Primitive(const dnnl::engine& engine, dnnl::primitive primitive,
            std::initializer_list<Argument> arguments);
  /// A call of `kernel`, which must not allocate.
  explicit Primitive(Kernel kernel);
  /// Launches the call. `data`: the address of each argument, in the constructor's order. `library`
  /// and the primitive must live as long as the stream. The launched call throws Failure if the
  /// library reports an error.
  void run(const Stream& stream, dnnl_stream_t library, std::initializer_list<void*> data) const;

 private:
  void execute(dnnl_stream_t library, const Addresses& data) const;
  Kernel kernel_;  ///< empty: a call of oneDNN
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memory_;
  std::array<dnnl_exec_arg_t, max_arguments> arguments_{};
};

/// Returns the type in which the library computes for tensors of `type`; tensors of other types are
/// converted before a product, and its result back.
///
/// float16 becomes float32 on every machine, since few processors have float16 products. bfloat16
/// becomes float32 on processors without AVX-512, for which oneDNN has no products in bfloat16.
DType arithmetic_type(DType type);

/// Returns the problem with its dtype replaced by the type that the library computes in.
template <class Problem>
Problem with_arithmetic_type(Problem problem) {
  problem.dtype = arithmetic_type(problem.dtype);
  return problem;
}

/// Returns oneDNN's name of float32 or bfloat16.
dnnl::memory::data_type library_type(DType type);

/// Returns the conversion from one format to another, assigned (=) or added (+=). Throws Failure if
/// oneDNN needs a scratchpad for it.
Primitive make_reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
                       const dnnl::memory::desc& to, bool add);

}  // namespace trireme::ops::cpu
