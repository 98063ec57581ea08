// SPDX-License-Identifier: Apache-2.0
#include "endpoint.hpp"

#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>

namespace trireme::comm {

bool Endpoint::operator==(const Endpoint& other) const {
  return length == other.length && std::memcmp(&storage, &other.storage, length) == 0;
}

IpFamily family_of(const std::string& address) {
  return address.find(':') != std::string::npos ? ipv6 : ipv4;
}

Endpoint endpoint_of(const std::string& address, const Ports& ports) {
  Endpoint endpoint;
  if (family_of(address) == ipv6) {
    sockaddr_in6 place{};
    place.sin6_family = AF_INET6;
    place.sin6_port = ports[ipv6];
    ::inet_pton(AF_INET6, address.c_str(), &place.sin6_addr);
    endpoint.length = sizeof place;
    std::memcpy(&endpoint.storage, &place, sizeof place);
  } else {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = ports[ipv4];
    ::inet_pton(AF_INET, address.c_str(), &place.sin_addr);
    endpoint.length = sizeof place;
    std::memcpy(&endpoint.storage, &place, sizeof place);
  }
  return endpoint;
}

int open_datagram_socket(IpFamily family) {
  const int kind = family == ipv6 ? AF_INET6 : AF_INET;
  const int socket = ::socket(kind, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // Each family has its own port.
  const int only = 1;
  if (socket >= 0 && family == ipv6)
    (void)::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  return socket;
}

std::uint16_t bind_to_free_port(int socket, IpFamily family) {
  Endpoint place = endpoint_of(family == ipv6 ? "::" : "0.0.0.0", {});
  if (socket < 0 || ::bind(socket, place.address(), place.length) != 0 ||
      ::getsockname(socket, place.address(), &place.length) != 0)
    return 0;
  if (family == ipv6) {
    sockaddr_in6 bound{};
    std::memcpy(&bound, &place.storage, sizeof bound);
    return bound.sin6_port;
  }
  sockaddr_in bound{};
  std::memcpy(&bound, &place.storage, sizeof bound);
  return bound.sin_port;
}

}  // namespace trireme::comm
