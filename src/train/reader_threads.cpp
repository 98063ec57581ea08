// Chooses the number of reader threads of a rank (data.workers).
#include "trireme/train/reader_threads.hpp"

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
  constexpr int max_threads = 4;  // more hardly ever help one device
  return std::clamp(cores / ranks_sharing - threads, 1, max_threads);
}

int choose_reader_threads(const deck::Deck& deck, const comm::Environment& environment,
                          Device device, Log& log) {
  const int cores = available_cores(), ranks_sharing = ranks_sharing_cores(environment);
  // With a GPU only the main thread computes on the host.
  const int threads = in_host_memory(device.kind) ? KokkosScope::threads() : 1;
  const int readers = deck.data.workers > 0 ? deck.data.workers
                                            : choose_reader_threads(cores, ranks_sharing, threads);
  if (deck.data.workers > 0 && ranks_sharing * readers > cores)
    log.warn(
        "data.workers = {}: {} on {} have {} reader threads for {}, so they disturb the "
        "computation; use \"auto\"",
        readers, counted(ranks_sharing, "rank", "ranks"), environment.host(),
        ranks_sharing * readers, counted(cores, "core", "cores"));
  return readers;
}

}  // namespace trireme::train
