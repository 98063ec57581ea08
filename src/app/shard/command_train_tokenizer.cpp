// SPDX-License-Identifier: Apache-2.0
//
// `trireme train-tokenizer` (hidden): trains a tokenizer for another Trireme process, which
// survives if the trainer ends the process.
//
//   this process                              child process
//   write the lines to a file
//   start it, wait                            train
//                                             write the model, or the reason why there is none
//   read the model, or throw InputError
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/commands.hpp"
#include "tokenizer_training.hpp"
#include "trireme/base/bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/child_process.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_file_bytes = std::int64_t{1} << 30;

// Limits of the trainer, several times the needs of the largest sample of ordinary text.
// Processor time is that of all its threads.
constexpr rlim_t max_processor_seconds = 1200, max_memory_bytes = rlim_t{4} << 30;

/// Returns the limit of this process with a soft value of at most `most`.
template <class Resource>  // The type of RLIMIT_... differs between C libraries.
rlimit lowered_limit(Resource resource, rlim_t most) {
  rlimit limit{};
  ensure(::getrlimit(resource, &limit) == 0, "getrlimit: {}", std::strerror(errno));
  limit.rlim_cur = std::min(limit.rlim_cur, most);  // RLIM_INFINITY is the largest value
  return limit;
}

template <class Resource>
void lower_limit(Resource resource, rlim_t most) {
  const rlimit limit = lowered_limit(resource, most);
  ::setrlimit(resource, &limit);
}

/// Returns why the trainer ended before it had a result. `said`: what it wrote.
std::string reason_of(int status, const std::string& said) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return fmt::format("it took more than {} s of processor time",
                       lowered_limit(RLIMIT_CPU, max_processor_seconds).rlim_cur);
  if (said.find("bad_alloc") != std::string::npos)
    return fmt::format("it needed more memory than {}",
                       format_bytes(lowered_limit(RLIMIT_DATA, max_memory_bytes).rlim_cur));
  std::string_view rest = said;
  return fmt::format("it ended with {} ({})",
                     WIFSIGNALED(status) ? strsignal(WTERMSIG(status))
                                         : fmt::format("exit code {}", WEXITSTATUS(status)),
                     printable(take_line(rest)));
}

/// Runs in the child process: writes the model to the file `output`, or a message with exit code 2.
ExitCode train_for_parent(const std::string& input, std::int64_t vocabulary,
                          const std::string& output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  lower_limit(RLIMIT_CORE, 0);
  std::signal(SIGXCPU, SIG_DFL);  // the signal of the next limit; it may be ignored here
  lower_limit(RLIMIT_CPU, max_processor_seconds);
// AddressSanitizer reserves terabytes of address space.
#if !defined(__SANITIZE_ADDRESS__)
  lower_limit(RLIMIT_DATA, max_memory_bytes);
#endif
  const std::string bytes = io::read_text_file(input, max_file_bytes);
  ByteReader reader(bytes);
  try {
    io::replace_file(output, data::train_tokenizer(reader.get_strings(), vocabulary));
    return ExitCode::done;
  } catch (const InputError& error) {
    io::replace_file(output, error.what());
    return ExitCode::wrong_input;
  } catch (const std::bad_alloc&) {
    std::fputs("bad_alloc\n", stderr);  // as a thread of the trainer that has no memory
    return ExitCode::failure;
  }
}

/// Returns the sources for a message.
std::string name_of(const std::vector<std::string>& sources) {
  return sources[0] + (sources.size() == 1 ? "" : " and the other sources");
}

}  // namespace

std::string train_tokenizer_apart(const std::vector<std::string>& lines, std::int64_t vocabulary,
                                  const fs::path& folder, const std::vector<std::string>& sources) {
  validate(data::has_sentencepiece(),
           "--train-tokenizer: this build of Trireme was made without SentencePiece; install it "
           "(Debian: libsentencepiece-dev and libprotobuf-dev) and build again, or take bytes as "
           "tokens");
  validate(!lines.empty(), "{}: no text found to train a tokenizer on", name_of(sources));
  const std::string input = (folder / "lines").string(), output = (folder / "trained").string(),
                    messages = (folder / "messages").string();
  ByteWriter writer;
  writer.put_strings(lines);
  io::replace_file(input, writer.take());
  int status = 0;
  {
    const io::File log(messages, io::File::Mode::create);
    const ChildDescriptor error_output{log.descriptor(), STDERR_FILENO};
    const pid_t process = start_child(
        {"/proc/self/exe", "train-tokenizer", input, std::to_string(vocabulary), output},
        {&error_output, 1}, "to train a tokenizer");
    while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
  }
  const std::string said = io::read_text_file(messages, max_file_bytes);
  std::string result;
  if (fs::exists(output)) result = io::read_text_file(output, max_file_bytes);
  for (const std::string& file : {input, output, messages}) fs::remove(file);
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::done)) return result;
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::wrong_input))
    throw InputError(fmt::format("{}: {}", name_of(sources), result));
  ensure(!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL,
         "the process that trains the tokenizer was killed; it may have needed more memory than "
         "there is");
  throw InputError(fmt::format(
      "{}: SentencePiece cannot train a tokenizer on this text: {}; give other text, in words, or "
      "take bytes as tokens",
      name_of(sources), reason_of(status, said)));
}

void add_train_tokenizer(CommandLine& line) {
  Command command =
      line.add("train-tokenizer", "Train a tokenizer for another process of this program");
  command.hide();
  struct Options {
    std::string input, output;
    std::int64_t vocabulary = 0;
  };
  const auto options = std::make_shared<Options>();
  command.option("INPUT", options->input, "Lines").required();
  command.option("VOCABULARY", options->vocabulary, "Number of pieces").required();
  command.option("OUTPUT", options->output, "The model, or a message").required();
  command.set_action(
      [options] { return train_for_parent(options->input, options->vocabulary, options->output); });
}

}  // namespace trireme::app
