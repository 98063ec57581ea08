// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/hash.hpp"

#include <new>

#include <xxhash.h>

namespace trireme::io {

std::uint64_t xxh3(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

Xxh3::Xxh3() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  reset();
}

void Xxh3::reset() { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_.get())); }

void Xxh3::update(const void* data, std::size_t bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_.get()), data, bytes);
}

std::uint64_t Xxh3::digest() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
}

void Xxh3::FreeState::operator()(void* state) const {
  XXH3_freeState(static_cast<XXH3_state_t*>(state));
}

}  // namespace trireme::io
