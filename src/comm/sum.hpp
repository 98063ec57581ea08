#pragma once

#include <array>
#include <cstdint>

#include <mpi.h>

#include "mpi_form.hpp"
#include "trireme/comm/engine.hpp"

namespace trireme::comm {

/// One sum over a group under way: a chain of steps, each a pair of non-blocking calls and what follows on their end. Nothing here waits.
class Sum {
 public:
  struct Task {
    MpiForm* group = nullptr;
    float* data = nullptr;
    float* scratch = nullptr;
    std::int64_t count = 0;  ///< at most `longest`
    SumOrder order = SumOrder::library;
  };
  /// MPI counts are int.
  static constexpr std::int64_t longest = std::int64_t{1} << 30;

  /// Posts the first step.
  void start(const Task& task);
  /// Goes on where a step has ended; true when all is done.
  bool advance();
  /// Bytes that a rank sends for it (library: as a ring would).
  static double bytes_sent(const Task& task);

 private:
  /// library: MPI's own. exchange: whole vectors with rank^1, rank^2, ... halving: at each of these levels a rank keeps one half of what it
  /// held (reduce-scatter), then the halves come back the same way; every element is added up exactly as by `exchange`, with 2 vectors sent
  /// instead of log2(ranks). chain: groups that are no power of two: rank 0's part travels up, each rank adds its own, the sum travels down.
  enum class Way : std::uint8_t { library, exchange, halving, chain };
  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };

  static Way way_of(const Task& task);
  void post();
  void complete();
  void post_halving();
  void post_chain();
  int partner(int level) const { return task_.group->rank ^ (1 << level); }
  bool upper(int level) const { return (task_.group->rank >> level & 1) != 0; }
  Range half(const Range& whole, bool upper_half) const;
  void send(const float* from, std::int64_t count, int to);
  void receive(float* to, std::int64_t count, int from);
  void add(const Range& range);

  Task task_;
  Way way_ = Way::library;
  int tag_ = 0, step_ = 0, steps_ = 0, levels_ = 0;
  std::array<Range, 32> held_{};  ///< halving: what this rank holds before each level
  MPI_Request sending_ = MPI_REQUEST_NULL, receiving_ = MPI_REQUEST_NULL;
};

}  // namespace trireme::comm
