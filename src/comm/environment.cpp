// SPDX-License-Identifier: Apache-2.0
//
// Starts and ends MPI, and recognizes how the process was launched.
//
// The constructor (from main) reads the variables that launchers set. It calls MPI_Init_thread only
// if MPI can find its peers, and checks that MPI sees as many ranks as were started.
// finalize_and_exit() ends a healthy process; abort() ends one whose peers may hang.

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

#include "init_timer.hpp"
#include "mpi_communicator.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/host.hpp"
#include "trireme/comm/versions.hpp"

namespace trireme::comm {
namespace {

// Time limit of MPI_Abort, in seconds; then the process exits by itself.
constexpr unsigned abort_seconds = 10;
// The shell script polls the launcher ten times a second: after 100 polls (10 s) it sends SIGTERM,
// after 130 polls (13 s) SIGKILL.
constexpr int polls_before_terminate = 100, polls_before_kill = 130;

/// Returns the value of an environment variable; null if it is unset or empty.
const char* environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int integer_variable(const char* name) {
  return environment_variable(name) == nullptr ? 0 : std::atoi(environment_variable(name));
}

/// How this process was started, according to the variables that launchers set.
struct Launch {
  bool has_pmi = false;     ///< by mpirun, mpiexec, or srun with PMI: MPI can find its peers
  bool slurm_step = false;  ///< a task of srun
  int tasks = 1;            ///< number of processes that the launcher started
};

Launch detect_launch() {
  Launch launch;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
    launch.has_pmi |= environment_variable(name) != nullptr;
  launch.slurm_step = environment_variable("SLURM_STEP_ID") != nullptr &&
                      environment_variable("SLURM_PROCID") != nullptr;
  // mpirun inside a Slurm job leaves Slurm's variables set too; its own count takes precedence.
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

/// Returns the launcher as the variables name it, for people.
std::string launcher_name(const Launch& launch) {
  const bool has_pmix = environment_variable("PMIX_RANK") != nullptr;
  if (environment_variable("OMPI_COMM_WORLD_SIZE") != nullptr) return "mpirun of Open MPI";
  if (launch.slurm_step)
    return has_pmix ? "srun with PMIx" : launch.has_pmi ? "srun with PMI" : "srun without PMI";
  return has_pmix ? "a launcher with PMIx" : launch.has_pmi ? "a launcher with PMI" : "none";
}

/// Returns the parent process if it is an MPI launcher or its daemon on this host.
/// Returns nothing for a shell, a debugger, or init after the launcher has died.
std::optional<pid_t> launcher_process() {
  const pid_t parent = ::getppid();
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(parent) + "/comm"), name);
  // Linux keeps at most 15 characters of a process name.
  static const std::set<std::string> known{
      "mpirun",        "mpirun.openmpi", "mpirun.mpich",    "mpiexec",        "mpiexec.openmpi",
      "mpiexec.mpich", "mpiexec.hydra",  "orterun",         "orted",          "prterun",
      "prted",         "prte",           "hydra_pmi_proxy", "hydra_bstrap_pr"};
  return known.contains(name) ? std::optional(parent) : std::nullopt;
}

/// Starts a shell process that kills the launcher if it is still alive after 10 s.
/// Launchers that end a job wait forever for their daemon on a host that no longer answers.
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
  // A session of its own: launchers kill the process groups of their ranks.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  for (const int file : {0, 1, 2})
    ::posix_spawn_file_actions_addopen(&files, file, "/dev/null", O_RDWR, 0);
  pid_t child = 0;
  // Best effort: if the shell does not start, the launcher stays alive.
  (void)::posix_spawnp(&child, "sh", &files, &attributes, words, environ);
}

/// Rejects several processes that each see a world of one rank: all would write the same run
/// folder.
void validate_world(const Launch& launch, int world_size) {
  if (world_size > 1 || launch.tasks <= 1) return;
  validate(
      !launch.slurm_step || environment_variable("OMPI_COMM_WORLD_SIZE") != nullptr,
      "srun started {} tasks, but MPI sees a world of one: each would train by itself. This "
      "MPI has no information about its peers: `srun --mpi=list` "
      "lists the types that this Slurm supports; use the one that the MPI library was built for, "
      "as in `srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH)",
      launch.tasks);
  throw InputError(fmt::format(
      "the launcher started {} processes, but MPI sees a world of one: each would train by itself. "
      "Start with the mpirun of the MPI library that this program is linked with",
      launch.tasks));
}

}  // namespace

