"""Tests the GPU acceptance (scripts/gpu_session.sh) on a machine without GPU.

Its comparisons accept equal numbers and name different ones. A run that fails ends neither its
section nor the results.
"""

import io
import json
import os
import py_compile
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock

import harness

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
GPU = os.path.join(SCRIPTS, "gpu")
sys.path.insert(0, GPU)

import acceptance  # noqa: E402
import checks  # noqa: E402
import gradients  # noqa: E402
import kernel_profile  # noqa: E402
import measured_machine  # noqa: E402
import networks  # noqa: E402
import results  # noqa: E402
import runs  # noqa: E402
import variants  # noqa: E402

# What ceilings.py measures, in round numbers.
MEASURED = {
    "device": "NVIDIA H100 80GB HBM3",
    "torch": "2.11.0",
    "cuda": "13.0",
    "multiprocessors": 132,
    "memory_bytes": 80_000_000_000,
    "l2_bytes": 50_000_000,
    "cores": 16,
    "host_bytes": 128_000_000_000,
    "copy_gb_per_s": 3000.0,
    "upload_gb_per_s": 50.0,
    "matmul_bfloat16_tflops": 800.0,
    "matmul_float16_tflops": 800.0,
    "matmul_tfloat32_tflops": 400.0,
    "matmul_float32_tflops": 50.0,
    "launch_seconds": 2e-6,
    "grid": {"m": [1024, 8192], "n": [768], "k": [768, 3072]},
    "grid_tflops": [100.0, 200.0, 300.0, 400.0],
    "convolution_tflops": [[300.0, 200.0], [400.0, 300.0]],
    "attention": {"m": [512, 1024], "k": [64, 128]},
    "attention_tflops": [[100.0, 50.0], [200.0, 100.0], [150.0, 60.0], [250.0, 120.0]],
}


def command(*words):
    return [sys.executable, os.path.join(GPU, "acceptance.py"), *words]


