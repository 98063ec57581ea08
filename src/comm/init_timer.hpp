// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace trireme::comm {

/// Ends the process with 77 and a message if it still exists after a time. Lives while MPI_Init
/// runs.
class InitTimer {
 public:
  /// `host`: named in the message. Throws InputError for a wrong TRIREME_INIT_SECONDS, and
  /// std::system_error if the thread cannot be started.
  InitTimer(int rank, std::string host);
  ~InitTimer();
  InitTimer(const InitTimer&) = delete;
  InitTimer& operator=(const InitTimer&) = delete;

 private:
  void wait();

  double seconds_;
  int rank_;
  std::string host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace trireme::comm
