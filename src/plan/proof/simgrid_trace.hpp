// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace trireme::plan {

/// The lines of one process.
class SimgridTrace {
 public:
  explicit SimgridTrace(int process) : process_(process) { add("init"); }

  void compute(double seconds) { seconds_ += seconds; }
  /// Messages at the same time; no message if the process is negative.
  void exchange(int to, std::int64_t sent, int from, std::int64_t received) {
    if (to >= 0 && from >= 0) {
      const Size out(sent), in(received);
      add("sendRecv {} {} {} {} {} {}", out.count, to, in.count, from, out.type, in.type);
    } else if (to >= 0) {
      const Size out(sent);
      add("send {} 0 {} {}", to, out.count, out.type);
    } else if (from >= 0) {
      const Size in(received);
      add("recv {} 0 {} {}", from, in.count, in.type);
    }
  }
  void start_send(int to, int tag, std::int64_t bytes) {
    const Size size(bytes);
    add("isend {} {} {} {}", to, tag, size.count, size.type);
  }
  void start_receive(int from, int tag, std::int64_t bytes) {
    const Size size(bytes);
    add("irecv {} {} {} {}", from, tag, size.count, size.type);
  }
  void wait(int from, int to, int tag) { add("wait {} {} {}", from, to, tag); }
  /// Signals of another process of this rank.
  void send_signal(int to, int tag) { add("send {} {} 1", to, tag); }
  void wait_for_signal(int from, int tag) { add("recv {} {} 1", from, tag); }

  std::string finish() {
    add("finalize");
    return std::move(text_);
  }

 private:
  // Shorter ones have no latency (smpi/lat-factor). SimGrid adds some bytes to each message, so the
  // signals of one byte are far below it.
  static constexpr std::int64_t min_message_bytes = 100;
  // Counts of a message are `int`: longer ones count in doubles.
  static constexpr std::int64_t max_bytes_as_count = std::int64_t{1} << 30;
  static constexpr int type_double = 0, type_byte = 6;  // numbers of SimGrid
  static constexpr double host_flops = 1e9;             // of the platform

  struct Size {
    explicit Size(std::int64_t bytes)
        : count(bytes <= max_bytes_as_count ? std::max(bytes, min_message_bytes)
                                            : bytes / static_cast<std::int64_t>(sizeof(double))),
          type(bytes <= max_bytes_as_count ? type_byte : type_double) {}
    std::int64_t count;
    int type;
  };

  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (seconds_ > 0)
      fmt::format_to(std::back_inserter(text_), "{} compute {:.6g}\n", process_,
                     std::exchange(seconds_, 0) * host_flops);
    fmt::format_to(std::back_inserter(text_), "{} ", process_);
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }

  int process_;
  double seconds_ = 0;  // of ops that are not written yet
  std::string text_;
};

}  // namespace trireme::plan
