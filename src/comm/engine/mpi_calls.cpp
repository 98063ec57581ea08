// SPDX-License-Identifier: Apache-2.0
//
// Implements Calls with non-blocking MPI calls on host memory.
//
// For each step of a request, Engine::State calls post(), which issues calls here, and then polls
// ended(). Messages longer than the maximum count are cut into several MPI calls, in the same way
// on both sides.

#include "mpi_calls.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

// Most steps have one message in each direction. Longer lists grow once.
constexpr std::size_t initial_capacity = 4;
// Marks a request that is not a receive.
constexpr std::int64_t not_receiving = -1;

/// Calls piece(begin, count) for [0, all) in pieces of at most `max_count`, which MPI can count
/// with an int.
template <class Piece>
void for_each_piece(std::int64_t all, std::int64_t max_count, Piece&& piece) {
  for (std::int64_t begin = 0; begin < all; begin += max_count)
    piece(begin, static_cast<int>(std::min(max_count, all - begin)));
}

}  // namespace

MpiCalls::MpiCalls() {
  requests_.reserve(initial_capacity);
  statuses_.reserve(initial_capacity);
  expected_bytes_.reserve(initial_capacity);
}

void MpiCalls::begin(const MpiCommunicator& group, int tag, std::int64_t max_count) {
  TRIREME_EXPECT(requests_.empty());
  group_ = &group;
  tag_ = tag;
  max_count_ = max_count;
  bytes_sent_ = 0;
}

MPI_Request& MpiCalls::add_request(std::int64_t expected_bytes) {
  expected_bytes_.push_back(expected_bytes);
  statuses_.emplace_back();
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

void MpiCalls::send(std::span<const std::byte> data, int to) {
  for_each_piece(std::ssize(data), max_count_, [&](std::int64_t begin, int count) {
    mpi_try(MPI_Isend(data.data() + begin, count, MPI_BYTE, to, tag_, group_->engine,
                      &add_request(not_receiving)),
            "MPI_Isend");
  });
  bytes_sent_ += static_cast<double>(data.size());
}

void MpiCalls::receive(std::span<std::byte> data, int from) {
  for_each_piece(std::ssize(data), max_count_, [&](std::int64_t begin, int count) {
    mpi_try(MPI_Irecv(data.data() + begin, count, MPI_BYTE, from, tag_, group_->engine,
                      &add_request(count)),
            "MPI_Irecv");
  });
}

void MpiCalls::all_reduce(float* data, std::int64_t count) {
  for_each_piece(count, max_count_, [&](std::int64_t begin, int elements) {
    mpi_try(MPI_Iallreduce(MPI_IN_PLACE, data + begin, elements, MPI_FLOAT, MPI_SUM, group_->engine,
                           &add_request(not_receiving)),
            "MPI_Iallreduce");
  });
  bytes_sent_ +=
      2.0 * static_cast<double>(count) * sizeof(float) * (group_->size - 1) / group_->size;
}

void MpiCalls::add(const float* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void MpiCalls::add(const BFloat16* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += to_float(from[i]);
}

void MpiCalls::add(const double* from, double* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void MpiCalls::copy(const float* from, float* to, std::int64_t count) {
  std::copy_n(from, count, to);
}

void MpiCalls::narrow(const float* from, BFloat16* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
}

void MpiCalls::widen(const BFloat16* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

bool MpiCalls::all_done() {
  int all = 0;
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
  // Throw the error of the request that failed.
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_)
      mpi_try(status.MPI_ERROR == MPI_ERR_PENDING ? MPI_SUCCESS : status.MPI_ERROR, "MPI_Testall");
  }
  mpi_try(code, "MPI_Testall");
  if (all == 0) return false;
  // All have ended: compare the lengths of received messages.
  for (std::size_t i = 0; i < expected_bytes_.size(); ++i) {
    if (expected_bytes_[i] == not_receiving) continue;
    int bytes = 0;
    mpi_try(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_count");
    ensure(bytes == expected_bytes_[i],
           "received {} bytes from rank {} with tag {}, expected {} bytes", bytes,
           statuses_[i].MPI_SOURCE, statuses_[i].MPI_TAG, expected_bytes_[i]);
  }
  requests_.clear();
  statuses_.clear();
  expected_bytes_.clear();
  return true;
}

}  // namespace trireme::comm
