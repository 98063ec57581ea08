// SPDX-License-Identifier: Apache-2.0
//
// The oneDNN form of linear layers: makes the three products of a problem at its first use. Called
// by ops/linear.cpp.
//
// All three are plain matrix products. They are as fast as oneDNN's inner product with `any`
// weights in forward and backward, and faster for the weight's gradient, because they write or add
// in plain order themselves. GFLOP/s of matmul / of the inner product with the reorder that it
// needs: bfloat16 682 / 559, float32 399 / 352 (oneDNN 3.2, AVX-512 with bf16, 2 cores, M 1024, K
// 784, N 512).

#include "linear.hpp"

namespace trireme::ops::cpu {
namespace {

using Format = dnnl::memory::format_tag;
using Memory = dnnl::memory;

/// Returns the description of a matrix stored by rows, or by columns.
Memory::desc matrix(std::int64_t rows, std::int64_t columns, Memory::data_type type,
                    bool by_columns = false) {
  return {{rows, columns}, type, by_columns ? Format::ba : Format::ab};
}

/// Description of a product of two matrices.
struct MatrixProduct {
  Memory::desc first, second, result;  ///< plain
  bool library_second = false;  ///< the second operand has the format that the library prefers
  bool bias = false, add = false;
};

/// Makes the primitive of a product and the conversions of its operands.
Product make_product(Library& lib, const MatrixProduct& p) {
  const Memory::desc any(p.second.get_dims(), p.second.get_data_type(), Format::any);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const Memory::desc& second = p.library_second ? any : p.second;
  const Memory::desc bias = matrix(1, p.result.get_dims()[1], Memory::data_type::f32);
  using Desc = dnnl::matmul::primitive_desc;
  const Desc desc = p.bias ? Desc(lib.engine(), p.first, second, bias, p.result, attributes)
                           : Desc(lib.engine(), p.first, second, p.result, attributes);
  const Primitive::Argument first{DNNL_ARG_SRC, p.first},
      weight{DNNL_ARG_WEIGHTS, desc.weights_desc()}, result{DNNL_ARG_DST, p.result},
      scratchpad{DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()};
  const dnnl::matmul primitive(desc);
  return Product{p.bias ? Primitive(lib.engine(), primitive,
                                    {first, weight, result, scratchpad, {DNNL_ARG_BIAS, bias}})
                        : Primitive(lib.engine(), primitive, {first, weight, result, scratchpad}),
                 lib.input({p.first, p.first}),
                 lib.input({p.second, desc.weights_desc()}),
                 lib.output({p.result, p.result}),
                 {},
                 static_cast<std::int64_t>(desc.scratchpad_desc().get_size())};
}

}  // namespace

Product& linear_forward(Library& library, const Linear& requested, bool bias) {
  const Linear l = with_arithmetic_type(requested);
  return library.product(
      problem_of(Problem::Kind::linear_forward, l, bias, l.result_dtype()), [&](Library& lib) {
        const auto type = library_type(l.dtype);
        const bool transposed = l.order == MatrixOrder::out_in;
        return make_product(lib,
                            {matrix(l.rows, l.in, type), matrix(l.in, l.out, type, transposed),
                             matrix(l.rows, l.out, library_type(l.result_dtype())), true, bias});
      });
}

Product& linear_backward_data(Library& library, const Linear& requested) {
  const Linear l = with_arithmetic_type(requested);
  return library.product(
      problem_of(Problem::Kind::linear_backward_data, l, false, l.result_dtype()),
      [&](Library& lib) {
        const auto type = library_type(l.dtype);
        const bool transposed = l.order == MatrixOrder::in_out;
        return make_product(lib,
                            {matrix(l.rows, l.out, type), matrix(l.out, l.in, type, transposed),
                             matrix(l.rows, l.in, library_type(l.result_dtype())), true});
      });
}

Product& linear_backward_weight(Library& library, const Linear& requested, Write write) {
  const Linear l = with_arithmetic_type(requested);
  return library.product(
      problem_of(Problem::Kind::linear_backward_weight, l, false, write), [&](Library& lib) {
        const auto type = library_type(l.dtype);
        const bool out_in = l.order == MatrixOrder::out_in;
        const std::int64_t rows = out_in ? l.out : l.in, columns = out_in ? l.in : l.out;
        return make_product(lib, {matrix(rows, l.rows, type, true), matrix(l.rows, columns, type),
                                  matrix(rows, columns, Memory::data_type::f32), false, false,
                                  write == Write::add});
      });
}

}  // namespace trireme::ops::cpu
