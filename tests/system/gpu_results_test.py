# SPDX-License-Identifier: Apache-2.0
"""Tests how the GPU acceptance keeps its results (scripts/gpu/results.py, runs.py).

They are complete whenever it is killed, and survive hanging programs, endless output, full disks
and damaged archives of earlier parts. Wrong options are refused.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock

import harness
from gpu_acceptance_case import GPU, AcceptanceCase, call, read_results

import results
import runs


class GpuResults(AcceptanceCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.mkdir(cls.reference)
        with open(cls.reference + "/losses.json", "w") as file:
            json.dump({"gpt": {}, "resnet": {}}, file)

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

    def test_other_lines_of_a_program_are_no_results(self):
        output = 'warning: x\n{"a": 1}\n{"a": 2}\nException ignored in: <y>\n{"a"'
        self.assertEqual(runs.json_lines(output), [{"a": 1}, {"a": 2}])
        self.assertEqual(runs.last_json(output), {"a": 2})
        with self.assertRaisesRegex(runs.Failed, "(?s)no result.*no module"):
            runs.last_json("no module torch")
        row = {"op": "copy", "rows": 2, "columns": 3, "gb_per_s": 2, "of_copy": 1}
        programs = self.programs(trireme="echo '%s'; echo a library warns" % json.dumps(row))
        _, found = self.acceptance("kernels", bin_folder=programs)
        self.assertEqual(found["kernels"]["ops"], 4 * [row])

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

    def test_an_unknown_section_is_refused(self):
        result = call(*self.words("parity,speed"))
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn('unknown section "speed"', result.stdout)

    def test_a_hanging_run_says_in_which_phase(self):
        # The program prints its phase on SIGUSR2; a child of it is ended, too.
        waits = "trap 'echo in the phase of waiting' USR2; sleep 1000 & echo $! >%s; wait; wait"
        programs = self.programs(trireme=waits % self.path("child"))
        with self.assertRaisesRegex(runs.Failed, "in the phase of waiting"):
            runs.call([programs + "/trireme"], 1)
        with open(self.path("child")) as file:
            pid = int(file.read())
        harness.wait_for(lambda: not harness.alive([pid]), "the end of the child")

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


if __name__ == "__main__":
    unittest.main()
