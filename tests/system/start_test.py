# SPDX-License-Identifier: Apache-2.0
"""Tests the first moments of a process: signals before main(), a rank that never reaches MPI_Init,
and threads that cannot be started.

Preloaded libraries act while they are loaded, or in their constructor, which runs after the
functions of .preinit_array and before main(). So the tests do not depend on the speed of the
machine.
"""

import os
import re
import signal
import subprocess

import harness

# The programs of these tests inherit it; under nohup they would ignore the signal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

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
# A resolver of an indirect function runs while the dynamic loader relocates the libraries, before
# any code of the program. It calls the system directly, since libc may not be relocated.
RAISE_WHILE_LOADING = r"""
#include <sys/syscall.h>
static long call(long number, long first, long second) {
#if defined(__x86_64__)
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second)
                   : "rcx", "r11", "memory");
  return result;
#else
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
  return x0;
#endif
}
static void nothing(void) {}
static void (*choose(void))(void) {
  call(SYS_kill, call(SYS_getpid, 0, 0), SIGNAL);
  return nothing;
}
void chosen(void) __attribute__((ifunc("choose")));
void (*use_of_chosen)(void) = chosen;
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

    def test_a_signal_while_libraries_are_loaded_stops_the_run_as_documented(self):
        if subprocess.run(["ldd", harness.TRIREME], capture_output=True).returncode == 0:
            self.skipTest("bin/trireme is not static: it loads the library of this test, too")
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number.name):
                library = self.preloaded(
                    number.name, "#define SIGNAL %d\n" % number + RAISE_WHILE_LOADING
                )
                folder = "run.folder=run" + number.name
                train = ("train", "deck.toml", "--set", folder, "--set", "run.stop=6 steps")
                result = self.run_with(library, *train)
                self.assertEqual(result.returncode, 75, result.text)
                self.assertIn("stopped at step 1 (%s)" % number.name, result.text)
                result = self.run_with(library, "check", "deck.toml")
                self.assertEqual(result.returncode, -number, result.text)

    def test_a_request_for_a_report_while_libraries_are_loaded_is_answered(self):
        library = self.preloaded(
            "report", "#define SIGNAL %d\n" % signal.SIGUSR2 + RAISE_WHILE_LOADING
        )
        result = self.run_with(library, "train", "deck.toml", "--set", "run.stop=200 steps")
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(result.text, r"rank 0 on \S+: ")

    def test_no_signal_is_blocked_in_a_run(self):
        process = harness.start(
            "train", "deck.toml", "--set", "run.stop=1000000 steps", cwd=self.folder
        )
        try:
            harness.wait_for(lambda: harness.row_count(self.path("run"), "train") > 0, "a row")
            with open("/proc/%d/status" % process.pid) as file:
                blocked = re.search(r"SigBlk:\s*(\w+)", file.read())[1]
            self.assertEqual(int(blocked, 16), 0)
        finally:
            process.kill()
            process.communicate()

    def copy_program(self, name):
        """Copies the program, in a process of its own: tests run in threads, a process that another
        one starts meanwhile would inherit a file that is open for writing here, and a program that
        is open for writing cannot be started."""
        subprocess.run(["cp", harness.TRIREME, self.path(name)], check=True)
        return self.path(name)

    def test_a_missing_program_is_named(self):
        os.makedirs(self.path("alone/bin"))
        alone = self.copy_program("alone/bin/trireme")
        for words in (["train", "deck.toml"], ["--version"], []):
            result = subprocess.run([alone, *words], capture_output=True, text=True)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(
                result.stderr,
                r"^trireme: error: /.*/alone/libexec/trireme: cannot be started: No such file .*",
            )

    def test_the_program_gets_what_it_was_started_with(self):
        """The file that bin/trireme starts sees the same arguments, environment and descriptors."""
        os.makedirs(self.path("tree/bin"))
        os.makedirs(self.path("tree/libexec"))
        self.copy_program("tree/bin/trireme")
        show = 'tr "\\0" "|" </proc/self/environ; cat <&7; echo "$0:$#:$2"; exit 43'
        with open(self.path("tree/libexec/trireme"), "w") as file:
            file.write("#!/bin/sh\n" + show + "\n")
        os.chmod(self.path("tree/libexec/trireme"), 0o755)
        os.symlink(self.path("tree/bin/trireme"), self.path("link"))
        result = subprocess.run(
            ["bash", "-c", 'exec 7<<<"seven"; exec -a name ./link a "b c" ""'],
            cwd=self.folder,
            env={"ONLY": "this"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode, 43, result.stderr)
        self.assertIn("ONLY=this|", result.stdout)
        self.assertRegex(result.stdout, r"seven\n.*/tree/libexec/trireme:3:b c\n$")

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

    def test_a_stack_that_is_too_small_is_refused_with_the_limit(self):
        for command in ("train deck.toml", "check deck.toml", "inspect .", "--version"):
            result = subprocess.run(
                ["sh", "-c", "ulimit -s 64; exec %s %s" % (harness.TRIREME, command)],
                cwd=self.folder,
                capture_output=True,
                text=True,
            )
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertRegex(
                result.stderr, r"^trireme: error: .*64 KiB \(`ulimit -s`\).*256 KiB.*\n$"
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
