// SPDX-License-Identifier: Apache-2.0
//
// `trireme bench`: options and subjects. The subjects are in the files bench_*.cpp.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "bench_data.hpp"
#include "bench_io.hpp"
#include "bench_machine.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/device/device.hpp"

namespace trireme::app {
namespace {

struct BenchOptions {
  std::string subject, folder;
  BenchIoOptions io;
  BenchDataOptions data;
  BenchMachineOptions machine;
  std::string type = "float32";
};

/// The options of each subject.
const std::map<std::string, std::vector<std::string>>& options_of_subjects() {
  static const std::map<std::string, std::vector<std::string>> all{
      {"data",
       {"--workers", "--batch", "--context", "--crop", "--decode", "--colors", "--seconds",
        "--cold", "--folder", "--json"}},
      {"io", {"--bytes", "--rounds", "--folder", "--json"}},
      {"gemm", {"--machine-out", "--type", "--rounds"}},
      {"conv", {"--machine-out", "--type", "--rounds"}},
      {"ops", {"--machine-out", "--type", "--rounds", "--device", "--sizes", "--op", "--json"}},
      {"comm", {"--machine-out", "--rounds"}},
      {"step", {"--machine", "--type", "--rounds"}}};
  return all;
}

/// Throws InputError if the subject is unknown, or an option belongs to other subjects.
void validate_subject(const std::string& subject, const std::vector<std::string>& given) {
  std::vector<std::string> subjects;
  for (const auto& [name, options] : options_of_subjects()) subjects.push_back(name);
  validate(options_of_subjects().contains(subject),
           "bench: unknown subject \"{}\"; subjects are {}", subject, fmt::join(subjects, ", "));
  const auto has = [](const std::string& name, const std::string& option) {
    const std::vector<std::string>& options = options_of_subjects().at(name);
    return std::find(options.begin(), options.end(), option) != options.end();
  };
  for (const std::string& option : given) {
    std::vector<std::string> owners;
    for (const std::string& name : subjects)
      if (has(name, option)) owners.push_back(name);
    validate(owners.empty() || has(subject, option), "bench {}: {} belongs to bench {}", subject,
             option, fmt::join(owners, ", "));
  }
  if (subject != "ops") return;
  const auto is_given = [&](const char* option) {
    return std::find(given.begin(), given.end(), option) != given.end();
  };
  validate(
      !is_given("--sizes") || !is_given("--machine-out"),
      "bench ops: --sizes contradicts --machine-out, since a machine file has the figures of a "
      "fixed grid of sizes; leave out one of them");
  for (const char* const option : {"--device", "--op", "--json"})
    validate(is_given("--sizes") || !is_given(option),
             "bench ops: {} needs --sizes, as in --sizes 32768x768", option);
}

ExitCode bench_command(BenchOptions options, const std::vector<std::string>& given) {
  validate_subject(options.subject, given);
  comm::Environment environment;
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] {
    if (options.subject == "io") {
      if (!options.folder.empty()) options.io.folder = options.folder;
      bench_io(options.io, environment.world());
      return ExitCode::done;
    }
    const bool one_process = environment.world().size() == 1;
    options.machine.rounds = options.io.rounds;
    const bool has_sizes = !options.machine.sizes.empty();
    const bool measures_ops = options.subject != "data" && options.subject != "io";
    validate(!measures_ops || has_sizes || !built_with_cuda(),
             "bench {}: measures the CPU, and this program computes on GPUs; build one without "
             "TRIREME_ENABLE_CUDA{}",
             options.subject,
             options.subject == "ops" ? ", or name sizes for a GPU, as in --sizes 32768x768" : "");
    if (options.subject == "comm") {
      bench_communication(environment, options.machine);
      return ExitCode::done;
    }
    if (options.subject != "data") {
      validate(one_process, "bench {}: measures one process; start it without mpirun",
               options.subject);
      options.machine.type = options.type == "bfloat16"  ? DType::bfloat16
                             : options.type == "float16" ? DType::float16
                                                         : DType::float32;
      options.machine.json = options.io.json;
      has_sizes                   ? bench_op_sizes(options.machine)
      : options.subject == "step" ? bench_step(options.machine)
                                  : bench_ops(options.subject, options.machine);
      return ExitCode::done;
    }
    options.data.folder = options.folder;
    options.data.json = options.io.json;
    validate(one_process, "bench data: measures one process; start it without mpirun");
    bench_data(options.data);
    return ExitCode::done;
  });
}

