// SPDX-License-Identifier: Apache-2.0
//
// The oneDNN side of a context: conversion of operands between our plain order and the library's
// formats, and the run of a product.
//
//   1. operands are converted to the arithmetic type and the primitive's format (workspace);
//   2. a weight is converted once for each version and kept (prepared_weight);
//   3. the primitive runs; its result is in the workspace if it must be converted or added;
//   4. the result is converted, or added to the old one.
// All steps are launched on the context's stream. On meta only the workspace is taken.

#include "library.hpp"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "ops/dispatch/backend.hpp"
#include "ops/dispatch/launch_cast.hpp"
#include "trireme/base/check.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::ops::cpu {

Library::Library(bool fusions)
    : fusions_(fusions), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

std::string Library::describe(const Problem& problem, const char* reason) {
  return fmt::format("oneDNN has no primitive in {} for the product {} of extents [{}]: {}",
                     to_string(problem.dtype), static_cast<int>(problem.kind),
                     fmt::join(problem.extents, ", "), reason);
}

/// Returns the number of a pair of formats, the same for equal pairs.
std::uint32_t Library::format_number(const FormatPair& formats) {
  const auto found = std::find(formats_.begin(), formats_.end(), formats);
  const auto index = found - formats_.begin();
  if (found == formats_.end()) formats_.push_back(formats);
  return static_cast<std::uint32_t>(index) + 1;
}

Operand Library::input(const FormatPair& formats) {
  Operand operand{
      static_cast<std::int64_t>(formats.library.get_size()), format_number(formats), {}};
  if (formats.plain != formats.library)
    operand.convert = make_reorder(engine_, formats.plain, formats.library, false);
  return operand;
}

Operand Library::input(const FormatPair& formats, Primitive convert) {
  return {static_cast<std::int64_t>(formats.library.get_size()), format_number(formats),
          std::move(convert)};
}

Operand Library::output(const FormatPair& formats) {
  Operand operand{
      static_cast<std::int64_t>(formats.library.get_size()), format_number(formats), {}};
  if (formats.plain != formats.library)
    operand.convert = make_reorder(engine_, formats.library, formats.plain, false);
  return operand;
}

Library& library_of(Context& context) {
  TRIREME_EXPECT(context.target() == DeviceKind::cpu);
  return *context.backend().cpu;
}

namespace {

Tensor allocate_bytes(Arena& arena, std::int64_t bytes) {
  return arena.allocate(DType::uint8, {bytes});
}

bool has_arithmetic_type(const Tensor& tensor) {
  return arithmetic_type(tensor.dtype) == tensor.dtype;
}

/// Returns the tensor in the type that the library computes in; if that is another, as a copy in
/// the workspace.
Tensor to_arithmetic_type(Context& context, const Tensor& tensor) {
  if (has_arithmetic_type(tensor)) return tensor;
  const Tensor wide = context.workspace().allocate(arithmetic_type(tensor.dtype), tensor.shape);
  if (!context.meta()) launch_cast(context.stream(), tensor, wide);
  return wide;
}

/// Returns the address where the primitive reads an operand: the tensor itself, or its converted
/// copy in the workspace.
void* library_data(Context& context, const Operand& operand, const Tensor& plain_operand) {
  const Tensor tensor = to_arithmetic_type(context, plain_operand);
  if (!operand.convert) return tensor.data;
  const Tensor copy = allocate_bytes(context.workspace(), operand.bytes);
  if (!context.meta())
    operand.convert->run(context.stream(), library_of(context).stream(), {tensor.data, copy.data});
  return copy.data;
}

}  // namespace

Tensor prepared_weight(Context& context, const Operand& operand, const Weight& weight,
                       PreparedWeight::Copy PreparedWeight::* direction) {
  TRIREME_EXPECT(weight.version > 0);
  // 1. The primitive reads plain order: nothing to prepare.
  if (!operand.convert && has_arithmetic_type(weight.value)) return weight.value;
  // 2. A copy of this version in this format, made for either direction.
  if (weight.prepared != nullptr) {
    for (const PreparedWeight::Copy* copy :
         {&weight.prepared->forward, &weight.prepared->backward}) {
      if (copy->version == weight.version && copy->format == operand.format) return copy->bytes;
    }
  }
  // 3. Make the copy. Another batch size may prefer another, larger format.
  PreparedWeight::Copy temporary;
  PreparedWeight::Copy& copy = weight.prepared != nullptr ? weight.prepared->*direction : temporary;
  if (!copy.bytes.defined() || copy.bytes.bytes() < operand.bytes) {
    copy.bytes = allocate_bytes(
        weight.prepared != nullptr ? context.library() : context.workspace(), operand.bytes);
  }
  const ArenaScope scope(context.workspace());
  const Tensor plain = to_arithmetic_type(context, weight.value);
  if (!context.meta()) {
    if (operand.convert) {
      operand.convert->run(context.stream(), library_of(context).stream(),
                           {plain.data, copy.bytes.data});
    } else {
      kernels::copy(context.stream(), plain.bytes(), plain.data, copy.bytes.data);
    }
  }
  copy.version = weight.version;
  copy.format = operand.format;
  return copy.bytes;
}

void run(Context& context, const Product& product, const Operands& operands, Write write) {
  TRIREME_EXPECT(write == Write::assign || product.add_result);
  TRIREME_EXPECT(write == Write::assign || has_arithmetic_type(operands.result));
  const Stream& stream = context.stream();
  const dnnl_stream_t library = library_of(context).stream();
  const ArenaScope scope(context.workspace());
  // 1. Operands.
  void* const first = library_data(context, product.first, operands.first);
  void* const second = operands.second_prepared
                           ? operands.second.data
                           : library_data(context, product.second, operands.second);
  // 2. Memory of the result and of the primitive's scratchpad.
  const bool converts_result = !has_arithmetic_type(operands.result);
  const Tensor plain = converts_result
                           ? context.workspace().allocate(arithmetic_type(operands.result.dtype),
                                                          operands.result.shape)
                           : operands.result;
  const bool separate_result = product.result.convert || write == Write::add;
  void* const result =
      separate_result ? allocate_bytes(context.workspace(), product.result.bytes).data : plain.data;
  void* const scratchpad = product.scratchpad_bytes > 0
                               ? allocate_bytes(context.workspace(), product.scratchpad_bytes).data
                               : nullptr;
  if (context.meta()) return;

  // 3. The product, then conversion or addition of its result.
  if (operands.bias.defined()) {
    product.primitive.run(stream, library, {first, second, result, scratchpad, operands.bias.data});
  } else {
    product.primitive.run(stream, library, {first, second, result, scratchpad});
  }
  if (write == Write::add) {
    product.add_result->run(stream, library, {result, plain.data});
  } else if (product.result.convert) {
    product.result.convert->run(stream, library, {result, plain.data});
  }
  if (converts_result) launch_cast(stream, plain, operands.result);
}

}  // namespace trireme::ops::cpu
