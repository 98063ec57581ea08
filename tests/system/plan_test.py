"""Tests `trireme plan`: the prediction of a deck on a machine."""

import json
import resource
import time
import unittest

import harness


def cpu_machine():
    """Returns a machine file of a CPU with figures that are easy to remember."""
    origin = 'source = "made up for a test"\ndate = "2026-11"\n'
    tables = {
        "device": 'kind = "cpu"\nunits = 4\nthreads = 1\n',
        "peak": "float32 = 1e11\n",
        "memory": "bytes = 8_000_000_000\nbytes_per_s = 1e10\n",
        "overhead": "launch_seconds = 1e-6\n",
        "node": "devices = 1\ncores = 4\n",
        "links.node": "latency_seconds = 1e-6\nbytes_per_s = 1e9\n",
        "efficiency.all.memory_bound": "bandwidth = 0.8\n",
    }
    for kind in ("product", "convolution", "attention"):
        for direction in ("forward", "backward"):
            tables["efficiency.all.%s_%s" % (kind, direction)] = "compute = 0.5\n"
    text = '[machine]\nname = "made_up"\ntested = false\n'
    return text + "".join("[%s]\n%s%s" % (name, origin, keys) for name, keys in tables.items())


CPU_MACHINE = cpu_machine()


class Plan(harness.Case):
    def plan(self, *arguments, expect=0):
        result = harness.run("plan", *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result

    def prediction(self, *arguments):
        return json.loads(self.plan(*arguments, "--json", "-").stdout)

    def test_memory_is_that_of_check(self):
        with open(self.path("cpu.toml"), "w") as file:
            file.write(CPU_MACHINE)
        arguments = ("deck.toml", "--ranks", "4", "--set", "run.device=cpu")
        planned = self.prediction(*arguments, "--machine", "./cpu.toml")
        checked = harness.run("check", *arguments, "--json", cwd=self.folder)
        memory = json.loads(checked.stdout)["memory"]
        self.assertEqual(planned["memory"]["bytes"], memory["bytes"])
        self.assertTrue(planned["memory"]["fits"])
        largest = max(place["memory"]["total"] for place in planned["places"])
        self.assertEqual(largest, memory["bytes"])

    def test_the_parts_of_the_step_add_up(self):
        planned = self.prediction("deck.toml", "--machine", "h100", "--ranks", "4")
        step = planned["step"]
        parts = step["forward_s"] + step["backward_s"] + step["update_s"] + step["idle_s"]
        self.assertAlmostEqual(step["seconds"], parts + sum(step["waits_s"].values()), delta=1e-9)
        self.assertAlmostEqual(planned["rate"]["samples_per_s"] * step["seconds"], 64, delta=1e-6)

    def test_lines_name_what_the_json_has(self):
        planned = self.prediction("deck.toml", "--machine", "h100", "--ranks", "4")
        lines = self.plan("deck.toml", "--machine", "h100", "--ranks", "4", "--ops").stdout
        for name in ("machine", "layout", "memory", "compute", "step", "rate", "checkpoint", "run"):
            self.assertIn("%-11s%s" % (name, planned[name]["text"]), lines)
        for op in planned["places"][0]["ops"]:
            self.assertIn(op["op"], lines)
        self.assertIn("reduce_bucket", lines)

    def test_400_billion_weights_on_16384_ranks_answer_soon(self):
        self.write_deck(harness.GPT_DECK, "large.toml")
        changes = {
            "model.layers": 126,
            "model.width": 16384,
            "model.heads": 128,
            "model.context": 4096,
            "batch.global": 2048,
            "batch.micro": 1,
            "parallel.tensor": 8,
            "parallel.pipeline": 16,
        }
        arguments = ["large.toml", "--ranks", "16384", "--assume", "tokens:1000000000,128000"]
        for key, value in changes.items():
            arguments += ["--set", "%s=%s" % (key, value)]
        for command in (["check"], ["plan", "--machine", "h100"]):
            start = time.monotonic()
            result = harness.run(*command, *arguments, cwd=self.folder)
            # 0.4 s and 1 s alone. Lists of all rows took 25 s.
            self.assertLess(time.monotonic() - start, 15)
            self.assertEqual(result.returncode, 0, result.text)

    def test_a_run_is_proved_without_machine(self):
        proved = json.loads(self.plan("deck.toml", "--prove", "--ranks", "4", "--json", "-").stdout)
        row = proved["rows"][0]
        self.assertTrue(row["result"]["free_of_deadlock"])
        self.assertEqual(row["record"]["ranks"], 4)
        self.assertEqual(row["record"]["recorded_ranks"], 2)
        self.assertGreater(row["parts"]["evaluation_rounds"], 0)
        kinds = {kind["group"]: kind for kind in row["groups"]["kinds"]}
        self.assertEqual(kinds["data"]["ranks"], 4)
        self.assertGreater(kinds["data"]["collectives"], 0)
        lines = self.plan("deck.toml", "--prove", "--ranks", "4").stdout
        for name in ("parts", "record", "simulated", "result"):
            self.assertIn("%-11s%s" % (name, row[name]["text"]), lines)
        self.assertTrue(lines.endswith("result     free of deadlock\n"), lines)

    def test_16384_ranks_are_proved_soon(self):
        self.write_deck(harness.GPT_DECK, "large.toml")
        changes = {
            "model.layers": 126,
            "model.width": 16384,
            "model.heads": 128,
            "model.context": 4096,
            "batch.global": 2048,
            "batch.micro": 1,
            "parallel.tensor": 8,
            "parallel.pipeline": 16,
        }
        arguments = ["large.toml", "--ranks", "16384", "--prove", "--machine", "h100"]
        arguments += ["--assume", "tokens:1000000000,128000"]
        arguments += ["--assume", "validation=tokens:100000000,128000"]
        for key, value in changes.items():
            arguments += ["--set", "%s=%s" % (key, value)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = self.plan(*arguments).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # 5 s of one core. The time that passes depends on what else runs.
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 30)
        # Kilobytes, of the largest program that this test has run so far: 60 MB alone.
        self.assertLess(after.ru_maxrss, 5e5)
        self.assertIn("256 ranks for all 16384 of the run", lines)
        self.assertIn("result     free of deadlock", lines)

    def test_mistakes_are_refused(self):
        for arguments, saying in (
            (("deck.toml",), "--machine"),
            (("deck.toml", "--prove", "--ops"), "--ops"),
            (("deck.toml", "--prove", "--ranks", "3"), "batch.global"),
            (("deck.toml", "--machine", "h10"), "did you mean h100?"),
            (("deck.toml", "--machine", "./missing.toml"), "missing.toml"),
            (("deck.toml", "--machine", "h100", "--ranks", "3"), "batch.global"),
            (("missing.toml", "--machine", "h100"), "missing.toml"),
        ):
            result = self.plan(*arguments, expect=2)
            self.assertIn(saying, result.text)

    def test_a_file_is_written_and_nothing_else(self):
        self.plan("deck.toml", "--machine", "h100", "--ranks", "4", "--json", "plan.json")
        with open(self.path("plan.json")) as file:
            self.assertEqual(json.load(file)["layout"]["ranks"], 4)


if __name__ == "__main__":
    unittest.main()
