// SPDX-License-Identifier: Apache-2.0
#include "shard_rounds.hpp"

#include "trireme/base/text.hpp"

namespace trireme::app {

void write_in_rounds(const comm::Communicator& world, std::int64_t shards,
                     const std::function<void(std::int64_t shard)>& write) {
  for (std::int64_t first = 0; first < shards; first += world.size()) {
    comm::together(world, [&] {
      const std::int64_t shard = first + world.rank();
      if (shard < shards) write(shard);
    });
  }
}

WritingProgress::WritingProgress(const comm::Communicator& world, std::int64_t shards,
                                 const std::function<std::int64_t(std::int64_t)>& first_of,
                                 std::string out, Log& log)
    : out_(std::move(out)), log_(log) {
  for (std::int64_t shard = world.rank(); shard < shards; shard += world.size())
    left_ += first_of(shard + 1) - first_of(shard);
}

void WritingProgress::add_written() {
  constexpr double progress_seconds = 10;
  ++done_;
  --left_;
  const double now = monotonic_seconds();
  if (now - report_seconds_ < progress_seconds) return;
  report_seconds_ = now;
  const auto done = static_cast<double>(done_), left = static_cast<double>(left_);
  log_.info("{}: {:.1f} % of the samples written, about {} left", out_, 100 * done / (done + left),
            format_seconds((now - start_seconds_) / done * left));
}

}  // namespace trireme::app
