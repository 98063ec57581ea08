#include "trireme/ops/context.hpp"

#include "backend.hpp"

namespace trireme::ops {

Context::Context(Stream stream, Arena& workspace, Arena& library, DeviceKind target, bool deterministic)
    : stream_(stream), workspace_(workspace), library_(library), target_(target), deterministic_(deterministic), backend_(std::make_unique<Backend>()) {
  TRIREME_EXPECT(workspace.device().kind == stream.device.kind && library.device().kind == stream.device.kind);
  if (target == DeviceKind::cpu) backend_->cpu.emplace();
  if (stream.device.kind == DeviceKind::cuda) backend_->cuda = cuda::make_library(stream, deterministic);
}

Context::~Context() = default;

}  // namespace trireme::ops
