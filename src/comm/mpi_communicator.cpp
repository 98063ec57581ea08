// SPDX-License-Identifier: Apache-2.0
//
// Implements Communicator with blocking MPI calls on host memory. Every error code becomes a
// Failure. Data longer than an int can count are cut into pieces of 2^30 elements.
//
// Each call that waits for other ranks is noted while it lasts (BlockingCall), so that the watchdog
// can report it.

#include "mpi_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::comm {
namespace {

// Maximum elements of one MPI call.
constexpr std::size_t max_count = std::size_t{1} << 30;

MPI_Datatype datatype(Element element) {
  switch (element) {
    case Element::float64: return MPI_DOUBLE;
    case Element::int64: return MPI_INT64_T;
    case Element::uint64: return MPI_UINT64_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum: return MPI_SUM;
    case Reduction::max: return MPI_MAX;
    case Reduction::min: return MPI_MIN;
  }
  return MPI_OP_NULL;
}

/// Flips the highest bits, which maps the order of unsigned numbers to that of signed ones, and
/// back.
void flip_highest_bits(std::span<std::uint64_t> words) {
  for (std::uint64_t& word : words) word ^= std::uint64_t{1} << 63;
}

/// The blocking call of this process, guarded by `mutex`. One per process, like MPI itself.
struct CurrentCall {
  std::mutex mutex;
  const char* name = nullptr;  ///< null: no call
  const Communicator::Implementation* group = nullptr;
  int peer = -1;     ///< the other rank of a message; -1: the whole group
  double begin = 0;  ///< monotonic_seconds() at its begin
};

CurrentCall& current_call() {
  static CurrentCall call;
  return call;
}

/// Notes a blocking call from construction to destruction.
class BlockingCall {
 public:
  BlockingCall(const char* name, const Communicator::Implementation& group, int peer = -1) {
    CurrentCall& call = current_call();
    const std::lock_guard lock(call.mutex);
    call.name = name;
    call.group = &group;
    call.peer = peer;
    call.begin = monotonic_seconds();
  }
  ~BlockingCall() {
    CurrentCall& call = current_call();
    const std::lock_guard lock(call.mutex);
    call.name = nullptr;
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;
};

/// Returns the ranks in `parent` of the ranks of a part of it.
std::vector<int> ranks_in(MPI_Comm parent, MPI_Comm part) {
  int size = 0;
  mpi_try(MPI_Comm_size(part, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size)), in_parent(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group of_part = MPI_GROUP_NULL, of_parent = MPI_GROUP_NULL;
  mpi_try(MPI_Comm_group(part, &of_part), "MPI_Comm_group");
  mpi_try(MPI_Comm_group(parent, &of_parent), "MPI_Comm_group");
  mpi_try(MPI_Group_translate_ranks(of_part, size, ranks.data(), of_parent, in_parent.data()),
          "MPI_Group_translate_ranks");
  mpi_try(MPI_Group_free(&of_part), "MPI_Group_free");
  mpi_try(MPI_Group_free(&of_parent), "MPI_Group_free");
  return in_parent;
}

/// Calls piece(begin, count) for [0, elements) in pieces that MPI can count with an int.
template <class Piece>
void for_each_piece(std::size_t elements, Piece&& piece) {
  for (std::size_t begin = 0; begin < elements; begin += max_count)
    piece(begin, static_cast<int>(std::min(max_count, elements - begin)));
}

}  // namespace

void mpi_try(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::string words(text, static_cast<std::size_t>(length));
  // MPICH's messages contain one line for each nested call.
  std::replace(words.begin(), words.end(), '\n', ' ');
  throw Failure(fmt::format("{} failed: {}", call, words));
}

std::optional<PeerWait> current_blocking_call() {
  CurrentCall& call = current_call();
  const std::lock_guard lock(call.mutex);
  if (call.name == nullptr) return std::nullopt;
  const std::string peers = call.peer < 0 ? "of " + call.group->describe()
                                          : "with " + call.group->describe_rank(call.peer);
  return PeerWait{.operation = fmt::format("blocking {} {}", call.name, peers),
                  .seconds = monotonic_seconds() - call.begin};
}

std::shared_ptr<MpiCommunicator> MpiCommunicator::adopt(MPI_Comm main, std::string_view name,
                                                        std::vector<int> world_ranks) {
  MPI_Comm engine = MPI_COMM_NULL;
  int rank = 0, size = 0;
  mpi_try(MPI_Comm_set_errhandler(main, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_try(MPI_Comm_dup(main, &engine), "MPI_Comm_dup");
  mpi_try(MPI_Comm_set_errhandler(engine, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_try(MPI_Comm_rank(main, &rank), "MPI_Comm_rank");
  mpi_try(MPI_Comm_size(main, &size), "MPI_Comm_size");
  std::shared_ptr<MpiCommunicator> result(new MpiCommunicator(rank, size, main, engine));
  result->name = name;
  result->world_ranks = std::move(world_ranks);
  return result;
}

std::shared_ptr<MpiCommunicator> MpiCommunicator::world() {
  MPI_Comm main = MPI_COMM_NULL;
  mpi_try(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_try(MPI_Comm_dup(MPI_COMM_WORLD, &main), "MPI_Comm_dup");
  return adopt(main, "world", ranks_in(main, main));
}

void MpiCommunicator::barrier() {
  const BlockingCall noted("barrier", *this);
  mpi_try(MPI_Barrier(main), "MPI_Barrier");
}

void MpiCommunicator::broadcast(std::span<std::byte> data, int root) {
  const BlockingCall noted("broadcast", *this);
  for_each_piece(data.size(), [&](std::size_t begin, int count) {
    mpi_try(MPI_Bcast(data.data() + begin, count, MPI_BYTE, root, main), "MPI_Bcast");
  });
}

void MpiCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  if (mine.empty()) return;
  if (mine.size() <= max_count) {
    const BlockingCall noted("all_gather", *this);
    const int count = static_cast<int>(mine.size());
    mpi_try(MPI_Allgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, main),
            "MPI_Allgather");
    return;
  }
  for (int root = 0; root < size; ++root) {
    const std::span<std::byte> part =
        all.subspan(mine.size() * static_cast<std::size_t>(root), mine.size());
    if (root == rank)
      for_each_piece(mine.size(), [&](std::size_t begin, int count) {
        std::memcpy(&part[begin], &mine[begin], static_cast<std::size_t>(count));
      });
    broadcast(part, root);
  }
}

void MpiCommunicator::all_reduce(void* data, std::size_t count, Element element,
                                 Reduction reduction) {
  // All element types have 8 bytes.
  static_assert(sizeof(double) == 8 && sizeof(std::int64_t) == 8);
  // Some libraries compare unsigned numbers as signed ones: MPICH 4.0.2, and Open MPI 4.1.4 for
  // MPI_UNSIGNED_LONG. So unsigned minima and maxima are computed on signed numbers.
  const BlockingCall noted("all_reduce", *this);
  const bool turned = element == Element::uint64 && reduction != Reduction::sum;
  const std::span<std::uint64_t> words(static_cast<std::uint64_t*>(data), turned ? count : 0);
  flip_highest_bits(words);
  const MPI_Datatype type = datatype(turned ? Element::int64 : element);
  for_each_piece(count, [&](std::size_t begin, int piece) {
    std::byte* part = static_cast<std::byte*>(data) + begin * sizeof(double);
    mpi_try(MPI_Allreduce(MPI_IN_PLACE, part, piece, type, operation(reduction), main),
            "MPI_Allreduce");
  });
  flip_highest_bits(words);
}

void MpiCommunicator::send(std::span<const std::byte> data, int to, int tag) {
  const BlockingCall noted("send", *this, to);
  for_each_piece(data.size(), [&](std::size_t begin, int count) {
    mpi_try(MPI_Send(data.data() + begin, count, MPI_BYTE, to, tag, main), "MPI_Send");
  });
}

void MpiCommunicator::receive(std::span<std::byte> data, int from, int tag) {
  const BlockingCall noted("receive", *this, from);
  for_each_piece(data.size(), [&](std::size_t begin, int count) {
    MPI_Status status;
    mpi_try(MPI_Recv(data.data() + begin, count, MPI_BYTE, from, tag, main, &status), "MPI_Recv");
    int received = 0;
    mpi_try(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
    ensure(received == count, "received {} bytes from rank {} with tag {}, expected {} bytes",
           received, from, tag, count);
  });
}

std::shared_ptr<Communicator::Implementation> MpiCommunicator::split(int color, int key,
                                                                     std::string_view part_name) {
  const BlockingCall noted("split", *this);
  MPI_Comm part = MPI_COMM_NULL;
  mpi_try(MPI_Comm_split(main, color < 0 ? MPI_UNDEFINED : color, key, &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return nullptr;
  std::vector<int> ranks = ranks_in(main, part);
  for (int& each : ranks) each = world_ranks[static_cast<std::size_t>(each)];
  return adopt(part, part_name, std::move(ranks));
}

}  // namespace trireme::comm
