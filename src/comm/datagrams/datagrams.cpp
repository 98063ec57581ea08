// SPDX-License-Identifier: Apache-2.0
//
// UDP messages between rank 0 and the other ranks, used by the watchdog for heartbeats.
//
// 1. The constructor binds a socket on rank 0. It broadcasts a random key, the port and the
//    addresses of rank 0's host. Each other rank chooses those that it can reach.
// 2. A rank sends its first messages to every chosen address. It keeps the one from which rank 0
//    answers.
// 3. Rank 0 learns the address of a rank from its first message.
//
// The key never leaves the processes: each datagram has a code that proves who sent it.
// Called from the thread of train's watchdog, and from its destructor (stop_receiving).

#include "trireme/comm/datagrams/datagrams.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/engine/endpoint.hpp"
#include "host_network.hpp"
#include "sealed_datagrams.hpp"
#include "siphash.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/expect.hpp"

namespace trireme::comm {
namespace {

std::string listed(const std::vector<std::string>& addresses) {
  std::string text;
  for (const std::string& address : addresses) text += (text.empty() ? "" : ", ") + address;
  return text.empty() ? "none" : text;
}

/// Throws InputError if no address is left at which rank 0 can be reached.
void validate_reachable(const std::vector<std::string>& reachable, const HostNetwork& own,
                        const HostNetwork& rank_zero) {
  validate(!reachable.empty(),
           "host {} ({}) cannot send heartbeats to rank 0 on host {} ({}): loopback and "
           "addresses that both hosts have do not lead to another host, and no other address of "
           "rank 0's host is left; give it an address of its own in a network of both hosts, or "
           "set health.watchdog = \"none\"",
           own.host, listed(own.addresses), rank_zero.host, listed(rank_zero.addresses));
}

}  // namespace

struct Datagrams::State {
  State(int rank_in, int ranks, const SipKey& key)
      : rank(rank_in), seal(key, rank_in, ranks), peers(static_cast<std::size_t>(ranks)) {}
  ~State() {
    for (const int descriptor : {sockets[ipv4], sockets[ipv6], wake_descriptor})
      if (descriptor >= 0) ::close(descriptor);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void open_sockets() {
    for (const IpFamily family : {ipv4, ipv6}) sockets[family] = open_datagram_socket(family);
  }

  const int rank;
  std::array<int, ip_families> sockets{-1, -1};
  // Readable after stop_receiving(). Without it (-1) a wait lasts its full time.
  int wake_descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  SealedDatagrams seal;
  // Ranks > 0: the endpoints of rank 0; only one after its first answer.
  std::vector<Endpoint> rendezvous;
  // Rank 0: endpoint by rank; unknown before the first message of that rank.
  std::vector<Endpoint> peers;
};

Datagrams::Datagrams(const Communicator& world) {
  const int rank = world.rank();
  // 1. Rank 0 makes the key, and all ranks get it.
  SipKey key{};
  together(world, [&] {
    if (rank == 0 && world.size() > 1) key = secret_key();
  });
  world.broadcast(std::as_writable_bytes(std::span(key)), 0);
  state_ = std::make_unique<State>(rank, world.size(), key);
  if (world.size() == 1) return;
  // 2. Rank 0 opens its ports.
  const HostNetwork own = this_host_network();
  Ports ports{};
  state_->open_sockets();
  for (const IpFamily family : {ipv4, ipv6})
    if (rank == 0) ports[family] = bind_to_free_port(state_->sockets[family], family);
  // 3. The others choose the addresses that they can reach.
  world.broadcast(std::as_writable_bytes(std::span(ports)), 0);
  const HostNetwork rank_zero = host_network_from_text(world.broadcast(to_text(own), 0));
  together(world, [&] {
    if (rank == 0) return;
    const std::vector<std::string> reachable = addresses_from(own, rank_zero);
    validate_reachable(reachable, own, rank_zero);
    for (const std::string& address : reachable)
      if (ports[family_of(address)] != 0) state_->rendezvous.push_back(endpoint_of(address, ports));
  });
}

Datagrams::~Datagrams() = default;

void Datagrams::stop_receiving() { (void)::eventfd_write(state_->wake_descriptor, 1); }

void Datagrams::send(int to, std::span<const std::byte> data) {
  TRIREME_EXPECT(data.size() <= max_bytes && (to == 0) != (state_->rank == 0));
  std::array<std::byte, SealedDatagrams::header_bytes + max_bytes> buffer{};
  const auto packet = std::span(buffer).first(SealedDatagrams::header_bytes + data.size());
  state_->seal.seal(to, data, packet);
  // An error is treated like a lost message.
  const auto post = [&](const Endpoint& place) {
    (void)!::sendto(state_->sockets[place.family()], packet.data(), packet.size(), MSG_NOSIGNAL,
                    place.address(), place.length);
  };
  if (state_->rank == 0) {
    const Endpoint& peer = state_->peers[static_cast<std::size_t>(to)];
    if (peer.length != 0) post(peer);
  } else {
    for (const Endpoint& place : state_->rendezvous) post(place);
  }
}

std::optional<int> Datagrams::receive(std::span<std::byte> data, double seconds, int interrupt) {
  TRIREME_EXPECT(data.size() <= max_bytes);
  const auto wish = [](int descriptor) {
    return pollfd{.fd = descriptor, .events = POLLIN, .revents = 0};
  };
  std::array<pollfd, 4> wanted{wish(state_->sockets[ipv4]), wish(state_->sockets[ipv6]),
                               wish(state_->wake_descriptor), wish(interrupt)};
  // 1. Wait for a message, for stop_receiving(), or for `interrupt`. poll() ignores negative
  //    descriptors.
  if (::poll(wanted.data(), wanted.size(), std::max(0, static_cast<int>(seconds * 1000))) <= 0)
    return std::nullopt;
  for (const IpFamily family : {ipv4, ipv6}) {
    if (wanted[family].revents == 0) continue;
    // 2. Read a message; drop it if it is longer than any message, or not authentic.
    std::array<std::byte, SealedDatagrams::header_bytes + max_bytes> packet{};
    Endpoint place{.storage = {}, .length = sizeof place.storage};
    const ssize_t got = ::recvfrom(state_->sockets[family], packet.data(), packet.size(), MSG_TRUNC,
                                   place.address(), &place.length);
    if (got < 0 || got > std::ssize(packet)) continue;
    const std::optional<int> from =
        state_->seal.open(std::span(packet).first(static_cast<std::size_t>(got)), data);
    if (!from || (state_->rank != 0 && *from != 0)) continue;
    // 3. Remember the address of the sender.
    if (state_->rank == 0)
      state_->peers[static_cast<std::size_t>(*from)] = place;
    else if (std::find(state_->rendezvous.begin(), state_->rendezvous.end(), place) !=
             state_->rendezvous.end())
      state_->rendezvous = {place};
    return from;
  }
  return std::nullopt;
}

}  // namespace trireme::comm