Environment::Environment(Disconnected disconnected) : host_(host_name()) {
  std::signal(SIGPIPE, SIG_IGN);
  const Launch launch = detect_launch();
  launched_by_ = launcher_name(launch);
  launched_processes_ = launch.tasks;
#if defined(OPEN_MPI)
  // Under srun without PMI, Open MPI terminates the process inside MPI_Init.
  const bool startable = launch.has_pmi;
#else
  const bool startable = launch.has_pmi || (launch.slurm_step && launch.tasks > 1);
#endif
  if (!startable) {
    if (disconnected == Disconnected::refused) validate_world(launch, 1);
    return;
  }
  // 1. Initialize MPI with errors returned as codes.
  int granted = MPI_THREAD_SINGLE;
  {
    const InitTimer timer(launched_rank(), host_);
    mpi_try(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
  }
  initialized_ = true;
  launcher_pid_ = launcher_process().value_or(0);
  thread_multiple_ = granted == MPI_THREAD_MULTIPLE;
  // 2. Create the world communicator.
  const std::shared_ptr<MpiCommunicator> world = MpiCommunicator::world();
  world_ = Communicator(world);
  if (disconnected == Disconnected::refused) validate_world(launch, world_.size());
  // 3. Count the ranks on this host.
  MPI_Comm host = MPI_COMM_NULL;
  mpi_try(
      MPI_Comm_split_type(world->main, MPI_COMM_TYPE_SHARED, world_.rank(), MPI_INFO_NULL, &host),
      "MPI_Comm_split_type");
  mpi_try(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
  mpi_try(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
  mpi_try(MPI_Comm_free(&host), "MPI_Comm_free");
}

// MPI_Finalize is collective, so finalize_and_exit() calls it. A rank that unwinds alone would hang
// here.
Environment::~Environment() = default;

bool Environment::launcher_gone() const {
  return launcher_pid_ != 0 && ::getppid() != launcher_pid_;
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  mpi_try(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  // Keep the first item; the rest is package and build information.
  const std::string_view version(text, static_cast<std::size_t>(length));
  return std::string(version.substr(0, version.find_first_of(",\n")));
}

void Environment::finalize_and_exit(ExitCode code) {
  // 1. Flush before any rank exits: newer launchers kill the others once one rank exits with an
  //    error code.
  std::fflush(stdout);
  if (initialized_) {
    // 2. End MPI. Errors are ignored: the process exits in any case.
    try {
      world_.barrier();
    } catch (const Failure&) {
    }
    MPI_Finalize();
  }
  // 3. Report output that could not be written.
  const bool arrived = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!arrived) {
    std::fputs("trireme: error: standard output could not be written completely\n", stderr);
    if (code == ExitCode::done) code = ExitCode::failure;
  }
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

void Environment::abort(ExitCode code) {
  std::fflush(nullptr);
  if (initialized_) {
    // 1. Make sure that the launcher dies. Slurm itself handles lost nodes of an srun step.
    const bool task_of_srun =
        detect_launch().slurm_step && environment_variable("OMPI_COMM_WORLD_SIZE") == nullptr;
    if (!task_of_srun && launcher_pid_ != 0 && !launcher_gone()) end_launcher_later(launcher_pid_);
    // 2. Limit the time of MPI_Abort.
    try {
      std::thread([code] {
        std::this_thread::sleep_for(std::chrono::seconds(abort_seconds));
        _exit(static_cast<int>(code));
      }).detach();
    } catch (const std::system_error&) {
      // Without a thread, SIGALRM ends the process, though with its own exit code.
      alarm(abort_seconds);
    }
    // 3. Abort all ranks.
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  }
  _exit(static_cast<int>(code));
}

}  // namespace trireme::comm
