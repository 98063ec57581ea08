// SPDX-License-Identifier: Apache-2.0
//
// The reader of datagrams, which anybody in the network can send to a rank.
//
// A file is a sequence of datagrams that arrive at rank 0 of three, each behind its length of 2
// bytes. It is accepted if at least one of them is opened.
#include "datagram_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "comm/datagrams/sealed_datagrams.hpp"
#include "reader_tools.hpp"

namespace trireme::fuzz {
namespace {

using comm::SealedDatagrams;

constexpr int ranks = 3;
constexpr std::size_t length_bytes = 2, message_bytes = 16, code_bytes = 8;
const comm::SipKey key{std::byte{1}, std::byte{2}};

/// Calls `body` with the offset and the length of each datagram of the file.
template <class Body>
void for_each_datagram(const std::string& file, Body&& body) {
  for (std::size_t at = 0; at + length_bytes <= file.size();) {
    std::uint16_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    at += length_bytes;
    const std::size_t bytes = std::min<std::size_t>(length, file.size() - at);
    body(at, bytes);
    at += bytes;
  }
}

std::string with_length(const std::vector<std::byte>& packet) {
  const auto length = static_cast<std::uint16_t>(packet.size());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.append(reinterpret_cast<const char*>(packet.data()), packet.size());
  return bytes;
}

/// Returns a datagram from a rank to another with a message of so many bytes.
std::string datagram(SealedDatagrams& sender, int to, std::size_t bytes = message_bytes) {
  const std::vector<std::byte> message(bytes, std::byte{5});
  std::vector<std::byte> packet(SealedDatagrams::header_bytes + bytes);
  sender.seal(to, message, packet);
  return with_length(packet);
}

}  // namespace

bool read_datagrams(const std::string& file) {
  SealedDatagrams receiver(key, 0, ranks);
  std::array<std::byte, message_bytes> message{};
  bool is_accepted = false;
  for_each_datagram(file, [&](std::size_t at, std::size_t bytes) {
    const auto packet = std::as_bytes(std::span(file)).subspan(at, bytes);
    const std::optional<int> from = receiver.open(packet, message);
    if (!from) return;
    is_accepted = true;
    expect(bytes == SealedDatagrams::header_bytes + message_bytes, "length of a datagram");
    expect(*from > 0 && *from < ranks, "sender of a datagram");
    expect(std::memcmp(message.data(), packet.data() + SealedDatagrams::header_bytes,
                       message_bytes) == 0,
           "message of a datagram");
    expect(!receiver.open(packet, message), "a repeated datagram");
  });
  if (!is_accepted) throw InputError("no authentic datagram");
  return true;
}

std::vector<std::string> datagram_seeds() {
  SealedDatagrams zero(key, 0, ranks), one(key, 1, ranks), two(key, 2, ranks);
  const std::string first = datagram(one, 0), second = datagram(one, 0), third = datagram(two, 0);
  return {first, first + third + second, second + first, datagram(one, 0, 0) + datagram(one, 0),
          datagram(zero, 1) + datagram(two, 0)};
}

void repair_datagrams(std::string& file) {
  for_each_datagram(file, [&](std::size_t at, std::size_t bytes) {
    if (bytes < code_bytes) return;
    const auto rest = std::as_bytes(std::span(file)).subspan(at + code_bytes, bytes - code_bytes);
    const std::uint64_t code = comm::siphash(key, rest);
    std::memcpy(file.data() + at, &code, sizeof code);
  });
}

}  // namespace trireme::fuzz
