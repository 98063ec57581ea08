// SPDX-License-Identifier: Apache-2.0
//
// Failures of the device that a test asks for: a refused launch, or a kernel that ends the context
// (STAND_IN_CUDA_REFUSE and STAND_IN_CUDA_BREAK, see record.hpp).

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

/// The launches to refuse: those of one kind from `first` on, counted from 1.
struct Refusal {
  std::string kind;
  long first = 0, last = 0;
};

Refusal read_refusal() {
  const char* const text = std::getenv("STAND_IN_CUDA_REFUSE");
  if (text == nullptr) return {};
  const std::string words = text;
  const std::size_t space = words.find(' ');
  Refusal refusal{words.substr(0, space), std::atol(words.c_str() + space), 0};
  refusal.last = words.back() == '+' ? 1L << 40 : refusal.first;
  return refusal;
}

constexpr std::array<const char*, 3> kinds{"kernel", "product", "plan"};
std::array<std::atomic<long>, kinds.size()> launches_of_kind{};
std::atomic<long> all_launches = 0;

}  // namespace

bool is_broken() {
  static const char* const text = std::getenv("STAND_IN_CUDA_BREAK");
  return text != nullptr && all_launches >= std::atol(text);
}

cudaError_t begin_launch(LaunchKind kind) {
  if (is_broken()) return set_last_error(cudaErrorIllegalAddress);
  static const Refusal refusal = read_refusal();
  const auto index = static_cast<std::size_t>(kind);
  const long number = ++launches_of_kind[index];
  ++all_launches;
  if (refusal.kind != kinds[index] || number < refusal.first || number > refusal.last)
    return cudaSuccess;
  return set_last_error(cudaErrorLaunchOutOfResources);
}

}  // namespace stand_in
