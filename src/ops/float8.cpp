// SPDX-License-Identifier: Apache-2.0
//
// float8 operands: finds a tensor's scale and converts it. For CUDA it makes codes; for the CPU it
// rounds bfloat16 numbers to float8.
//
//   find_scale   maximum of |x| -> scale, in device memory; the host does not wait
//   encode       x -> [scale, codes], row by row or transposed (CUDA)
//   rounded      x -> bfloat16 numbers that float8 can represent (CPU)

#include "float8.hpp"

#include "trireme/kernels/float8.hpp"

namespace trireme::ops {
namespace {

/// Enqueues the scale of a tensor: the greatest power of two under which all its numbers stay
/// within T.
template <class T>
void find_scale(Context& context, const Tensor& tensor, kernels::Float8Scale* scale) {
  const ArenaScope scope(context.workspace());
  const Tensor maxima =
      context.workspace().allocate(DType::float32, {kernels::float8_partial_maxima});
  if (!context.meta())
    kernels::float8_scale<T>(context.stream(),
                             {tensor.as<BFloat16>(), tensor.elements(), maxima.as<float>(), scale});
}

std::int64_t code_bytes(const Tensor& tensor) { return float8_header_bytes + tensor.elements(); }

/// Enqueues the scale and the codes of a tensor of type T. `codes` has code_bytes(tensor) bytes.
template <class T>
void encode(Context& context, const Tensor& tensor, bool transposed, const Tensor& codes) {
  auto* const scale = static_cast<kernels::Float8Scale*>(codes.data);
  find_scale<T>(context, tensor, scale);
  if (context.meta()) return;
  const std::int64_t columns = tensor.shape.back();
  kernels::float8_cast<T>(context.stream(),
                          {tensor.as<BFloat16>(), tensor.elements() / columns, columns, scale,
                           static_cast<std::byte*>(codes.data) + float8_header_bytes, transposed});
}

/// Returns the tensor rounded to T's numbers, as bfloat16 in the workspace.
template <class T>
Tensor rounded(Context& context, const Tensor& tensor) {
  const Tensor result = context.workspace().allocate(tensor.dtype, tensor.shape);
  const ArenaScope scope(context.workspace());
  const Tensor place = context.workspace().allocate(DType::uint8, {float8_header_bytes});
  auto* const scale = static_cast<kernels::Float8Scale*>(place.data);
  find_scale<T>(context, tensor, scale);
  if (!context.meta())
    kernels::float8_round<T>(
        context.stream(), {tensor.as<BFloat16>(), tensor.elements(), scale, result.as<BFloat16>()});
  return result;
}

template <class T>
Tensor operand(Context& context, const Tensor& tensor, bool transposed) {
  if (context.target() != DeviceKind::cuda) return rounded<T>(context, tensor);
  const Tensor codes = context.workspace().allocate(DType::uint8, {code_bytes(tensor)});
  encode<T>(context, tensor, transposed, codes);
  return codes;
}

}  // namespace

Tensor float8_operand(Context& context, const Linear& linear, const Tensor& tensor, Float8 kind,
                      bool transposed) {
  if (!linear.in_float8()) return tensor;
  return kind == Float8::e4m3 ? operand<Float8E4M3>(context, tensor, transposed)
                              : operand<Float8E5M2>(context, tensor, transposed);
}

Weight float8_weight(Context& context, const Linear& linear, const Weight& weight,
                     PreparedWeight::Copy PreparedWeight::* place) {
  if (!linear.in_float8()) return weight;
  // The rounded weight is not kept beyond this product: the format number does not show whether
  // numbers are rounded, and a product of other extents may need the original ones.
  if (context.target() != DeviceKind::cuda)
    return {rounded<Float8E4M3>(context, weight.value), weight.version, nullptr};
  // CUDA: encode again only if the weight has changed since.
  PreparedWeight::Copy temporary;
  PreparedWeight::Copy& copy = weight.prepared != nullptr ? weight.prepared->*place : temporary;
  if (!copy.bytes.defined()) {
    Arena& arena = weight.prepared != nullptr ? context.library() : context.workspace();
    copy.bytes = arena.allocate(DType::uint8, {code_bytes(weight.value)});
  }
  if (copy.version != weight.version) {
    const bool forward = place == &PreparedWeight::forward,
               transposed = forward == (linear.order == MatrixOrder::in_out);
    const Shape matrix = linear.order == MatrixOrder::out_in ? Shape{linear.out, linear.in}
                                                             : Shape{linear.in, linear.out};
    encode<Float8E4M3>(context, weight.value.reshaped(matrix), transposed, copy.bytes);
    copy.version = weight.version;
  }
  return {copy.bytes, weight.version, nullptr};
}

}  // namespace trireme::ops
