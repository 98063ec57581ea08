// `trireme bench`: options and subjects. The only subject of this version, io, is in bench_io.cpp.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "bench_io.hpp"
#include "commands.hpp"
#include "deck_source.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"

namespace trireme::app {
namespace {

struct Options {
  std::string subject;
  BenchIoOptions io;
};

/// Throws InputError if the subject is unknown or not available in this version.
void validate_subject(const std::string& subject) {
  if (subject == "io") return;
  const std::vector<std::string> later{"gemm", "conv", "comm", "step"};
  validate(std::find(later.begin(), later.end(), subject) == later.end(),
           "bench: {} is not available in this version; io is", subject);
  throw InputError(
      fmt::format("bench: unknown subject \"{}\"; this version measures io ({} are planned)",
                  subject, fmt::join(later, ", ")));
}

ExitCode bench_command(const Options& options) {
  validate_subject(options.subject);
  comm::Environment environment;
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] {
    bench_io(options.io, environment.world());
    return ExitCode::done;
  });
}

}  // namespace

void add_bench(CommandLine& line) {
  Command command = line.add("bench",
                             "Measure this machine: io writes and reads checkpoints, against raw "
                             "writes and reads of the same bytes");
  const auto options = std::make_shared<Options>();
  command.option("SUBJECT", options->subject, "io").required();
  command.option("--folder", options->io.folder, "A folder on the disk that is measured")
      .default_shown();
  command
      .option("--bytes", options->io.bytes,
              "Size of the state that is written, over all ranks (default: 1GiB); each rank takes "
              "twice its share of memory")
      .size_in_bytes();
  command
      .option("--rounds", options->io.rounds, "Every way to write is taken once a round, in turns")
      .range(1, 1000)
      .default_shown();
  command.flag("--json", options->io.json, "Figures as JSON");
  command.footer("Example:\n  mpirun -n 4 trireme bench io --folder /scratch/me --bytes 4GiB");
  command.set_action([options] { return bench_command(*options); });
}

}  // namespace trireme::app