def call(*words, cwd=None, **more):
    environment = dict(harness.environment(2), PYTHONDONTWRITEBYTECODE="1", **more)
    return subprocess.run(
        list(words),
        cwd=cwd,
        env=environment,
        text=True,
        timeout=harness.PATIENCE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def read_results(out):
    """Returns the files of results.tar.gz by name, JSON files as objects."""
    found = {}
    with tarfile.open(os.path.join(out, "results.tar.gz")) as packed:
        for entry in packed:
            text = packed.extractfile(entry).read().decode()
            name = entry.name
            found[name[:-5] if name.endswith(".json") else name] = (
                json.loads(text) if name.endswith(".json") else text
            )
    return found


class GpuAcceptance(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.reference = cls.folder + "/reference"
        recorded = call(
            *(sys.executable, os.path.join(GPU, "parity.py"), cls.reference),
            *("--trireme", harness.TRIREME, "--steps", "12"),
        )
        if recorded.returncode != 0:
            raise RuntimeError(recorded.stdout)

    def path(self, name):
        return os.path.join(self.folder, name)

    def words(self, sections, bin_folder=None, reference=None, patience="10"):
        self.out = tempfile.mkdtemp(dir=self.folder)
        return command(
            *("--bin", bin_folder or os.path.dirname(harness.TRIREME)),
            *("--reference", reference or self.reference, "--out", self.out, "--device", "cpu"),
            *("--patience", patience, "--sections", sections),
        )

    def acceptance(self, sections, *more, **options):
        result = call(*self.words(sections, **options), *more)
        return result, read_results(self.out)

    def programs(self, **scripts):
        """Returns a folder of shell scripts by name."""
        folder = tempfile.mkdtemp(dir=self.folder)
        for name, text in scripts.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write("#!/bin/sh\n%s\n" % text)
            os.chmod(os.path.join(folder, name), 0o755)
        return folder

    def test_scripts_compile(self):
        for name in os.listdir(GPU):
            if name.endswith(".py"):
                path = os.path.join(GPU, name)
                py_compile.compile(path, cfile=self.path("compiled"), doraise=True)

    def test_a_part_takes_less_than_ten_minutes(self):
        everything = []
        for sections in acceptance.PARTS.values():
            everything += sections
            limits = sum(acceptance.SECTIONS[name].limit for name in sections)
            self.assertLessEqual(limits, acceptance.PART_SECONDS)
        self.assertEqual(everything, list(acceptance.SECTIONS))
        session = call("bash", os.path.join(SCRIPTS, "gpu_session.sh"), "--help")
        self.assertEqual(session.returncode, 0)
        for number, sections in acceptance.PARTS.items():
            self.assertRegex(session.stdout, r" %d  %s " % (number, sections[0]))
            for name in sections:
                self.assertRegex(session.stdout, r"(?m)^ +\d? +%s " % name)

    def test_a_section_starts_only_if_its_limit_fits(self):
        programs = self.programs(test_ops_quick="exit 0")
        options = {"bin_folder": programs, "patience": "1"}
        limit = acceptance.SECTIONS["tests"].limit
        result, found = self.acceptance("tests", "--seconds", str(limit + 5), **options)
        self.assertTrue(found["tests"]["passed"], result.stdout)
        result, found = self.acceptance("tests", "--seconds", str(limit - 1), **options)
        self.assertIsNone(found["tests"]["passed"])
        self.assertIn("not run: no time left", found["tests"]["summary"])
        self.assertEqual(result.returncode, 0)

    def test_a_missing_library_ends_the_session(self):
        result, found = self.acceptance("libraries,parity", "--device", "cuda")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertTrue(found["libraries"]["failed"])
        self.assertEqual(found["parity"]["summary"], "not run: libraries are missing")
        missing = checks.missing_libraries(
            {"libc.so.6": "everything", "libnowhere.so.7": "nothing"}, [self.folder]
        )
        self.assertEqual(len(missing), 1, missing)
        self.assertTrue(missing[0].startswith("libnowhere.so.7 (nothing): "), missing)

    def test_losses_are_compared(self):
        with open(self.reference + "/losses.json") as file:
            losses = json.load(file)
        for model, recorded in losses.items():
            self.assertNotEqual(
                recorded["float32"], recorded["other sums"], model + ": no other rounding"
            )
            self.assertLess(
                recorded["float32"][-1],
                0.97 * recorded["float32"][0],
                "%s learns nothing: any program's losses would be like it" % model,
            )
        result, found = self.acceptance("parity,ceilings")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertTrue(found["parity"]["passed"])
        self.assertEqual(len(found["parity"]["runs"]), 4)
        self.assertIsNone(found["ceilings"]["passed"])  # left out, not passed
        self.assertRegex(result.stdout, r"\| parity \| passed \|")
        for run in ("resnet-float32", "gpt-bfloat16"):
            self.assertIn('"loss"', found["logs/parity/%s.metrics.jsonl" % run])
            self.assertIn("logs/parity/%s.log" % run, found)

        changed = self.path("changed")
        shutil.copytree(self.reference, changed)
        for run in ("float32", "other sums"):  # both runs; their difference is the tolerance
            losses["gpt"][run][8] *= 1.0001
        with open(changed + "/losses.json", "w") as file:
            json.dump(losses, file)
        result, found = self.acceptance("parity", reference=changed)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(list(found["parity"]["failed"]), ["gpt float32"])
        self.assertIn("step 9 has loss", found["parity"]["failed"]["gpt float32"])

    def test_a_crash_does_not_end_its_section(self):
        crash = 'case "$*" in *resnet-bfloat16*) echo it crashed here; exit 139 ;; esac\n'
        programs = self.programs(trireme=crash + 'exec "%s" "$@"' % harness.TRIREME)
        result, found = self.acceptance("parity", bin_folder=programs)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(list(found["parity"]["failed"]), ["resnet bfloat16"])
        self.assertIn("it crashed here", found["parity"]["failed"]["resnet bfloat16"])
        self.assertEqual(len(found["parity"]["runs"]), 3)
        with open(self.out + "/summary.md") as file:
            self.assertRegex(file.read(), r"(?s)parity \| FAILED.*it crashed here")
        # Later, on another machine: only this run, with its last lines.
        earlier = self.out + "/results.tar.gz"
        programs = self.programs(
            trireme="test $CUDA_LAUNCH_BLOCKING = 1 || exit 3\n" + crash + "exit 4"
        )
        result, found = self.acceptance("again", "--earlier", earlier, bin_folder=programs)
        self.assertTrue(found["again"]["passed"], result.stdout)
        self.assertEqual(list(found["again"]["again"]), ["parity"])
        (run,) = found["again"]["again"]["parity"].values()
        self.assertIn("exit status 139", run["verdict"])
        self.assertEqual(run["last_lines"], ["it crashed here"])
        self.assertEqual(len(found["parity"]["runs"]), 3)  # the earlier results are kept

    def test_a_run_that_hangs_leaves_time_for_the_others(self):
        hang = 'case "$*" in *resnet-float32*) exec sleep 1000 ;; esac\n'
        programs = self.programs(trireme=hang + 'exec "%s" "$@"' % harness.TRIREME)
        limit = acceptance.SECTIONS["parity"].limit
        code = (
            "import sys; sys.path.insert(0, %r); import runs; runs.LEAST_SECONDS = 1\n"
            "import acceptance; sys.exit(acceptance.main())" % GPU
        )
        words = self.words("parity", bin_folder=programs, patience=str(60 / limit))
        result = call(sys.executable, "-c", code, *words[2:])
        found = read_results(self.out)["parity"]
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(list(found["failed"]), ["resnet float32"])
        self.assertIn("not done within 2", found["failed"]["resnet float32"])
        self.assertEqual(len(found["runs"]), 3)

    def test_a_hanging_run_says_in_which_phase(self):
        # The program prints its phase on SIGUSR2; a child of it is ended, too.
        waits = "trap 'echo in the phase of waiting' USR2; sleep 1000 & echo $! >%s; wait; wait"
        programs = self.programs(trireme=waits % self.path("child"))
        with self.assertRaisesRegex(runs.Failed, "in the phase of waiting"):
            runs.call([programs + "/trireme"], 1)
        with open(self.path("child")) as file:
            pid = int(file.read())
        harness.wait_for(lambda: not harness.alive([pid]), "the end of the child")

    def test_variants_are_compared_beside_the_first(self):
        code = (
            "import sys; sys.path.insert(0, %r); import variants\n"
            "other = variants.Variant('other', ('run.seed=2',), variants.MODELS, False)\n"
            "variants.VARIANTS.append(other)\n"
            "import acceptance; sys.exit(acceptance.main())" % GPU
        )
        words = self.words("parity")
        result = call(sys.executable, "-c", code, *words[2:])
        found = read_results(self.out)["parity"]
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(len(found["runs"]), 8)
        self.assertEqual(found["runs"][1]["sets"], ["run.seed=2"])
        self.assertEqual(
            sorted(found["failed"]),
            ["gpt bfloat16, other", "gpt float32, other", "resnet bfloat16, other"]
            + ["resnet float32, other"],
        )

    def test_the_forms_of_a_gpu(self):
        def names(model, device):
            return [name for name, _ in variants.of(model, device)]

        self.assertEqual(names("gpt2", "cuda"), ["", "fused softmax"])
        self.assertEqual(names("resnet50", "cuda"), ["", "joined norms"])
        self.assertEqual(names("resnet50", "cpu"), [""])

    def test_gradients_are_compared(self):
        result, found = self.acceptance("gradients")
        self.assertEqual(result.returncode, 0, result.stdout)
        steps = found["gradients"]["gradients"]
        self.assertEqual(
            [(step["model"], step["run"]) for step in steps],
            [
                ("resnet50", "float32"),
                ("resnet50", "bfloat16"),
                ("gpt", "float32"),
                ("gpt", "bfloat16"),
                ("gpt", "bfloat16, deterministic"),
            ],
        )
        self.assertEqual([step["tensors"] for step in steps[:2]], [161, 161])
        for step in steps:  # otherwise the second run on the CPU would measure nothing
            self.assertGreater(step["tensors_with_tolerance"], 0.9 * step["tensors"], step)

    def test_a_wrong_gradient_is_named(self):
        class Result:
            def __init__(self, loss, **weights):
                self.loss = loss
                self.weights = {
                    name: struct.pack("<4f", *values) for name, values in weights.items()
                }

        start = Result(0, a=(1, 2, 3, 4), b=(1, 1, 1, 1)).weights
        reference = Result(2.0, a=(0, 1, 2, 3), b=(1, 1, 1, 0.5))
        other = Result(2.00001, a=(0.0001, 1, 2, 3), b=(1, 1, 1, 0.50001))
        near = Result(2.0001, a=(0.001, 1, 2, 3), b=(1, 1, 1, 0.5001))
        share, wrong = gradients.compare(start, reference, other, near, "float32")
        self.assertEqual(wrong, [])
        self.assertGreater(share, 0)
        for name, values in (("a", (0, 1, 2, 3.01)), ("b", (1, 1, 1, float("nan")))):
            found = Result(2.0, **{"a": (0, 1, 2, 3), "b": (1, 1, 1, 0.5), name: values})
            _, wrong = gradients.compare(start, reference, other, found, "float32")
            self.assertEqual([line.split(":")[0] for line in wrong], [name])
        found = Result(2.001, a=(0, 1, 2, 3), b=(1, 1, 1, 0.5))
        _, wrong = gradients.compare(start, reference, other, found, "float32")
        self.assertEqual(len(wrong), 1)
        self.assertIn("the loss is 2.001", wrong[0])
        # Block by block in the order of backward.
        for names in (
            [
                "fc.bias",
                "layer4.0.bn1.weight",
                "layer1.10.conv1.weight",
                "layer1.2.bn3.bias",
                "bn1.bias",
            ],
            ["ln_f.bias", "h.10.mlp.c_fc.bias", "h.2.attn.c_attn.weight", "wte.weight"],
        ):
            weights = {name: (1, 2, 3, 4) for name in sorted(names)}
            wrong_weights = {name: (9, 9, 9, 9) for name in weights}
            _, wrong = gradients.compare(
                Result(0, **{name: (2, 2, 2, 2) for name in weights}).weights,
                Result(2.0, **weights),
                Result(2.0, **weights),
                Result(2.0, **wrong_weights),
                "float32",
            )
            self.assertEqual([line.split(":")[0] for line in wrong], names)
        fused, plain = gradients.FUSED, gradients.PLAIN
        for failures, blames_fusions in (
            ({fused: ["b", "a"], plain: []}, True),
            ({fused: ["b", "a"], plain: ["b"]}, False),
            ({fused: ["b", "a"]}, False),  # the CPU has no plain run
            ({fused: [], plain: []}, False),
        ):
            named = {("gpt", run): lines for run, lines in failures.items()}
            line = gradients.explain("gpt", "", named)
            self.assertEqual("without fusions all agrees" in (line or ""), blames_fusions, line)

    def test_a_program_that_fails_fails_its_section(self):
        programs = self.programs(
            test_ops_good="exit 0",
            test_ops_bad="echo what went wrong; exit 1",
            test_ops_skipped="echo 'skipped: no CUDA device'; exit 77",
            test_ops_linear="test $TRIREME_TEST_FUSIONS = off",
        )
        result, found = self.acceptance("tests", bin_folder=programs)
        self.assertEqual(result.returncode, 1, result.stdout)
        tests = found["tests"]
        self.assertEqual(tests["programs"]["test_ops_good"]["verdict"], "passed")
        self.assertEqual(tests["programs"]["test_ops_linear without fusions"]["verdict"], "passed")
        # On a machine with a GPU a skipped test is a failure.
        self.assertEqual(
            sorted(tests["failed"]), ["test_ops_bad", "test_ops_linear", "test_ops_skipped"]
        )
        self.assertIn("what went wrong", tests["failed"]["test_ops_bad"])
        self.assertIn("no CUDA device", tests["failed"]["test_ops_skipped"])
        self.assertRegex(result.stdout, r"\| tests \| FAILED \|")

    def test_results_are_complete_when_it_is_killed(self):
        programs = self.programs(test_ops_endless="echo $$ >%s; sleep 1000" % self.path("pid"))
        for number in (signal.SIGTERM, signal.SIGKILL):
            words = self.words("layouts,tests,kernels", bin_folder=programs)  # only that of tests
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            harness.wait_for(
                lambda: os.path.exists(self.path("pid")) and os.path.getsize(self.path("pid")),
                "the endless test",
            )
            process.send_signal(number)
            self.assertNotEqual(process.wait(harness.PATIENCE), 0)
            found = read_results(self.out)
            self.assertFalse(found["layouts"]["passed"])
            with open(self.out + "/summary.md") as file:
                summary = file.read()
            if number == signal.SIGTERM:
                self.assertIn("| tests | FAILED |", summary)
                self.assertEqual(list(found["tests"]["failed"]), ["test_ops_endless"])
                self.assertEqual(found["kernels"]["summary"], "not run: ended by a signal")
            else:
                self.assertIn("| tests | RUNNING when this was written |", summary)
            with open(self.path("pid")) as file:
                pid = int(file.read())
            os.remove(self.path("pid"))
            if number == signal.SIGTERM:  # it ends its programs
                harness.wait_for(lambda: not harness.alive([pid]), "the end of the endless test")
            else:
                os.killpg(pid, signal.SIGKILL)

    def test_results_fit_into_the_limit(self):
        out = self.path("large")
        with unittest.mock.patch.object(results, "MAX_BYTES", 300_000):
            found = results.Results(out, self.path("scratch"), ["tests"])
            os.makedirs(found.path("logs"))
            for name, size in (("logs/small.log", 1000), ("logs/large.jsonl", 400_000)):
                with open(found.path(name), "wb") as file:
                    file.write(os.urandom(size))
            with open(found.path("logs/long.log"), "w") as file:
                file.write("begin\n" + "x" * 1_000_000 + "\nend\n")
            found.end({"section": "tests", "passed": True, "seconds": 1, "summary": "fine"})
        self.assertLess(os.path.getsize(out + "/results.tar.gz"), 300_000)
        with tarfile.open(out + "/results.tar.gz") as packed:
            names = packed.getnames()
            text = packed.extractfile("logs/long.log").read().decode()
        self.assertEqual(sorted(names), ["logs/long.log", "logs/small.log", "tests.json"])
        self.assertTrue(text.startswith("begin") and text.endswith("end\n"))
        self.assertLess(len(text), results.MAX_LOG_BYTES + 100)
        with open(out + "/summary.md") as file:
            self.assertIn("logs/large.jsonl", file.read())

    def test_runs_of_a_killed_section_are_kept(self):
        programs = self.programs(
            test_ops_linear="exit 1", test_ops_slow="echo $$ >%s; sleep 1000" % self.path("slow")
        )
        code = (
            "import sys; sys.path.insert(0, %r); import results; results.PUBLISH_SECONDS = 0\n"
            "import acceptance; sys.exit(acceptance.main())" % GPU
        )
        words = self.words("tests", bin_folder=programs)
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words[2:]], stdout=subprocess.DEVNULL
        )

        def both_failed():
            found = read_results(self.out) if os.path.exists(self.out + "/results.tar.gz") else {}
            return len(found.get("tests", {}).get("failed", {})) == 2

        harness.wait_for(both_failed, "the result of both runs")
        slow = self.path("slow")
        harness.wait_for(lambda: os.path.exists(slow) and os.path.getsize(slow), "the endless test")
        process.kill()
        process.wait()
        with open(slow) as file:
            os.killpg(int(file.read()), signal.SIGKILL)
        self.assertEqual(
            sorted(read_results(self.out)["tests"]["failed"]),
            ["test_ops_linear", "test_ops_linear without fusions"],
        )

    def test_other_lines_of_a_program_are_no_results(self):
        output = 'warning: x\n{"a": 1}\n{"a": 2}\nException ignored in: <y>\n{"a"'
        self.assertEqual(runs.json_lines(output), [{"a": 1}, {"a": 2}])
        self.assertEqual(runs.last_json(output), {"a": 2})
        with self.assertRaisesRegex(runs.Failed, "(?s)no result.*no module"):
            runs.last_json("no module torch")
        programs = self.programs(
            bench_ops='echo \'{"op": "copy", "gb_per_s": 2}\'; echo a library warns',
            trireme="exit 1",
        )
        _, found = self.acceptance("kernels", bin_folder=programs)
        self.assertEqual(len(found["kernels"]["ops"]), 1)

    def test_a_failure_shows_its_first_and_last_lines(self):
        text = "\n".join(["command", *("line %d" % i for i in range(100)), "the reason"])
        lines = results.both_ends(text)
        self.assertEqual((lines[0], lines[-1]), ("command", "the reason"))
        self.assertEqual(len(lines), results.SUMMARY_LINES)

    def test_a_damaged_earlier_archive_costs_a_note(self):
        whole = self.path("whole.tar.gz")

        def pack(**files):
            with tarfile.open(whole, "w:gz") as packed:
                for name, text in files.items():
                    entry = tarfile.TarInfo(name.replace("__", "/"))
                    entry.size = len(text)
                    packed.addfile(entry, io.BytesIO(text))
            with open(whole, "rb") as file:
                return file.read()

        right = b'{"passed": true, "summary": "fine", "seconds": 1, "failed": {}}'
        for content in (
            pack(**{"parity.json": right})[:60],
            b"no tar",
            b"",
            pack(**{"logs": b"x", "logs__x": b"x"}),
            pack(**{"n" * 300: b"x"}),
            *(
                pack(**{"parity.json": text, "notes.txt": b"\xff\n"})
                for text in (b"[" * 200_000, b"{not", b"[1]", b'{"a": 1}', b"\xff")
            ),
            pack(**{"parity.json": right.replace(b"1", b"null")}),
            pack(**{"parity.json": right.replace(b"true", b'"maybe"')}),
        ):
            with open(whole, "wb") as file:
                file.write(content)
            scratch, out = tempfile.mkdtemp(dir=self.folder), tempfile.mkdtemp(dir=self.folder)
            found = results.Results(out, scratch, ["parity", "tests"], [whole])
            self.assertIsNone(found.of("parity"), content)
            found.end({"section": "tests", "passed": True, "seconds": 1, "summary": "fine"})
            self.assertTrue(read_results(out)["tests"]["passed"])

    def test_wrong_options_are_refused(self):
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        file = self.path("file")
        open(file, "w").close()
        for more, message in (
            (("--sections", ""), 'unknown section ""'),
            (("--patience", "nan"), "--patience: must be"),
            (("--patience", "0"), "--patience: must be"),
            (("--seconds", "-5"), "--seconds: must be"),
            (("--batch", "-1"), "--batch: must not"),
            (("--earlier", fifo), "is no file"),
            (("--earlier", self.folder), "is no file"),
            (("--bin", "/missing"), "--bin: /missing is no folder"),
            (("--reference", "/missing"), "scripts/gpu/parity.py makes it"),
            (("--out", file), "--out: "),
            (("--out", ""), "--out: "),
            (("--work", file), "--work: "),
        ):
            result = call(*self.words("parity"), *more)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(message, result.stdout)
            self.assertNotIn("Traceback", result.stdout)

    def test_programs_leave_neither_children_nor_large_logs(self):
        programs = self.programs(
            test_ops_endless="yes this is endless",
            test_ops_forks="sleep 1000 & echo $! >%s; exit 0" % self.path("forked"),
        )
        with unittest.mock.patch.object(runs, "MAX_OUTPUT", 1 << 20):
            with self.assertRaisesRegex(runs.Failed, "wrote more than 1 MiB"):
                runs.call([programs + "/test_ops_endless"], 60)
            runs.call([programs + "/test_ops_forks"], 60)
        with open(self.path("forked")) as file:
            pid = int(file.read())
        harness.wait_for(lambda: not harness.alive([pid]), "the end of the child")

    def test_results_that_cannot_be_written_do_not_end_a_session(self):
        out, scratch = tempfile.mkdtemp(dir=self.folder), tempfile.mkdtemp(dir=self.folder)
        found = results.Results(out, scratch, ["tests"])
        result = {"section": "tests", "passed": True, "seconds": 1, "summary": "fine"}
        with unittest.mock.patch.object(os, "replace", side_effect=OSError(28, "No space left")):
            found.begin("tests")
            self.assertEqual(os.listdir(out), [])
        found.end(result)
        self.assertTrue(read_results(out)["tests"]["passed"])

    def test_archives_cannot_write_elsewhere(self):
        with tarfile.open(self.path("bad.tar.gz"), "w:gz") as packed:
            for name in ("../outside", "inside"):
                entry = tarfile.TarInfo(name)
                entry.size = 1
                packed.addfile(entry, io.BytesIO(b"x"))
        found = results.Results(
            self.path("o"), self.path("deep/scratch"), [], [self.path("bad.tar.gz")]
        )
        self.assertTrue(os.path.exists(found.path("inside")))
        self.assertFalse(os.path.exists(self.path("deep/scratch/outside")))

    def test_algorithms_go_from_part_to_part(self):
        first = "trireme-algorithms 1\n"
        table = self.path("algorithms.txt")
        for lines in (["1\ta\told", "2\tb\tkept"], ["3\ta\tnew", "4\tc\tadded"]):
            with open(self.path("found.txt"), "w") as file:
                file.write(first + "".join(line + "\n" for line in lines))
            runs.merge_algorithms(table, self.path("found.txt"))
        with open(table) as file:
            self.assertEqual(file.read(), first + "3\ta\tnew\n2\tb\tkept\n4\tc\tadded\n")
        # A run writes a table, which the next session gives to its runs.
        writes = (
            'folder=$(sed -n \'s/^folder = "\\(.*\\)"/\\1/p\' "$2"); mkdir -p "$folder"\n'
            'cp %s "$folder/algorithms.txt"; exit 1' % table
        )
        _, found = self.acceptance("layouts", bin_folder=self.programs(trireme=writes))
        self.assertIn("kept", found["algorithms.txt"])
        earlier = self.out + "/results.tar.gz"
        reads = self.programs(trireme='grep kept "$TRIREME_ALGORITHMS"; exit 1')
        _, found = self.acceptance("layouts", "--earlier", earlier, bin_folder=reads)
        self.assertIn("kept", found["layouts"]["failed"]["gpt 1 rank"])

    def test_rates_are_timed_after_clocks_settled(self):
        # Ten samples a second in pieces of ten: a second each. The first one chooses algorithms.
        rates, seconds = networks.settled([0.5] + [10.0] * 20, 10)
        self.assertEqual(len(rates), 20 - networks.SETTLE_SECONDS)
        self.assertEqual(seconds, 20 - networks.SETTLE_SECONDS)
        self.assertEqual(networks.settled([10.0] * 3, 10)[0], [])

    def test_a_machine_file_can_be_planned_with(self):
        ops = [
            {"op": name + " 1 x 2", "gb_per_s": 2000.0}
            for name in ("copy", "batch_norm_forward", "batch_norm_backward", "layer_norm_forward")
            + ("gelu_backward", "max_pool_forward", "update_adamw", "row_square_sums")
        ]
        for some in (None, ops):
            path = self.path("machine.toml")
            with open(path, "w") as file:
                file.write(measured_machine.machine_file(MEASURED, some, "2026-11-26"))
            with open(self.path("plan.toml"), "w") as file:
                file.write(
                    '[run]\nname = "plan"\nstop = "1 step"\n'
                    + networks.GPT2 % {"data": "data", "batch": 32}
                )
            result = call(
                *(harness.TRIREME, "plan", self.path("plan.toml"), "--machine", path),
                *("--assume", "tokens:10000000,50304", "--ranks", "1"),
            )
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertIn("nvidia-h100-80gb-hbm3", result.stdout)

    def test_kernel_times_are_read(self):
        header = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        row = '"%d","%s","gpu__time_duration.sum","%s","%s"\n'
        text = "==PROF== Connected\n" + header
        text += row % (0, "a", "us", "2.5") + row % (1, "b", "nsecond", "1,200")
        text += row % (2, "b", "ns", "4,000")
        times = kernel_profile.kernel_times(text)
        self.assertEqual([time[:2] for time in times], [["b", 2], ["a", 1]])
        self.assertAlmostEqual(times[0][2], 5.2e-6)
        with self.assertRaisesRegex(runs.Failed, "no permission"):
            kernel_profile.kernel_times("==ERROR== no permission")

    def test_the_network_device_lo_is_brought_up(self):
        code = "import sys; sys.path.insert(0, %r); import loopback; print(loopback.bring_up())"
        alone = ["unshare", "--net"]
        if subprocess.run([*alone, "true"], stderr=subprocess.PIPE).returncode != 0:
            self.skipTest("this user may not make a network namespace")
        result = call(*alone, sys.executable, "-c", code % GPU)
        self.assertIn("lo: was down, brought up", result.stdout)
        self.assertIn("lo: up", call(sys.executable, "-c", code % GPU).stdout)

    def test_an_unknown_section_is_refused(self):
        result = call(*self.words("parity,speed"))
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn('unknown section "speed"', result.stdout)


if __name__ == "__main__":
    unittest.main()
