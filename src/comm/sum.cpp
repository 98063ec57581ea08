#include "sum.hpp"

#include <bit>

namespace trireme::comm {
namespace {

// Below 16 KiB a message costs its latency: fewer messages beat fewer bytes.
constexpr std::int64_t halving_elements = 4096;
// MPI promises tags up to 32767; far fewer requests than this are under way at once.
constexpr std::uint64_t tags = 32768;

bool power_of_two(int ranks) { return std::has_single_bit(static_cast<unsigned>(ranks)); }
int levels_of(int ranks) { return std::bit_width(static_cast<unsigned>(ranks)) - 1; }

}  // namespace

Sum::Way Sum::way_of(const Task& task) {
  if (task.order == SumOrder::library) return Way::library;
  if (!power_of_two(task.group->size)) return Way::chain;
  return task.count < halving_elements ? Way::exchange : Way::halving;
}

void Sum::start(const Task& task) {
  task_ = task;
  way_ = way_of(task);
  tag_ = static_cast<int>(task.group->engine_requests++ % tags);
  levels_ = levels_of(task.group->size);
  held_[0] = {0, task.count};
  step_ = 0;
  switch (way_) {
    case Way::library: steps_ = 1; break;
    case Way::exchange: steps_ = levels_; break;
    case Way::halving: steps_ = 2 * levels_; break;
    case Way::chain: steps_ = 4; break;
  }
  post();
}

bool Sum::advance() {
  while (true) {
    std::array<MPI_Request, 2> calls{sending_, receiving_};
    int ended = 0;
    mpi_try(MPI_Testall(2, calls.data(), &ended, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (ended == 0) return false;
    sending_ = receiving_ = MPI_REQUEST_NULL;
    complete();
    if (++step_ == steps_) return true;
    post();
  }
}

void Sum::post() {
  switch (way_) {
    case Way::library:
      mpi_try(MPI_Iallreduce(MPI_IN_PLACE, task_.data, static_cast<int>(task_.count), MPI_FLOAT, MPI_SUM, task_.group->engine, &sending_), "MPI_Iallreduce");
      return;
    case Way::exchange:
      receive(task_.scratch, task_.count, partner(step_));
      send(task_.data, task_.count, partner(step_));
      return;
    case Way::halving: post_halving(); return;
    case Way::chain: post_chain(); return;
  }
}

Sum::Range Sum::half(const Range& whole, bool upper_half) const {
  const std::int64_t middle = whole.begin + whole.size() / 2;
  return upper_half ? Range{middle, whole.end} : Range{whole.begin, middle};
}

void Sum::post_halving() {
  const bool scattering = step_ < levels_;
  const int level = scattering ? step_ : 2 * levels_ - 1 - step_;
  const auto here = static_cast<std::size_t>(level);
  const Range mine = half(held_[here], upper(level)), theirs = half(held_[here], !upper(level));
  if (scattering) {
    held_[here + 1] = mine;
    receive(task_.scratch + mine.begin, mine.size(), partner(level));
    send(task_.data + theirs.begin, theirs.size(), partner(level));
  } else {
    receive(task_.data + theirs.begin, theirs.size(), partner(level));
    send(task_.data + mine.begin, mine.size(), partner(level));
  }
}

void Sum::post_chain() {
  const int rank = task_.group->rank, last = task_.group->size - 1;
  switch (step_) {
    case 0: return rank > 0 ? receive(task_.scratch, task_.count, rank - 1) : void();
    case 1: return rank < last ? send(task_.data, task_.count, rank + 1) : void();
    case 2: return rank < last ? receive(task_.data, task_.count, rank + 1) : void();
    default: return rank > 0 ? send(task_.data, task_.count, rank - 1) : void();
  }
}

// lower + upper and upper + lower are the same bits, so both partners may add in place.
void Sum::complete() {
  if (way_ == Way::exchange) add({0, task_.count});
  if (way_ == Way::halving && step_ < levels_) add(held_[static_cast<std::size_t>(step_) + 1]);
  if (way_ == Way::chain && step_ == 0 && task_.group->rank > 0) add({0, task_.count});
}

void Sum::add(const Range& range) {
  for (std::int64_t i = range.begin; i < range.end; ++i) task_.data[i] += task_.scratch[i];
}

void Sum::send(const float* from, std::int64_t count, int to) {
  mpi_try(MPI_Isend(from, static_cast<int>(count), MPI_FLOAT, to, tag_, task_.group->engine, &sending_), "MPI_Isend");
}

void Sum::receive(float* to, std::int64_t count, int from) {
  mpi_try(MPI_Irecv(to, static_cast<int>(count), MPI_FLOAT, from, tag_, task_.group->engine, &receiving_), "MPI_Irecv");
}

double Sum::bytes_sent(const Task& task) {
  const double vector = static_cast<double>(task.count) * sizeof(float);
  const int ranks = task.group->size, rank = task.group->rank;
  switch (way_of(task)) {
    case Way::exchange: return vector * levels_of(ranks);
    case Way::chain: return vector * ((rank > 0) + (rank < ranks - 1));
    case Way::library:
    case Way::halving: return 2 * vector * (ranks - 1) / ranks;
  }
  return 0;
}

}  // namespace trireme::comm