/// Adds the options of `bench data`.
void add_data_options(Command& command, BenchOptions& options) {
  command.option("--workers", options.data.workers, "data: reader threads (default: 1, 2 and 4)")
      .range(1, 1024);
  command.option("--batch", options.data.batch, "data: samples of a micro-batch")
      .range(1, 1 << 20)
      .default_shown();
  command
      .option("--context", options.data.context,
              "data: tokens of a sample (default: 1024); for datasets of tokens")
      .range(1, 1 << 24)
      .type_name("N");
  command
      .option("--crop", options.data.crop,
              "data: side of random resized crops (default: 224 for encoded images, else none); "
              "for datasets of images")
      .range(1, 8192)
      .type_name("N");
  command
      .option("--decode", options.data.decode,
              "data: how JPEG files are decoded, exact or fast, as data.decode")
      .one_of({"exact", "fast"})
      .default_shown();
  command.option("--seconds", options.data.seconds, "data: time of each measurement")
      .positive()
      .default_shown();
  command.flag("--colors", options.data.colors,
               "data: changes the colors of RGB images, by color_jitter and rand_augment");
  command.flag("--cold", options.data.cold,
               "data: read from the disk, in the order of data.shuffle = \"blocks\"");
}

/// Adds the options of the measurements of single operations.
void add_machine_options(Command& command, BenchOptions& options) {
  command
      .option("--machine-out", options.machine.machine_out,
              "gemm, conv, ops, comm: the machine file that is made or updated")
      .type_name("FILE");
  command
      .option("--sizes", options.machine.sizes,
              "ops: measures the ops that are limited by memory bandwidth, on matrices of these "
              "sizes, beside a copy")
      .type_name("ROWSxCOLUMNS");
  command
      .option("--op", options.machine.ops,
              "ops: the names of those that are measured (default: all); with --sizes")
      .type_name("NAME");
  command
      .option("--device", options.machine.device,
              "ops: the device that computes (default: a GPU if the program was built for one); "
              "with --sizes")
      .one_of({"cpu", "cuda"});
  command
      .option("--machine", options.machine.machine,
              "step: the machine whose predictions are compared, by name or file")
      .type_name("NAME|FILE");
}

}  // namespace

void add_bench(CommandLine& line) {
  Command command = line.add("bench",
                             "Measure this machine: data reads a dataset as training does; io "
                             "writes and reads checkpoints, against raw writes and reads of the "
                             "same bytes; gemm, conv, ops and comm measure single operations for a "
                             "machine file; step compares sequences of them with predictions");
  const auto options = std::make_shared<BenchOptions>();
  command.option("SUBJECT", options->subject, "What is measured")
      .type_name("data|io|gemm|conv|ops|comm|step")
      .required();
  command
      .option("--folder", options->folder,
              "data: the dataset; io: a folder on the disk that is measured (default: .)")
      .type_name("FOLDER");
  add_data_options(command, *options);
  command
      .option("--bytes", options->io.bytes,
              "io: size of the state that is written, over all ranks (default: 1GiB); each rank "
              "takes twice its share of memory")
      .size_in_bytes();
  command
      .option(
          "--rounds", options->io.rounds,
          "rounds of each measurement, also of single operations; io takes every way to write once "
          "a round, in turns")
      .range(1, 1000)
      .default_shown();
  add_machine_options(command, *options);
  command.option("--type", options->type, "gemm, conv, ops, step: type of the numbers")
      .one_of({"float32", "bfloat16", "float16"})
      .default_shown();
  command.flag("--json", options->io.json,
               "data, io: figures as JSON; ops: one JSON object a line, with --sizes");
  command.footer(
      "Examples:\n"
      "  trireme bench data --folder data/fashion/train\n"
      "  mpirun -n 4 trireme bench io --folder /scratch/me --bytes 4GiB\n"
      "  trireme bench gemm --machine-out cluster.toml\n"
      "  trireme bench ops --sizes 32768x768 3211264x64 --type bfloat16\n"
      "  mpirun -n 2 trireme bench comm --machine-out cluster.toml");
  command.set_action(
      [command, options] { return bench_command(*options, command.given_options()); });
}

}  // namespace trireme::app
