// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::comm {

/// A secret of 128 bits.
using SipKey = std::array<std::byte, 16>;

/// Returns a key from the random numbers of the operating system. Throws Failure if there are none.
SipKey secret_key();

/// Returns the authentication code SipHash-2-4 of a message (Aumasson and Bernstein, 2012).
///
/// Without the key nobody can compute the code of a message, even with the codes of others: a
/// guess is right with a probability of 2^-64.
std::uint64_t siphash(const SipKey& key, std::span<const std::byte> message);

}  // namespace trireme::comm
