#include "trireme/data/sampler.hpp"

#include <algorithm>

#include "trireme/base/permutation.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {
namespace {

// A window's positions are permuted first; the place so found lies in a run of `block` neighbours,
// and the whole runs are permuted over the epoch. What is left after the whole runs keeps its
// place, so all samples are turned by an epoch's own offset before: which ones stand there (and are
// dropped where the step does not divide the epoch) changes from epoch to epoch.
std::int64_t sample_in_blocks(const Order& order, std::uint64_t key, std::int64_t position) {
  const std::int64_t window = std::clamp<std::int64_t>(order.window, 1, order.samples);
  const std::int64_t window_index = position / window, window_begin = window_index * window;
  const std::int64_t window_samples = std::min(window, order.samples - window_begin);
  const Permutation inside(mix64(key ^ static_cast<std::uint64_t>(window_index + 1)),
                           static_cast<std::uint64_t>(window_samples));
  std::int64_t place =
      window_begin +
      static_cast<std::int64_t>(inside(static_cast<std::uint64_t>(position - window_begin)));

  const std::int64_t block = std::clamp<std::int64_t>(order.block, 1, order.samples);
  const std::int64_t runs = order.samples / block;
  if (place < runs * block) {
    const Permutation of_runs(mix64(key), static_cast<std::uint64_t>(runs));
    place = static_cast<std::int64_t>(of_runs(static_cast<std::uint64_t>(place / block))) * block +
            place % block;
  }
  const std::int64_t turn =
      static_cast<std::int64_t>(mix64(~key) % static_cast<std::uint64_t>(order.samples));
  return (place + turn) % order.samples;
}

}  // namespace

std::int64_t Order::sample(std::int64_t epoch, std::int64_t position) const {
  TRIREME_EXPECT(position >= 0 && position < samples);
  if (shuffle == Shuffle::none) return position;
  const std::uint64_t key =
      mix64(random_key(seed, "shuffle") ^ mix64(static_cast<std::uint64_t>(epoch) + 1));
  if (shuffle == Shuffle::blocks) return sample_in_blocks(*this, key, position);
  return static_cast<std::int64_t>(
      Permutation(key, static_cast<std::uint64_t>(samples))(static_cast<std::uint64_t>(position)));
}

Cursor StepCutter::locate(Cursor cursor, std::int64_t row) const {
  TRIREME_EXPECT(row >= 0 && row < global);
  if (drop_last) {
    // A restart with another global batch may leave a rest that this one does not fit in.
    return cursor.taken + global > samples ? Cursor{cursor.epoch + 1, row}
                                           : Cursor{cursor.epoch, cursor.taken + row};
  }
  const std::int64_t position = cursor.taken + row;
  return {cursor.epoch + position / samples, position % samples};
}

Cursor StepCutter::advance(Cursor cursor) const {
  if (!drop_last) {
    const std::int64_t position = cursor.taken + global;
    return {cursor.epoch + position / samples, position % samples};
  }
  const Cursor first = locate(cursor, 0);
  const Cursor next{first.epoch, first.taken + global};
  return next.taken + global > samples ? Cursor{next.epoch + 1, 0} : next;
}

}  // namespace trireme::data
