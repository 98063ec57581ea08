// SPDX-License-Identifier: Apache-2.0
//
// A context creates the device library of its target. On meta it creates none for CUDA, so that
// planning needs no device.

#include "trireme/ops/context.hpp"

#include "ops/dispatch/backend.hpp"

namespace trireme::ops {

Context::Context(Stream stream, Arena& workspace, Arena& library, DeviceKind target,
                 ContextOptions options)
    : stream_(stream),
      workspace_(workspace),
      library_(library),
      target_(target),
      options_(options),
      backend_(std::make_unique<Backend>()) {
  TRIREME_EXPECT(workspace.device().kind == stream.device.kind &&
                 library.device().kind == stream.device.kind);
  if (target == DeviceKind::cpu) backend_->cpu.emplace(options.fusions);
  if (stream.device.kind == DeviceKind::cuda)
    backend_->cuda = cuda::make_library(stream, options, algorithms_);
}

Context::~Context() = default;

void Context::count(const Op& op, const OpWork& work) {
  if (counting_pauses_ > 0) return;
  counters_.flops += work.flops;
  counters_.bytes += work.bytes;
  ++counters_.calls;
  if (op_observer_) op_observer_({work, op});
}

TrialReport Context::trials() const {
  return backend_->cuda ? backend_->cuda->trials() : TrialReport{};
}

}  // namespace trireme::ops
