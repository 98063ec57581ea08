#include "primitive.hpp"

#include <utility>
#include "trireme/base/check.hpp"

namespace trireme::ops::cpu {

Primitive::Primitive(const dnnl::engine& engine, dnnl::primitive primitive, std::initializer_list<Argument> arguments) : primitive_(std::move(primitive)) {
  TRIREME_EXPECT(arguments.size() <= max_arguments);
  memory_.reserve(arguments.size());
  for (const Argument& argument : arguments) {
    arguments_[memory_.size()].arg = argument.name;
    memory_.push_back(dnnl::memory(argument.desc, engine, DNNL_MEMORY_NONE));
    arguments_[memory_.size() - 1].memory = memory_.back().get();
  }
}

void Primitive::run(dnnl_stream_t stream, std::initializer_list<void*> data) const {
  TRIREME_EXPECT(data.size() == memory_.size());
  dnnl_status_t status = dnnl_success;
  int i = 0;
  for (void* place : data) {
    if (status == dnnl_success) status = dnnl_memory_set_data_handle(arguments_[i++].memory, place);
  }
  if (status == dnnl_success) status = dnnl_primitive_execute(primitive_.get(), stream, i, arguments_.data());
  ensure(status == dnnl_success, "oneDNN could not run a primitive (status {})", static_cast<int>(status));
}

dnnl::memory::data_type library_type(DType type) {
  TRIREME_EXPECT(type == DType::float32 || type == DType::bfloat16);
  return type == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Primitive make_reorder(const dnnl::engine& engine, const dnnl::memory::desc& from, const dnnl::memory::desc& to, bool add) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, attributes);
  ensure(desc.scratchpad_desc().get_size() == 0, "oneDNN's {} wants a scratchpad for a change of format", desc.impl_info_str());
  return Primitive(engine, dnnl::reorder(desc), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace trireme::ops::cpu
