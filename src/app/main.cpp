// SPDX-License-Identifier: Apache-2.0
//
// The program: adds the commands, runs the chosen one, prints an error once, returns the exit code.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "commands.hpp"
#include "error_text.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/message_text.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace {

using trireme::ExitCode;

/// Prints an error once, not once per rank, and returns its code. All ranks find wrong input alike,
/// so only rank 0 prints it. The others wait for that: launchers end the whole job when the first
/// rank exits. A failure may concern one rank, which prints its number.
ExitCode report_error(const std::string& message, ExitCode code) {
  const int rank = trireme::comm::launched_rank();
  if (rank != 0 && code == ExitCode::wrong_input) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return code;
  }
  trireme::app::print_error(rank == 0 ? trireme::app::error_text(message)
                                      : fmt::format("trireme: rank {}: error: {}", rank,
                                                    trireme::printable_message(message)));
  return code;
}

/// Flushes stdout and returns the exit code. Output that could not be written (full disk) turns
/// `done` into a failure.
int flush_and_exit_code(ExitCode code) {
  const bool arrived = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!arrived)
    trireme::app::print_error(
        trireme::app::error_text("standard output could not be written completely"));
  return static_cast<int>(!arrived && code == ExitCode::done ? ExitCode::failure : code);
}

}  // namespace

int main(int argc, char** argv) {
  trireme::open_missing_standard_streams();
  // A write beyond the limit on file sizes (ulimit -f) then fails with an error that names the
  // file.
  std::signal(SIGXFSZ, SIG_IGN);
  trireme::io::initialize_hdf5();  // must come before MPI starts
  trireme::io::set_hdf5_index_command({"/proc/self/exe", "index-hdf5"});
  // 1. Add the commands, each with its options.
  trireme::app::CommandLine line;
  trireme::app::add_train(line);
  trireme::app::add_check(line);
  trireme::app::add_doctor(line);
  trireme::app::add_evaluate(line);
  trireme::app::add_shard(line);
  trireme::app::add_inspect(line);
  trireme::app::add_plan(line);
  trireme::app::add_verify(line);
  trireme::app::add_watch(line);
  trireme::app::add_report(line);
  trireme::app::add_import(line);
  trireme::app::add_export(line);
  trireme::app::add_predict(line);
  trireme::app::add_generate(line);
  trireme::app::add_index_hdf5(line);
  trireme::app::add_train_tokenizer(line);
  trireme::app::add_bench(line);
  trireme::app::add_man(line);
  trireme::app::add_completion(line);

  ExitCode code = ExitCode::failure;
  try {
    // 2. Parse the command line; throws if it is invalid.
    const trireme::app::CommandAction run = line.parse(argc, argv);
    // 3. Run the command. Commands that use MPI do not return.
    code = run();
  } catch (const std::exception& caught) {
    // 4. Report wrong input, a failure that the program detected, or an exception of a library.
    const trireme::Error error = trireme::to_error(caught);
    code = report_error(error.what(), error.code());
  }
  // 5. Return the exit code, which batch scripts test (docs/reference/exit_codes.md).
  return flush_and_exit_code(code);
}
