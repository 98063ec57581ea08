// UDP messages between rank 0 and the other ranks, used by the watchdog for heartbeats.
//
// 1. The constructor binds a socket on rank 0. It broadcasts a random key, the port and all IPv4
//    addresses of rank 0.
// 2. A rank sends its first messages to every address. It keeps the one from which rank 0 answers.
// 3. Rank 0 learns the address of a rank from its first message.
//
// Called from the thread of train's watchdog, and from its destructor (stop_receiving).

#include "trireme/comm/datagrams.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trireme/base/expect.hpp"

namespace trireme::comm {
namespace {

struct Header {
  std::uint64_t key = 0;
  std::int64_t from = 0;
};

/// The key and the addresses of rank 0, which it broadcasts over MPI. A host has several networks,
/// and not every rank reaches all of them. IPv4 only, like the launchers and MPI's own TCP
/// transport.
struct RendezvousInfo {
  std::uint64_t key = 0;
  std::uint16_t port = 0;  ///< network byte order; 0: rank 0 has no socket
  std::uint16_t count = 0;
  std::array<std::uint32_t, 14> addresses{};
};

sockaddr_in address_of(std::uint32_t address, std::uint16_t port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = address;
  place.sin_port = port;
  return place;
}

bool same_address(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_addr.s_addr == b.sin_addr.s_addr && a.sin_port == b.sin_port;
}

/// Adds the IPv4 addresses of all network interfaces, including loopback for ranks on the same
/// host.
void add_own_addresses(RendezvousInfo& rendezvous) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list;
       entry != nullptr && rendezvous.count < rendezvous.addresses.size();
       entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in place{};
    std::memcpy(&place, entry->ifa_addr, sizeof place);
    rendezvous.addresses[rendezvous.count++] = place.sin_addr.s_addr;
  }
  freeifaddrs(list);
}

}  // namespace

struct Datagrams::State {
  int rank = 0, socket = -1;
  // Readable after stop_receiving(). Without it (-1) a wait lasts its full time.
  int wake_descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::uint64_t key = 0;
  // Ranks > 0: the addresses of rank 0; only one after its first answer.
  std::vector<sockaddr_in> rendezvous;
  // Rank 0: address by rank; port 0 before the first message of that rank.
  std::vector<sockaddr_in> peers;
};

Datagrams::Datagrams(const Communicator& world) : state_(std::make_unique<State>()) {
  state_->rank = world.rank();
  if (world.size() == 1) return;
  state_->socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  RendezvousInfo rendezvous;
  if (world.rank() == 0) {
    std::random_device random;
    rendezvous.key = std::uint64_t{random()} << 32 | random();
    sockaddr_in place = address_of(htonl(INADDR_ANY), 0);
    socklen_t length = sizeof place;
    const bool bound =
        state_->socket >= 0 &&
        ::bind(state_->socket, reinterpret_cast<sockaddr*>(&place), sizeof place) == 0 &&
        ::getsockname(state_->socket, reinterpret_cast<sockaddr*>(&place), &length) == 0;
    if (bound) {
      rendezvous.port = place.sin_port;
      add_own_addresses(rendezvous);
    }
  }
  world.broadcast(std::as_writable_bytes(std::span(&rendezvous, 1)), 0);
  state_->key = rendezvous.key;
  state_->peers.resize(static_cast<std::size_t>(world.size()));
  for (std::size_t i = 0; i < rendezvous.count; ++i)
    state_->rendezvous.push_back(address_of(rendezvous.addresses[i], rendezvous.port));
}

Datagrams::~Datagrams() {
  for (const int descriptor : {state_->socket, state_->wake_descriptor}) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

void Datagrams::stop_receiving() { (void)::eventfd_write(state_->wake_descriptor, 1); }

void Datagrams::send(int to, std::span<const std::byte> data) {
  TRIREME_EXPECT(data.size() <= max_bytes && (to == 0) != (state_->rank == 0));
  if (state_->socket < 0) return;
  std::array<std::byte, sizeof(Header) + max_bytes> packet{};
  const Header header{state_->key, state_->rank};
  std::memcpy(packet.data(), &header, sizeof header);
  std::memcpy(packet.data() + sizeof header, data.data(), data.size());
  // An error is treated like a lost message.
  const auto post = [&](const sockaddr_in& place) {
    (void)!::sendto(state_->socket, packet.data(), sizeof header + data.size(), MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&place), sizeof place);
  };
  if (state_->rank == 0) {
    const sockaddr_in& peer = state_->peers[static_cast<std::size_t>(to)];
    if (peer.sin_port != 0) post(peer);
  } else {
    for (const sockaddr_in& place : state_->rendezvous) post(place);
  }
}

std::optional<int> Datagrams::receive(std::span<std::byte> data, double seconds, int interrupt) {
  TRIREME_EXPECT(data.size() <= max_bytes);
  std::array<pollfd, 3> wanted{{{.fd = state_->socket, .events = POLLIN, .revents = 0},
                                {.fd = state_->wake_descriptor, .events = POLLIN, .revents = 0},
                                {.fd = interrupt, .events = POLLIN, .revents = 0}}};
  // 1. Wait for a message, for stop_receiving(), or for `interrupt`. poll() ignores negative
  //    descriptors.
  if (::poll(wanted.data(), wanted.size(), std::max(0, static_cast<int>(seconds * 1000))) <= 0 ||
      wanted[0].revents == 0)
    return std::nullopt;
  // 2. Read it; drop it if its size or key is wrong.
  std::array<std::byte, sizeof(Header) + max_bytes> packet{};
  sockaddr_in place{};
  socklen_t length = sizeof place;
  const ssize_t got = ::recvfrom(state_->socket, packet.data(), packet.size(), 0,
                                 reinterpret_cast<sockaddr*>(&place), &length);
  if (got != static_cast<ssize_t>(sizeof(Header) + data.size())) return std::nullopt;
  Header header;
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.key != state_->key || header.from < 0 ||
      header.from >= static_cast<std::int64_t>(state_->peers.size()))
    return std::nullopt;
  // 3. Remember the address of the sender.
  if (state_->rank == 0)
    state_->peers[static_cast<std::size_t>(header.from)] = place;
  else if (std::any_of(state_->rendezvous.begin(), state_->rendezvous.end(),
                       [&](const sockaddr_in& known) { return same_address(known, place); }))
    state_->rendezvous = {place};
  std::memcpy(data.data(), packet.data() + sizeof header, data.size());
  return static_cast<int>(header.from);
}

}  // namespace trireme::comm
