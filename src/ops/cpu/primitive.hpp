#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <dnnl.hpp>

#include "trireme/device/device.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops::cpu {

/// A call of the library prepared for good: the primitive and a memory object for each of its
/// arguments. Running it allocates nothing (the library's C++ interface would build a map at every
/// call).
class Primitive {
 public:
  struct Argument {
    int name;  ///< DNNL_ARG_...
    dnnl::memory::desc desc;
  };
  Primitive(const dnnl::engine& engine, dnnl::primitive primitive,
            std::initializer_list<Argument> arguments);
  /// Launches it. `data`: where each argument lies, in the constructor's order. `library` and the
  /// primitive live as long as the stream. Throws Failure where the library reports an error.
  void run(const Stream& stream, dnnl_stream_t library, std::initializer_list<void*> data) const;

 private:
  static constexpr int max_arguments = 5;
  void execute(dnnl_stream_t library, const std::array<void*, max_arguments>& data) const;
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memory_;
  std::array<dnnl_exec_arg_t, max_arguments> arguments_{};
};

/// What the library multiplies where tensors are of `type`: float16 it knows on few processors, so
/// such tensors become float32 on the way in, and results float16 on the way out, wherever the
/// program runs.
constexpr DType arithmetic_type(DType type) {
  return type == DType::float16 ? DType::float32 : type;
}

/// The problem as the library is given it.
template <class Problem>
Problem with_arithmetic_type(Problem problem) {
  problem.dtype = arithmetic_type(problem.dtype);
  return problem;
}

dnnl::memory::data_type library_type(DType type);

/// The reorder from one form to another, written (=) or added (+=).
Primitive make_reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
                       const dnnl::memory::desc& to, bool add);

}  // namespace trireme::ops::cpu
