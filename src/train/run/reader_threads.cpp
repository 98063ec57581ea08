// SPDX-License-Identifier: Apache-2.0
//
// Chooses the number of reader threads of a rank (data.workers).
#include "reader_threads.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/host.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"

namespace trireme::train {

int ranks_sharing_cores(const comm::Environment& environment) {
  const comm::Communicator& world = environment.world();
  const std::uint64_t mine = random_key(0, environment.host() + ":" + core_list());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return static_cast<int>(std::count(all.begin(), all.end(), mine));
}

int choose_reader_threads(int cores, int ranks_sharing, int threads) {
  // More are rarely needed to read. Decoding may need more, and data.workers can say so.
  constexpr int max_threads = 4;
  return std::clamp(cores / ranks_sharing - threads, 1, max_threads);
}

int choose_reader_threads(const deck::Deck& deck, const comm::Environment& environment,
                          Device device, Log& log) {
  constexpr int without_known_cores = 2;
  const int cores = available_cores(), ranks_sharing = ranks_sharing_cores(environment);
  // With OMP_PROC_BIND the main thread is bound to a part of the cores, and the rest is unknown.
  const bool cores_are_known = cores >= KokkosScope::threads();
  // With a GPU only the main thread computes on the host.
  const int threads = in_host_memory(device.kind) ? KokkosScope::threads() : 1;
  if (deck.data.workers == 0)
    return cores_are_known ? choose_reader_threads(cores, ranks_sharing, threads)
                           : without_known_cores;
  if (cores_are_known && ranks_sharing * deck.data.workers > cores)
    log.warn(
        "data.workers = {}: {} reader threads on {} share {}, so they slow the computation down; "
        "use \"auto\"",
        deck.data.workers, ranks_sharing * deck.data.workers, environment.host(),
        counted(cores, "core", "cores"));
  return deck.data.workers;
}

}  // namespace trireme::train
