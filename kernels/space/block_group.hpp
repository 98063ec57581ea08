// SPDX-License-Identifier: Apache-2.0
#pragma once

// Blocks of threads with more shared memory than a Kokkos team on CUDA may have (48 KiB, in all
// versions from 3.4 to 5.2: they compare with the limit of a kernel that has not asked for more).
//
//   CUDA                   a kernel of Trireme, which asks for the memory when it is launched
//   host (device form)     a Kokkos team with scratch memory
//
// A functor is called as functor(index, group, memory). BlockGroup has the interface of TeamGroup
// (row_group.hpp), and its sums are the same code on both.

#include "execution_space.hpp"
#include "row_group.hpp"

namespace trireme::kernels {

/// Returns the largest shared memory of a block, in bytes: of the stream's device, or for a stream
/// without one, as on meta, of compute capability 9.0.
std::int64_t max_block_bytes(const Stream& stream);

#if defined(KOKKOS_ENABLE_CUDA)
/// The threads of a CUDA block.
struct CudaThreads {
#if defined(__CUDA_ARCH__)
  KOKKOS_FUNCTION int rank() const { return static_cast<int>(threadIdx.x); }
  KOKKOS_FUNCTION int size() const { return static_cast<int>(blockDim.x); }
  KOKKOS_FUNCTION void barrier() const { __syncthreads(); }
#else
  KOKKOS_FUNCTION int rank() const { return 0; }
  KOKKOS_FUNCTION int size() const { return 1; }
  KOKKOS_FUNCTION void barrier() const {}
#endif
};
#endif

/// The threads of a Kokkos team.
template <class Member>
struct TeamThreads {
  const Member& member;
  KOKKOS_FUNCTION int rank() const { return member.team_rank(); }
  KOKKOS_FUNCTION int size() const { return member.team_size(); }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
};

/// Threads that merge the values of a block, each a part of them.
constexpr int block_lanes = 16;
/// A value of the widest reduction.
using BlockSlot = Sums<2>;
/// Returns the shared memory that BlockGroup needs for its reductions.
constexpr std::int64_t block_group_bytes(int threads) {
  return (threads + block_lanes) * static_cast<std::int64_t>(sizeof(BlockSlot));
}

/// A group that is one block. All its threads must call largest_of(), sum_of() and add_up().
template <class Threads>
class BlockGroup {
 public:
  /// `slots`: block_group_bytes(number of threads) of shared memory, aligned to 16 bytes.
  KOKKOS_FUNCTION BlockGroup(const Threads& threads, void* slots)
      : block_(threads), slots_(static_cast<BlockSlot*>(slots)) {}
  KOKKOS_FUNCTION std::int64_t first() const { return block_.rank(); }
  KOKKOS_FUNCTION std::int64_t step() const { return block_.size(); }
  KOKKOS_FUNCTION bool is_leader() const { return block_.rank() == 0; }

  /// Returns the maximum over the threads.
  KOKKOS_FUNCTION float largest_of(float value) const {
    return reduce(value, [](float& to, float other) { to = other > to ? other : to; });
  }
  /// Returns the sum over the threads.
  KOKKOS_FUNCTION std::int32_t sum_of(std::int32_t count) const {
    return reduce(count, [](std::int32_t& to, std::int32_t other) { to += other; });
  }
  /// Replaces each thread's sums by the sums over all threads.
  KOKKOS_FUNCTION void add_up(Sums<2>& total) const {
    total = reduce(total, [](Sums<2>& to, const Sums<2>& other) {
      for (int s = 0; s < 2; ++s) to.value[s] += other.value[s];
    });
  }

