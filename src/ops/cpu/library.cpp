#include "library.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "../backend.hpp"
#include "trireme/base/check.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::ops::cpu {

Library::Library() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

std::string Library::describe(const Problem& problem, const char* reason) {
  return fmt::format("oneDNN has no primitive in {} for the product {} of extents [{}]: {}{}",
                     to_string(problem.dtype), static_cast<int>(problem.kind),
                     fmt::join(problem.extents, ", "), reason,
                     problem.dtype == DType::bfloat16
                         ? "; this processor may lack bfloat16 (AVX-512 is needed): use float32"
                         : "");
}

std::uint32_t Library::number_of(const Forms& forms) {
  const auto found = std::find(formats_.begin(), formats_.end(), forms);
  const auto index = found - formats_.begin();
  if (found == formats_.end()) formats_.push_back(forms);
  return static_cast<std::uint32_t>(index) + 1;
}

Operand Library::input(const Forms& forms) {
  Operand operand{static_cast<std::int64_t>(forms.library.get_size()), number_of(forms), {}};
  if (forms.plain != forms.library)
    operand.convert = make_reorder(engine_, forms.plain, forms.library, false);
  return operand;
}

Operand Library::output(const Forms& forms) {
  Operand operand{static_cast<std::int64_t>(forms.library.get_size()), number_of(forms), {}};
  if (forms.plain != forms.library)
    operand.convert = make_reorder(engine_, forms.library, forms.plain, false);
  return operand;
}

Library& library_of(Context& context) {
  TRIREME_EXPECT(context.target() == DeviceKind::cpu);
  return *context.backend().cpu;
}

namespace {

Tensor take_bytes(Arena& arena, std::int64_t bytes) {
  return arena.allocate(DType::uint8, {bytes});
}

bool is_multiplied(const Tensor& tensor) { return multiplied_type(tensor.dtype) == tensor.dtype; }

/// In the type that the library multiplies, in the workspace where it is another.
Tensor widened(Context& context, const Tensor& tensor) {
  if (is_multiplied(tensor)) return tensor;
  const Tensor wide = context.workspace().allocate(multiplied_type(tensor.dtype), tensor.shape);
  if (!context.meta())
    kernels::cast(context.stream(), tensor.elements(), tensor.as<Float16>(), wide.as<float>());
  return wide;
}

// Where the primitive reads `tensor`: where it lies, or converted in the workspace.
void* readable(Context& context, const Operand& operand, const Tensor& given) {
  const Tensor tensor = widened(context, given);
  if (!operand.convert) return tensor.data;
  const Tensor form = take_bytes(context.workspace(), operand.bytes);
  if (!context.meta())
    operand.convert->run(context.stream(), library_of(context).stream(), {tensor.data, form.data});
  return form.data;
}

}  // namespace

Tensor prepared_weight(Context& context, const Operand& operand, const Weight& weight,
                       PreparedWeight::Form PreparedWeight::* place) {
  TRIREME_EXPECT(weight.version > 0);
  if (!operand.convert && is_multiplied(weight.value)) return weight.value;
  if (weight.prepared != nullptr) {
    for (const PreparedWeight::Form* form :
         {&weight.prepared->forward, &weight.prepared->backward}) {
      if (form->version == weight.version && form->format == operand.format) return form->bytes;
    }
  }
  PreparedWeight::Form temporary;
  PreparedWeight::Form& form = weight.prepared != nullptr ? weight.prepared->*place : temporary;
  if (!form.bytes.defined() ||
      form.bytes.bytes() < operand.bytes) {  // another batch size may want another, larger format
    form.bytes = take_bytes(weight.prepared != nullptr ? context.library() : context.workspace(),
                            operand.bytes);
  }
  const ArenaScope scope(context.workspace());
  const Tensor plain = widened(context, weight.value);
  if (!context.meta()) {
    if (operand.convert) {
      operand.convert->run(context.stream(), library_of(context).stream(),
                           {plain.data, form.bytes.data});
    } else {
      kernels::copy(context.stream(), plain.bytes(), plain.data, form.bytes.data);
    }
  }
  form.version = weight.version;
  form.format = operand.format;
  return form.bytes;
}

void run(Context& context, const Product& product, const Operands& operands, Write write) {
  TRIREME_EXPECT(write == Write::assign || product.add_result);
  TRIREME_EXPECT(write == Write::assign || is_multiplied(operands.result));
  const Stream& stream = context.stream();
  const dnnl_stream_t library = library_of(context).stream();
  const ArenaScope scope(context.workspace());
  void* const first = readable(context, product.first, operands.first);
  void* const second = operands.second_prepared
                           ? operands.second.data
                           : readable(context, product.second, operands.second);
  const bool narrows = !is_multiplied(operands.result);
  const Tensor plain = narrows ? context.workspace().allocate(
                                     multiplied_type(operands.result.dtype), operands.result.shape)
                               : operands.result;
  const bool beside = product.result.convert || write == Write::add;
  void* const result =
      beside ? take_bytes(context.workspace(), product.result.bytes).data : plain.data;
  void* const scratchpad = product.scratchpad_bytes > 0
                               ? take_bytes(context.workspace(), product.scratchpad_bytes).data
                               : nullptr;
  if (context.meta()) return;

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
  if (narrows)
    kernels::cast(stream, plain.elements(), plain.as<float>(), operands.result.as<Float16>());
}

}  // namespace trireme::ops::cpu
