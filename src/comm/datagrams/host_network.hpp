// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace trireme::comm {

/// The host of a rank and its IP addresses, as texts such as "10.0.0.7" and "fd00::7".
struct HostNetwork {
  std::string host;
  /// Boot id and network namespace: processes with the same text share the loopback interface.
  std::string scope;
  std::vector<std::string> addresses;
};

/// Returns the host of this process and the addresses of its network interfaces, without IPv6
/// addresses of one link (fe80::/10), which need an interface of the sender.
HostNetwork this_host_network();

/// Returns the addresses at which a process of `own` can reach one of `other`.
///
/// The same host and network namespace: the loopback address alone. Else all without loopback and
/// without the addresses that `own` has too: a bridge has the same address on many hosts, and a
/// datagram to it would stay on the own host.
std::vector<std::string> addresses_from(const HostNetwork& own, const HostNetwork& other);

/// The host as text for broadcast(), and back.
std::string to_text(const HostNetwork& network);
HostNetwork host_network_from_text(const std::string& text);

}  // namespace trireme::comm
