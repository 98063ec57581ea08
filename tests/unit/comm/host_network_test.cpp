// SPDX-License-Identifier: Apache-2.0
//
// Tests comm::addresses_from(): the addresses at which a rank reaches rank 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/datagrams/host_network.hpp"
#include "comm/engine/endpoint.hpp"

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

using Addresses = std::vector<std::string>;

const HostNetwork front{"front",
                        "boot-a net:[1]",
                        {"127.0.0.1", "10.0.0.1", "172.17.0.1", "::1", "fd00::1", "127.0.1.1"}};

TEST(HostNetwork, OneHostUsesLoopbackAlone) {
  EXPECT_EQ(addresses_from(front, front), Addresses{"127.0.0.1"});
  // Also under another name, and without any address.
  EXPECT_EQ(addresses_from({"alias", front.scope, {}}, front), Addresses{"127.0.0.1"});
}

TEST(HostNetwork, AnotherHostUsesNoLoopbackAndNoAddressOfItsOwn) {
  const HostNetwork back{"back", "boot-b net:[1]", {"127.0.0.1", "10.0.0.2", "172.17.0.1", "::1"}};
  EXPECT_EQ(addresses_from(back, front), (Addresses{"10.0.0.1", "fd00::1"}));
  // A name or an address alone makes no two hosts one.
  const HostNetwork twin{"front", "boot-b net:[1]", front.addresses};
  EXPECT_EQ(addresses_from(twin, front), Addresses{});
  // Another network namespace of one machine is another host.
  const HostNetwork container{"front", "boot-a net:[2]", {"127.0.0.1", "172.17.0.2"}};
  EXPECT_EQ(addresses_from(container, front), (Addresses{"10.0.0.1", "172.17.0.1", "fd00::1"}));
}

TEST(HostNetwork, OfOneFamilyIsEnough) {
  const HostNetwork modern{"modern", "boot-c net:[1]", {"127.0.0.1", "172.17.0.1", "fd00::2"}};
  const HostNetwork back{"back", "boot-b net:[1]", {"127.0.0.1", "172.17.0.1", "fd00::3"}};
  EXPECT_EQ(addresses_from(back, modern), Addresses{"fd00::2"});
}

TEST(HostNetwork, SurvivesItsText) {
  for (const HostNetwork& network : {front, HostNetwork{"bare", "boot", {}}}) {
    const HostNetwork read = host_network_from_text(to_text(network));
    EXPECT_EQ(read.host, network.host);
    EXPECT_EQ(read.scope, network.scope);
    EXPECT_EQ(read.addresses, network.addresses);
  }
}

TEST(HostNetwork, OfThisHostHasTheBootIdAndTheNamespace) {
  const HostNetwork network = this_host_network();
  EXPECT_FALSE(network.host.empty());
  EXPECT_THAT(network.scope, HasSubstr("net:["));
  for (const std::string& address : network.addresses)
    EXPECT_THAT(address, Not(HasSubstr("fe80:")));
}

TEST(Endpoint, HasThePortOfItsFamily) {
  const Ports ports{1, 2};
  EXPECT_EQ(endpoint_of("10.0.0.1", ports).family(), ipv4);
  EXPECT_EQ(endpoint_of("fd00::1", ports).family(), ipv6);
  EXPECT_EQ(endpoint_of("fd00::1", ports), endpoint_of("fd00:0::1", {9, 2}));
  EXPECT_FALSE(endpoint_of("fd00::1", ports) == endpoint_of("fd00::1", {1, 3}));
  EXPECT_FALSE(endpoint_of("10.0.0.1", ports) == endpoint_of("10.0.0.2", ports));
}

/// A datagram of each family that this host has goes through its own port.
TEST(Endpoint, SocketsOfBothFamiliesReachTheirPort) {
  for (const IpFamily family : {ipv4, ipv6}) {
    const int receiver = open_datagram_socket(family), sender = open_datagram_socket(family);
    Ports ports{};
    ports[family] = bind_to_free_port(receiver, family);
    const Endpoint place = endpoint_of(family == ipv6 ? "::1" : "127.0.0.1", ports);
    const char sent = 'x';
    if (ports[family] != 0 && ::sendto(sender, &sent, 1, 0, place.address(), place.length) == 1) {
      char received = 0;
      EXPECT_EQ(::recv(receiver, &received, 1, 0), 1);
      EXPECT_EQ(received, sent);
    }
    for (const int socket : {receiver, sender})
      if (socket >= 0) ::close(socket);
  }
}

}  // namespace
}  // namespace trireme::comm
