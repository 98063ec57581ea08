#include "trireme/comm/environment.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include "mpi_communicator.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/host.hpp"

namespace trireme::comm {
namespace {

// How long MPI_Abort may take before the process goes by itself.
constexpr unsigned abort_seconds = 10;
// Looks at the launcher, ten a second, before it is ended, and before that is done by force.
constexpr int polls_before_terminate = 100, polls_before_kill = 130;

const char* environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int integer_variable(const char* name) {
  return environment_variable(name) == nullptr ? 0 : std::atoi(environment_variable(name));
}

/// How this process was started, by the variables that launchers leave.
struct Launch {
  bool has_pmi = false;     ///< mpirun, mpiexec or srun with PMI: MPI can find its peers
  bool slurm_step = false;  ///< a task of srun
  int tasks = 1;            ///< what the launcher says it started
};

Launch detect_launch() {
  Launch launch;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
    launch.has_pmi |= environment_variable(name) != nullptr;
  launch.slurm_step = environment_variable("SLURM_STEP_ID") != nullptr &&
                      environment_variable("SLURM_PROCID") != nullptr;
  // mpirun in a job leaves Slurm's own counts standing beside its own: its own rule.
  if (environment_variable("OMPI_COMM_WORLD_SIZE") != nullptr)
    launch.tasks = integer_variable("OMPI_COMM_WORLD_SIZE");
  else if (environment_variable("PMI_SIZE") != nullptr)
    launch.tasks = integer_variable("PMI_SIZE");
  else if (launch.slurm_step)
    launch.tasks = integer_variable(environment_variable("SLURM_STEP_NUM_TASKS") != nullptr
                                        ? "SLURM_STEP_NUM_TASKS"
                                        : "SLURM_NTASKS");
  return launch;
}

/// The process that started this one, where that is an MPI launcher or its part on this host (and
/// no shell, debugger, or init after the launcher's death).
std::optional<pid_t> launcher_process() {
  const pid_t parent = ::getppid();
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(parent) + "/comm"), name);
  // No more than 15 letters, as the system keeps them.
  static const std::set<std::string> known{
      "mpirun",        "mpirun.openmpi", "mpirun.mpich",    "mpiexec",        "mpiexec.openmpi",
      "mpiexec.mpich", "mpiexec.hydra",  "orterun",         "orted",          "prterun",
      "prted",         "prte",           "hydra_pmi_proxy", "hydra_bstrap_pr"};
  return known.contains(name) ? std::optional(parent) : std::nullopt;
}

/// Leaves a process behind that ends the launcher, should it still be there after a while: one that
/// ends a job waits without end for its own part on a host that does not answer any more.
void end_launcher_later(pid_t process) {
  const std::string script = fmt::format(
      "i=0; while kill -0 $0; do i=$((i + 1)); case $i in {}) kill $0 ;; {}) kill -9 $0; exit ;; "
      "esac; sleep 0.1; done",
      polls_before_terminate, polls_before_kill);
  const std::string launcher = std::to_string(process);
  std::string sh = "sh", option = "-c", body = script, pid = launcher;
  char* words[] = {sh.data(), option.data(), body.data(), pid.data(), nullptr};
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
  if (::posix_spawnattr_init(&attributes) != 0 || ::posix_spawn_file_actions_init(&files) != 0)
    return;
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID);  // launchers kill the groups of their ranks
  for (const int file : {0, 1, 2})
    ::posix_spawn_file_actions_addopen(&files, file, "/dev/null", O_RDWR, 0);
  pid_t child = 0;
  (void)::posix_spawnp(&child, "sh", &files, &attributes, words,
                       environ);  // what cannot be started ends nothing
}

/// Many processes that each believe to be alone would write one run folder: refused.
void validate_world(const Launch& launch, int world_size) {
  if (world_size > 1 || launch.tasks <= 1) return;
  validate(!launch.slurm_step || environment_variable("OMPI_COMM_WORLD_SIZE") != nullptr,
           "srun started {} tasks, but MPI sees a world of one: each would train by itself. This "
           "MPI was not told of its peers: `srun --mpi=list` "
           "shows the kinds that this Slurm has; take the one that the MPI library was built for, "
           "as in `srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH)",
           launch.tasks);
  throw InputError(fmt::format(
      "the launcher started {} processes, but MPI sees a world of one: each would train by itself. "
      "Start with the mpirun of the MPI library that this program is linked with",
      launch.tasks));
}

}  // namespace

Environment::Environment() : host_(host_name()) {
  std::signal(SIGPIPE, SIG_IGN);
  const Launch launch = detect_launch();
#if defined(OPEN_MPI)
  // Under srun without PMI, Open MPI ends the process from within MPI_Init.
  const bool startable = launch.has_pmi;
#else
  const bool startable = launch.has_pmi || (launch.slurm_step && launch.tasks > 1);
#endif
  if (!startable) {
    validate_world(launch, 1);
    return;
  }
  int granted = MPI_THREAD_SINGLE;
  mpi_try(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
  initialized_ = true;
  launcher_pid_ = launcher_process().value_or(0);
  thread_multiple_ = granted == MPI_THREAD_MULTIPLE;
  mpi_try(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  world_ = Communicator(MpiCommunicator::duplicate(MPI_COMM_WORLD));
  validate_world(launch, world_.size());
  MPI_Comm host = MPI_COMM_NULL;
  mpi_try(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_.rank(), MPI_INFO_NULL,
                              &host),
          "MPI_Comm_split_type");
  mpi_try(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
  mpi_try(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
  mpi_try(MPI_Comm_free(&host), "MPI_Comm_free");
}

// MPI_Finalize is collective: it stands in leave(), where all ranks come together; a rank that
// unwinds alone would wait here for ever.
Environment::~Environment() = default;

bool Environment::launcher_gone() const {
  return launcher_pid_ != 0 && ::getppid() != launcher_pid_;
}

std::string Environment::library() const {
  if (!initialized_) return "none";
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  mpi_try(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string_view version(text, static_cast<std::size_t>(length));
  return std::string(
      version.substr(0, version.find_first_of(",\n")));  // the rest is package and build
}

void Environment::finalize_and_exit(ExitCode code) {
  std::fflush(stdout);  // before any rank is gone: newer launchers end the others once one leaves
                        // with a code
  if (initialized_) {
    // Error codes are not looked at: there is no other way out than this one.
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
  }
  const bool arrived = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!arrived) {
    std::fputs("trireme: error: standard output: not all could be written\n", stderr);
    if (code == ExitCode::done) code = ExitCode::failure;
  }
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

void Environment::abort(ExitCode code) {
  std::fflush(nullptr);
  if (initialized_) {
    const bool task_of_srun =
        detect_launch().slurm_step && environment_variable("OMPI_COMM_WORLD_SIZE") ==
                                          nullptr;  // Slurm itself looks after lost nodes
    if (!task_of_srun && launcher_pid_ != 0 && !launcher_gone()) end_launcher_later(launcher_pid_);
    try {
      std::thread([code] {
        std::this_thread::sleep_for(std::chrono::seconds(abort_seconds));
        _exit(static_cast<int>(code));
      }).detach();
    } catch (const std::system_error&) {
      alarm(abort_seconds);  // no thread to be had: the signal ends the process, though with its
                             // own code
    }
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  }
  _exit(static_cast<int>(code));
}

}  // namespace trireme::comm
