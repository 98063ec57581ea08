// Keeps the selected library algorithms in `<run>/algorithms.txt`. The training loop updates the
// file with each checkpoint; a restart reads it before the first step.
#include "trireme/train/algorithm_file.hpp"

#include <filesystem>

#include "trireme/io/file.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t max_bytes = std::int64_t{16}
                                   << 20;  // A run has hundreds of problems, one line each.

}  // namespace

AlgorithmFile::AlgorithmFile(const comm::Communicator& world, const std::string& run_folder,
                             ops::AlgorithmTable& known, Log& log)
    : world_(world), path_(run_folder + "/" + name), known_(known), log_(log) {
  std::string text = ops::AlgorithmTable().to_text();
  if (world_.rank() == 0) {
    try {
      if (std::filesystem::exists(path_))
        text = ops::AlgorithmTable::parse(io::read_text_file(path_, max_bytes)).to_text();
    } catch (const std::exception& error) {
      log_.warn("{} is ignored, the fastest algorithms are searched again: {}", path_,
                error.what());
    }
  }
  known_.add_missing(ops::AlgorithmTable::parse(world_.broadcast(text, 0)));
  last_known_ = known_;
  if (world_.rank() == 0) log_missing(known_);
}

void AlgorithmFile::log_missing(const ops::AlgorithmTable& known) {
  for (const std::string& problem : known.own_kernel_problems()) {
    if (logged_.insert(problem).second)
      log_.info("the library has no algorithm for this problem, Trireme's own kernel is used: {}",
                problem);
  }
}

void AlgorithmFile::update() {
  const bool has_new = known_ != last_known_;
  last_known_ = known_;
  if (world_.all_reduce(has_new ? 1 : 0, comm::Reduction::max) == 0) return;
  ops::AlgorithmTable all;
  for (int rank = 0; rank < world_.size(); ++rank)
    all.add_missing(ops::AlgorithmTable::parse(world_.broadcast(known_.to_text(), rank)));
  if (world_.rank() != 0) return;
  log_missing(all);
  try {
    io::replace_file(path_, all.to_text());
  } catch (const std::exception& error) {
    log_.warn(
        "algorithms.txt was not written, the next start searches the fastest algorithms again: {}",
        error.what());
  }
}

}  // namespace trireme::train
