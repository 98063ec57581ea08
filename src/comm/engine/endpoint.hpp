// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/socket.h>

namespace trireme::comm {

/// IPv4 and IPv6, as indices.
enum IpFamily : std::uint8_t { ipv4, ipv6 };
inline constexpr std::size_t ip_families = 2;
/// A port of each family, in network byte order; 0: none.
using Ports = std::array<std::uint16_t, ip_families>;

/// Returns the family of an address in text form.
IpFamily family_of(const std::string& address);

/// An address of IPv4 or IPv6 with a port.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;  ///< 0: unknown

  sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  IpFamily family() const { return storage.ss_family == AF_INET6 ? ipv6 : ipv4; }
  bool operator==(const Endpoint& other) const;
};

/// Returns the endpoint of an address in text form with the port of its family.
Endpoint endpoint_of(const std::string& address, const Ports& ports);

/// Opens a socket for datagrams that never blocks. Returns -1 if that fails.
int open_datagram_socket(IpFamily family);

/// Binds a socket to a free port of every address of the host. Returns the port; 0 if that fails.
std::uint16_t bind_to_free_port(int socket, IpFamily family);

}  // namespace trireme::comm
