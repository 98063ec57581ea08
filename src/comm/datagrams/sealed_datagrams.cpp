// SPDX-License-Identifier: Apache-2.0
#include "sealed_datagrams.hpp"

#include <cstring>

#include "trireme/base/expect.hpp"

namespace trireme::comm {
namespace {

struct Header {
  std::uint64_t code = 0;
  std::int32_t from = 0, to = 0;
  std::uint64_t counter = 0;
};
static_assert(sizeof(Header) == SealedDatagrams::header_bytes);

/// The part of a datagram that the code protects.
template <class Bytes>
auto protected_part(Bytes packet) {
  return packet.subspan(sizeof(Header::code));
}

}  // namespace

void SealedDatagrams::seal(int to, std::span<const std::byte> message,
                           std::span<std::byte> packet) {
  TRIREME_EXPECT(packet.size() == header_bytes + message.size());
  Header header{0, rank_, to, ++last_counter_};
  std::memcpy(packet.data(), &header, sizeof header);
  if (!message.empty()) std::memcpy(packet.data() + sizeof header, message.data(), message.size());
  header.code = siphash(key_, protected_part(std::span<const std::byte>(packet)));
  std::memcpy(packet.data(), &header.code, sizeof header.code);
}

std::optional<int> SealedDatagrams::open(std::span<const std::byte> packet,
                                         std::span<std::byte> message) {
  if (packet.size() != header_bytes + message.size()) return std::nullopt;
  Header header;
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.code != siphash(key_, protected_part(packet))) return std::nullopt;
  if (header.to != rank_ || header.from == rank_ || header.from < 0 ||
      static_cast<std::size_t>(header.from) >= counters_.size())
    return std::nullopt;
  std::uint64_t& latest = counters_[static_cast<std::size_t>(header.from)];
  if (header.counter <= latest) return std::nullopt;
  latest = header.counter;
  if (!message.empty()) std::memcpy(message.data(), packet.data() + sizeof header, message.size());
  return header.from;
}

}  // namespace trireme::comm