 private:
  /// Merges the values of all threads, in an order that depends on their number only: thread k
  /// merges those of k, k + block_lanes, ..., then every thread merges the results. The barriers
  /// also separate everything before the call from everything after it.
  template <class Value, class Merge>
  KOKKOS_FUNCTION Value reduce(const Value& mine, const Merge& merge) const {
    Value* const all = reinterpret_cast<Value*>(slots_);
    Value* const merged = reinterpret_cast<Value*>(slots_ + block_.size());
    const int rank = block_.rank(), size = block_.size();
    all[rank] = mine;
    block_.barrier();
    if (rank < block_lanes) {
      Value total = mine;
      for (int i = rank + block_lanes; i < size; i += block_lanes) merge(total, all[i]);
      merged[rank] = total;
    }
    block_.barrier();
    Value total = merged[0];
    for (int i = 1; i < block_lanes && i < size; ++i) merge(total, merged[i]);
    // No thread may write the next value before all have read these.
    block_.barrier();
    return total;
  }

  Threads block_;
  BlockSlot* slots_;
};

#if defined(KOKKOS_ENABLE_CUDA)
/// The kernel: blocks of at most `max_threads`.
template <class Functor, int max_threads>
__global__ void __launch_bounds__(max_threads, 2)
    run_blocks(const Functor functor, int memory_bytes) {
  extern __shared__ uint4 shared_words[];
  char* const shared = reinterpret_cast<char*>(shared_words);
  functor(static_cast<std::int64_t>(blockIdx.x),
          BlockGroup<CudaThreads>(CudaThreads(), shared + memory_bytes), shared);
}
#endif

template <class Space, class Functor>
struct OnTeamBlock {
  Functor functor;
  int memory_bytes;
  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  using Threads = TeamThreads<Member>;
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    constexpr int alignment = 16;
    char* const memory = static_cast<char*>(member.team_scratch(1).get_shmem_aligned(
        memory_bytes + block_group_bytes(member.team_size()), alignment));
    functor(static_cast<std::int64_t>(member.league_rank()),
            BlockGroup<Threads>(Threads{member}, memory + memory_bytes), memory);
  }
};

/// Enqueues functor(index, group, memory) for every index in [0, count), by blocks of `threads`,
/// at most `max_threads`, each with `memory_bytes` of shared memory, a multiple of 16. Together
/// with block_group_bytes() they are at most max_block_bytes().
template <int max_threads, class Space, class Functor>
void for_each_block(const Space& space, const std::string& label, std::int64_t count, int threads,
                    std::int64_t memory_bytes, const Functor& functor) {
  using Block = OnTeamBlock<Space, Functor>;
  if (count <= 0) return;
  constexpr int alignment = 16;
  const int members = team_threads(space, threads), bytes = static_cast<int>(memory_bytes);
  Kokkos::TeamPolicy<Space> policy(space, static_cast<int>(count), members);
  enqueue(label,
          policy.set_scratch_size(
              1, Kokkos::PerTeam(static_cast<int>(bytes + block_group_bytes(members) + alignment))),
          Block{functor, bytes});
}

#if defined(KOKKOS_ENABLE_CUDA)
/// The same on CUDA. Two blocks fit on a multiprocessor if their memory does.
template <int max_threads, class Functor>
void for_each_block(const Kokkos::Cuda& space, const std::string& label, std::int64_t count,
                    int threads, std::int64_t memory_bytes, const Functor& functor) {
  if (count <= 0) return;
  constexpr int bytes_without_asking = 48 << 10;
  const auto kernel = run_blocks<Functor, max_threads>;
  const int bytes = static_cast<int>(memory_bytes),
            all_bytes = bytes + static_cast<int>(block_group_bytes(threads));
  std::uint64_t mark = 0;
  const bool profiled = Kokkos::Tools::profileLibraryLoaded();
  if (profiled) Kokkos::Tools::beginParallelFor(label, 0, &mark);
  if (all_bytes <= bytes_without_asking ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes) ==
          cudaSuccess)
    kernel<<<static_cast<unsigned>(count), static_cast<unsigned>(threads),
             static_cast<std::size_t>(all_bytes), space.cuda_stream()>>>(functor, bytes);
  if (profiled) Kokkos::Tools::endParallelFor(mark);
  check_launch(label);
}
#endif

}  // namespace trireme::kernels
