#include "mpi_calls.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

// A message each way is what a step mostly has; memory grows once where pieces make it more.
constexpr std::size_t usual = 4;
constexpr std::int64_t not_receiving = -1;

/// Calls piece(begin, count) for [0, all) in pieces that MPI can count.
template <class Piece>
void in_pieces(std::int64_t all, std::int64_t longest, Piece&& piece) {
  for (std::int64_t begin = 0; begin < all; begin += longest)
    piece(begin, static_cast<int>(std::min(longest, all - begin)));
}

}  // namespace

MpiCalls::MpiCalls() {
  requests_.reserve(usual);
  statuses_.reserve(usual);
  due_.reserve(usual);
}

void MpiCalls::begin(const MpiForm& group, int tag, std::int64_t longest) {
  TRIREME_EXPECT(requests_.empty());
  group_ = &group;
  tag_ = tag;
  longest_ = longest;
  bytes_sent_ = 0;
}

MPI_Request& MpiCalls::add_request(std::int64_t due) {
  due_.push_back(due);
  statuses_.emplace_back();
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

void MpiCalls::send(std::span<const std::byte> data, int to) {
  in_pieces(std::ssize(data), longest_, [&](std::int64_t begin, int count) {
    mpi_try(MPI_Isend(data.data() + begin, count, MPI_BYTE, to, tag_, group_->engine,
                      &add_request(not_receiving)),
            "MPI_Isend");
  });
  bytes_sent_ += static_cast<double>(data.size());
}

void MpiCalls::receive(std::span<std::byte> data, int from) {
  in_pieces(std::ssize(data), longest_, [&](std::int64_t begin, int count) {
    mpi_try(MPI_Irecv(data.data() + begin, count, MPI_BYTE, from, tag_, group_->engine,
                      &add_request(count)),
            "MPI_Irecv");
  });
}

void MpiCalls::all_reduce(float* data, std::int64_t count) {
  in_pieces(count, longest_, [&](std::int64_t begin, int elements) {
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

void MpiCalls::copy(const float* from, float* to, std::int64_t count) {
  std::copy_n(from, count, to);
}

void MpiCalls::narrow(const float* from, BFloat16* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
}

void MpiCalls::widen(const BFloat16* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

bool MpiCalls::ended() {
  int all = 0;
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_)
      mpi_try(status.MPI_ERROR == MPI_ERR_PENDING ? MPI_SUCCESS : status.MPI_ERROR, "MPI_Testall");
  }
  mpi_try(code, "MPI_Testall");
  if (all == 0) return false;
  for (std::size_t i = 0; i < due_.size(); ++i) {
    if (due_[i] == not_receiving) continue;
    int bytes = 0;
    mpi_try(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_count");
    ensure(bytes == due_[i],
           "a message of {} bytes came from rank {} with tag {} where {} were due", bytes,
           statuses_[i].MPI_SOURCE, statuses_[i].MPI_TAG, due_[i]);
  }
  requests_.clear();
  statuses_.clear();
  due_.clear();
  return true;
}

}  // namespace trireme::comm
