// SPDX-License-Identifier: Apache-2.0
//
// Calls prepared once and run many times; those of oneDNN through the C interface because it
// allocates nothing.

#include "primitive.hpp"

#include <algorithm>
#include <utility>

#include "launch.hpp"
#include "trireme/base/check.hpp"

namespace trireme::ops::cpu {
namespace {

/// Returns whether oneDNN has products in bfloat16 on this processor.
bool has_library_bfloat16() {
  const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  static const bool has = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
  return has;
}

}  // namespace

DType arithmetic_type(DType type) {
  if (type == DType::float16) return DType::float32;
  return type == DType::bfloat16 && !has_library_bfloat16() ? DType::float32 : type;
}

Primitive::Primitive(const dnnl::engine& engine, dnnl::primitive primitive,
                     std::initializer_list<Argument> arguments)
    : primitive_(std::move(primitive)) {
  TRIREME_EXPECT(arguments.size() <= max_arguments);
  memory_.reserve(arguments.size());
  for (const Argument& argument : arguments) {
    arguments_[memory_.size()].arg = argument.name;
    memory_.push_back(dnnl::memory(argument.desc, engine, DNNL_MEMORY_NONE));
    arguments_[memory_.size() - 1].memory = memory_.back().get();
  }
}

Primitive::Primitive(Kernel kernel) : kernel_(std::move(kernel)) {}

void Primitive::run(const Stream& stream, dnnl_stream_t library,
                    std::initializer_list<void*> data) const {
  TRIREME_EXPECT(kernel_ ? data.size() <= max_arguments : data.size() == memory_.size());
  Addresses pointers{};
  std::copy(data.begin(), data.end(), pointers.begin());
  launch_on_host(stream, [this, library, pointers] { execute(library, pointers); });
}

void Primitive::execute(dnnl_stream_t library, const Addresses& data) const {
  if (kernel_) return kernel_(data);
  dnnl_status_t status = dnnl_success;
  for (std::size_t i = 0; i < memory_.size() && status == dnnl_success; ++i)
    status = dnnl_memory_set_data_handle(arguments_[i].memory, data[i]);
  if (status == dnnl_success)
    status = dnnl_primitive_execute(primitive_.get(), library, static_cast<int>(memory_.size()),
                                    arguments_.data());
  ensure(status == dnnl_success, "oneDNN could not run a primitive (status {})",
         static_cast<int>(status));
}

dnnl::memory::data_type library_type(DType type) {
  TRIREME_EXPECT(type == DType::float32 || type == DType::bfloat16);
  return type == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Primitive make_reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
                       const dnnl::memory::desc& to, bool add) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, attributes);
  ensure(desc.scratchpad_desc().get_size() == 0,
         "oneDNN's {} needs a scratchpad to convert a format, which is not supported",
         desc.impl_info_str());
  return Primitive(engine, dnnl::reorder(desc), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace trireme::ops::cpu
