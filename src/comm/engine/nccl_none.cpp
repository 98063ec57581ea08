// SPDX-License-Identifier: Apache-2.0
//
// Replaces nccl.cpp in builds without CUDA: no device exists whose memory NCCL could reach.

#include "nccl.hpp"

#include "trireme/base/check.hpp"
#include "trireme/comm/versions.hpp"

namespace trireme::comm {
namespace {

[[noreturn]] void refuse() {
  throw Failure("NCCL: this program was built without CUDA (preset cuda-release has it)");
}

}  // namespace

struct Nccl::State {};

std::string nccl_version() { return ""; }

bool Nccl::built() { return false; }
Nccl::Nccl(const Stream&) { refuse(); }
Nccl::~Nccl() = default;
void Nccl::connect(const Communicator&) { refuse(); }
void Nccl::connect(const Communicator&, std::span<const Engine::MessageRoute>) { refuse(); }
Nccl::Channel* Nccl::channel_of(const Communicator&) const { refuse(); }
Nccl::Channel* Nccl::channel_of(const Communicator&, int, int, int) const { refuse(); }
std::string Nccl::register_memory() { refuse(); }
void Nccl::deregister_memory() { refuse(); }
std::size_t Nccl::registered_bytes() const { refuse(); }
const Stream& Nccl::compute() const { refuse(); }
void Nccl::enqueue(Channel&, const CallList&, Event&) { refuse(); }
void Nccl::check() { refuse(); }

}  // namespace trireme::comm
