#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "command_line.hpp"
#include "commands.hpp"
#include "error_text.hpp"
#include "trireme/io/hdf5_probe.hpp"

namespace {

using trireme::ExitCode;

/// This process's rank as its launcher says; 0 where there is none. MPI may not be up, or no more.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  const char* rank = std::getenv("SLURM_STEP_ID") ? std::getenv("SLURM_PROCID") : nullptr;
  return rank ? std::atoi(rank) : 0;
}

/// Prints an error once and not once a rank: wrong input is found by all ranks alike, so rank 0 speaks for them; a failure may be one
/// rank's alone, and names it.
ExitCode report(const std::string& message, ExitCode code) {
  const int rank = launched_rank();
  if (rank != 0 && code == ExitCode::wrong_input) return code;
  fmt::print(stderr, "{}\n", rank == 0 ? trireme::app::error_text(message) : fmt::format("trireme: rank {}: error: {}", rank, message));
  return code;
}

/// What was printed may still fail to arrive, as on a full disk: then the command is not done.
int leave(ExitCode code) {
  const bool arrived = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!arrived) fmt::print(stderr, "{}\n", trireme::app::error_text("standard output: not all could be written"));
  return static_cast<int>(!arrived && code == ExitCode::done ? ExitCode::failure : code);
}

/// CLI11 2.5 and newer would fill the lines of the examples into paragraphs.
template <class Formatter>
void keep_lines_of_footers(Formatter& formatter) {
  if constexpr (requires { formatter.enable_footer_formatting(false); }) formatter.enable_footer_formatting(false);
}

}  // namespace

int main(int argc, char** argv) {
  trireme::io::start_hdf5();  // before MPI
  trireme::io::set_hdf5_probe({"/proc/self/exe", "probe-hdf5"});
  // 1. The commands, each with its options.
  CLI::App root{"Trireme trains neural networks as a batch application for supercomputers.", "trireme"};
  keep_lines_of_footers(*root.get_formatter());  // the commands take it over
  root.footer("Example:\n  mpirun -n 2 trireme train inputs/examples/fashion_resnet.toml\n\nEvery command has --help.");
  root.set_version_flag("--version", "trireme " TRIREME_VERSION);
  root.require_subcommand(1);
  trireme::app::Run run;
  trireme::app::add_train(root, run);
  trireme::app::add_check(root, run);
  trireme::app::add_evaluate(root, run);
  trireme::app::add_shard(root, run);
  trireme::app::add_inspect(root, run);
  trireme::app::add_verify(root, run);
  trireme::app::add_import(root, run);
  trireme::app::add_export(root, run);
  trireme::app::add_generate(root, run);
  trireme::app::add_probe(root, run);
  trireme::app::add_bench(root, run);

  ExitCode code = ExitCode::failure;
  try {
    // 2. What the user wants.
    root.parse(argc, argv);
    // 3. The command; one that uses MPI leaves by itself.
    code = run();
  } catch (const CLI::Success& asked) {
    // 4. --help and --version.
    root.exit(asked);
    std::cout.flush();
    return leave(std::cout ? ExitCode::done : ExitCode::failure);
  } catch (const CLI::ParseError& error) {
    // 5. A wrong command line.
    code = report(trireme::app::explain(root, error, argc, argv), ExitCode::wrong_input);
  } catch (const trireme::Error& error) {
    // 6. Wrong input or a failure that the program understands.
    code = report(error.what(), error.code());
  } catch (const std::exception& error) {
    // 7. A failure of a library.
    code = report(error.what(), ExitCode::failure);
  }
  // 8. The exit code that batch scripts test.
  return leave(code);
}
