// `trireme bench`: options and subjects. The subjects are in bench_data.cpp and bench_io.cpp.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "bench_data.hpp"
#include "bench_io.hpp"
#include "commands.hpp"
#include "deck_source.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"

namespace trireme::app {
namespace {

struct Options {
  std::string subject, folder;
  BenchIoOptions io;
  BenchDataOptions data;
};

/// The options that only one subject has.
const std::map<std::string, std::vector<std::string>>& options_of_subjects() {
  static const std::map<std::string, std::vector<std::string>> all{
      {"data",
       {"--workers", "--batch", "--context", "--crop", "--decode", "--colors", "--seconds",
        "--cold"}},
      {"io", {"--bytes", "--rounds"}}};
  return all;
}

/// Throws InputError if the subject is unknown or not available in this version, or an option
/// belongs to another subject.
void validate_subject(const std::string& subject, const std::vector<std::string>& given) {
  const std::vector<std::string> later{"gemm", "conv", "comm", "step"};
  validate(std::find(later.begin(), later.end(), subject) == later.end(),
           "bench: {} is not available in this version; data and io are", subject);
  validate(options_of_subjects().contains(subject),
           "bench: unknown subject \"{}\"; this version measures data and io ({} are planned)",
           subject, fmt::join(later, ", "));
  for (const auto& [other, options] : options_of_subjects()) {
    if (other == subject) continue;
    for (const std::string& option : given)
      validate(std::find(options.begin(), options.end(), option) == options.end(),
               "bench {}: {} belongs to bench {}", subject, option, other);
  }
}

ExitCode bench_command(Options options, const std::vector<std::string>& given) {
  validate_subject(options.subject, given);
  comm::Environment environment;
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] {
    if (options.subject == "io") {
      if (!options.folder.empty()) options.io.folder = options.folder;
      bench_io(options.io, environment.world());
      return ExitCode::done;
    }
    options.data.folder = options.folder;
    options.data.json = options.io.json;
    validate(environment.world().size() == 1,
             "bench data: measures one process; start it without mpirun");
    bench_data(options.data);
    return ExitCode::done;
  });
}

}  // namespace

void add_bench(CommandLine& line) {
  Command command = line.add("bench",
                             "Measure this machine: data reads a dataset as training does; io "
                             "writes and reads checkpoints, against raw writes and reads of the "
                             "same bytes");
  const auto options = std::make_shared<Options>();
  command.option("SUBJECT", options->subject, "data or io").required();
  command
      .option("--folder", options->folder,
              "data: the dataset; io: a folder on the disk that is measured (default: .)")
      .type_name("FOLDER");
  command.option("--workers", options->data.workers, "data: reader threads (default: 1, 2 and 4)")
      .range(1, 1024);
  command.option("--batch", options->data.batch, "data: samples of a micro-batch")
      .range(1, 1 << 20)
      .default_shown();
  command
      .option("--context", options->data.context,
              "data: tokens of a sample (default: 1024); for datasets of tokens")
      .range(1, 1 << 24)
      .type_name("N");
  command
      .option("--crop", options->data.crop,
              "data: side of random resized crops (default: 224 for encoded images, else none); "
              "for datasets of images")
      .range(1, 8192)
      .type_name("N");
  command
      .option("--decode", options->data.decode,
              "data: how JPEG files are decoded, exact or fast, as data.decode")
      .one_of({"exact", "fast"})
      .default_shown();
  command.option("--seconds", options->data.seconds, "data: time of each measurement")
      .positive()
      .default_shown();
  command.flag("--colors", options->data.colors,
               "data: changes the colors of RGB images, by color_jitter and rand_augment");
  command.flag("--cold", options->data.cold,
               "data: read from the disk, in the order of data.shuffle = \"blocks\"");
  command
      .option("--bytes", options->io.bytes,
              "io: size of the state that is written, over all ranks (default: 1GiB); each rank "
              "takes twice its share of memory")
      .size_in_bytes();
  command
      .option("--rounds", options->io.rounds,
              "io: every way to write is taken once a round, in turns")
      .range(1, 1000)
      .default_shown();
  command.flag("--json", options->io.json, "Figures as JSON");
  command.footer(
      "Examples:\n"
      "  trireme bench data --folder data/fashion/train\n"
      "  mpirun -n 4 trireme bench io --folder /scratch/me --bytes 4GiB");
  command.set_action(
      [command, options] { return bench_command(*options, command.given_options()); });
}

}  // namespace trireme::app
