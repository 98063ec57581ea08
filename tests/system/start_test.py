"""Tests the first moments of a process: signals before main(), a rank that never reaches MPI_Init,
and threads that cannot be started.

Preloaded libraries act in their constructor, which runs after the functions of .preinit_array and
before main(). So the tests do not depend on the speed of the machine.
"""

import signal

import harness

RAISE = r"""
#include <signal.h>
#include <stdlib.h>
__attribute__((constructor)) static void begin(void) {
  const char* rank = getenv("TRIREME_TEST_RANK");
  const char* own = getenv("OMPI_COMM_WORLD_RANK");
  if (own == NULL) own = getenv("PMI_RANK");
  if (rank != NULL && (own == NULL || atoi(own) != atoi(rank))) return;
  raise(atoi(getenv("TRIREME_TEST_SIGNAL")));
}
"""
# pthread_create fails while so many other threads run.
FEW_THREADS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
static atomic_int running;
typedef struct { void* (*run)(void*); void* argument; } Work;
static void* work(void* given) {
  Work own = *(Work*)given;
  free(given);
  void* result = own.run(own.argument);
  --running;
  return result;
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  *(void**)&real = dlsym(RTLD_NEXT, "pthread_create");
  if (running++ >= atoi(getenv("TRIREME_TEST_THREADS"))) {
    --running;
    return EAGAIN;
  }
  Work* own = malloc(sizeof *own);
  own->run = run;
  own->argument = argument;
  return real(thread, attributes, work, own);
}
"""


class Start(harness.Case):
    samples = 320

    def run_with(self, library, *arguments, ranks=1, threads=1, **env):
        env["LD_PRELOAD"] = library
        return harness.run(*arguments, ranks=ranks, threads=threads, cwd=self.folder, env=env)

    def test_a_signal_before_main_stops_the_run_as_documented(self):
        library = self.preloaded("raise", RAISE)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number.name):
                folder = "run.folder=run" + number.name
                train = ("train", "deck.toml", "--set", folder, "--set", "run.stop=6 steps")
                result = self.run_with(library, *train, TRIREME_TEST_SIGNAL=str(int(number)))
                self.assertEqual(result.returncode, 75, result.text)
                self.assertIn("stopped at step 1 (%s)" % number.name, result.text)
                self.assertIn("resumed from", harness.run(*train, cwd=self.folder).text)

    def test_a_signal_before_main_ends_other_commands(self):
        library = self.preloaded("raise", RAISE)
        for number in (signal.SIGUSR1, signal.SIGTERM):
            result = self.run_with(
                library, "check", "deck.toml", TRIREME_TEST_SIGNAL=str(int(number))
            )
            self.assertEqual(result.returncode, -number, result.text)

    def test_a_rank_that_never_reaches_mpi_init_ends_the_job(self):
        library = self.preloaded("raise", RAISE)
        for stopped in (1, 0):
            result = self.run_with(
                library,
                "train",
                "deck.toml",
                ranks=2,
                TRIREME_TEST_RANK=str(stopped),
                TRIREME_TEST_SIGNAL=str(int(signal.SIGSTOP)),
                TRIREME_INIT_SECONDS="2",
            )
            self.assertEqual(result.returncode, 77, result.text)
            self.assertRegex(
                result.text, r"rank %d on \S+ waits in MPI_Init since 2 s" % (1 - stopped)
            )

    def test_a_wrong_limit_of_the_start_is_refused(self):
        for text in ("soon", "0", "2 s", "-1", "nan"):
            result = harness.run(
                "train", "deck.toml", ranks=2, cwd=self.folder, env={"TRIREME_INIT_SECONDS": text}
            )
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn('TRIREME_INIT_SECONDS = "%s": must be' % text, result.text)

    def test_a_thread_that_cannot_be_started_is_a_failure_with_the_limits(self):
        library = self.preloaded("few_threads", FEW_THREADS)
        failures = 0
        # Three threads of OpenMP: two beside the main thread are tried before libgomp starts them.
        for threads, most in ((1, 9), (3, 3)):
            for allowed in range(most):
                with self.subTest(allowed=allowed, threads=threads):
                    result = self.run_with(
                        library,
                        "train",
                        "deck.toml",
                        "--set",
                        "run.folder=run%d.%d" % (allowed, threads),
                        "--set",
                        "run.stop=6 steps",
                        threads=threads,
                        TRIREME_TEST_THREADS=str(allowed),
                    )
                    if result.returncode == 0:
                        continue
                    failures += 1
                    self.assertEqual(result.returncode, 1, result.text)
                    self.assertEqual(len(self.errors_of(result.text)), 1, result.text)
                    self.assertRegex(
                        result.text,
                        r"a thread cannot be started: .*; this process has \d+ threads?, "
                        r"and its limits are ulimit -u \w+ .* ulimit -v \w+",
                    )
        self.assertGreater(failures, 4)


if __name__ == "__main__":
    harness.main(at_once=2)
