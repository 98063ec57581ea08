// SPDX-License-Identifier: Apache-2.0
//
// The addresses of a host, and those at which another host reaches it.
//
// Each rank calls this_host_network() once, in the constructor of Datagrams. Rank 0 broadcasts its
// own, and the other ranks choose from it with addresses_from().

#include "host_network.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include "trireme/base/host.hpp"

namespace trireme::comm {
namespace {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

/// Returns the text of an address; "" for one that other hosts cannot use as it is, and for other
/// families.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    sockaddr_in place{};
    std::memcpy(&place, address, sizeof place);
    ::inet_ntop(AF_INET, &place.sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 place{};
    std::memcpy(&place, address, sizeof place);
    if (!IN6_IS_ADDR_LINKLOCAL(&place.sin6_addr))
      ::inet_ntop(AF_INET6, &place.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

HostNetwork this_host_network() {
  HostNetwork network{host_name(), kernel_scope("net"), {}};
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return network;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::string address = entry->ifa_addr == nullptr ? "" : text_of(entry->ifa_addr);
    if (!address.empty()) network.addresses.push_back(address);
  }
  ::freeifaddrs(list);
  return network;
}

std::vector<std::string> addresses_from(const HostNetwork& own, const HostNetwork& other) {
  if (own.scope == other.scope) return {"127.0.0.1"};
  std::vector<std::string> reachable;
  for (const std::string& address : other.addresses) {
    if (!is_loopback(address) &&
        std::find(own.addresses.begin(), own.addresses.end(), address) == own.addresses.end())
      reachable.push_back(address);
  }
  return reachable;
}

std::string to_text(const HostNetwork& network) {
  std::string text = network.host + "\n" + network.scope + "\n";
  for (const std::string& address : network.addresses) text += address + "\n";
  return text;
}

HostNetwork host_network_from_text(const std::string& text) {
  HostNetwork network;
  std::istringstream lines(text);
  std::getline(lines, network.host);
  std::getline(lines, network.scope);
  for (std::string address; std::getline(lines, address);)
    network.addresses.push_back(std::move(address));
  return network;
}

}  // namespace trireme::comm
