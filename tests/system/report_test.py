# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme report`: the page and the JSON of runs that have ended, were restarted, went back
to a checkpoint or are damaged; and the page in a browser, with Debian's chromium."""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import unittest

import browser
import harness

EARLIER = pathlib.Path(__file__).resolve().parents[1] / "data" / "earlier"
MAX_PAGE_BYTES = 2_000_000
HOSTILE = '</script><script>document.title="executed"</script><img src=x onerror=alert(1)>'


def train_row(step, loss, **more):
    return {
        "kind": "train",
        "step": step,
        "epoch": step / 1000,
        "samples": step * 128,
        "loss": loss,
        "rate": 0.1,
        "grad_norm": 0.5,
        "loss_scale": 1,
        "samples_per_s": 6000.5,
        "step_s": 0.0212345,
        "data_s": 0.0001356,
        "forward_s": 0.0068712,
        "backward_s": 0.0137123,
        "comm_exposed_s": 0.0004412,
        "optimizer_s": 5.4123e-05,
        "memory_host_bytes": 128237568,
        "elapsed_s": step * 0.0213,
        **more,
    }


class Page(harness.Case):
    def report(self, *runs, out="page.html", expect=0):
        result = harness.run("report", *runs, "--out", out, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return pathlib.Path(self.path(out)).read_text() if expect == 0 else result.stderr

    def figures(self, *runs):
        result = harness.run("report", *runs, "--json", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return json.loads(result.stdout)["runs"]

    def write_run(self, name, rows):
        """Makes a run folder of these rows of metrics.jsonl: values, or texts."""
        os.makedirs(self.path(name), exist_ok=True)
        with open(self.path(name + "/metrics.jsonl"), "w") as file:
            for row in rows:
                file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")

    def train_with_faults(self):
        """A run that is killed, resumed, and returns to a checkpoint."""
        options = ["--allow-faults", "--set", "health.rollback_after=3"]
        options += [
            "--set",
            "checkpoint.async=false",
            "--set",
            "monitor.tensors=4 steps",
            "--set",
            "run.stop=30 steps",
        ]
        self.train(*options, "--set", "debug.fault=kill rank 0 step 12", expect=-signal.SIGKILL)
        os.remove(self.path("run/run.lock"))
        self.train(*options, "--set", "debug.fault=nan rank 0 step 17..19")


class Report(Page):
    def test_a_run_with_a_restart_and_a_rollback(self):
        self.train_with_faults()
        self.evaluate_confusion()
        page = self.report("run")
        for words in (
            "ended with 0",
            "restart at step 10: resumed from step 10",
            "rollback at step",
            "Time of a step",
            "The steps are bound by",
            "steps done again",
            "data 1 x tensor 1 x pipeline 1",
            "kind = &quot;resnet&quot;",
            "Norms of tensors",
            "confusion.csv",
            "decks/0002.toml",
        ):
            self.assertTrue(words in page, words)
        (run,) = self.figures("run")
        self.assertEqual(run["curves"]["train"]["step"][-1], 30)
        rows = harness.read_rows(self.path("run"))
        losses = [row["loss"] for row in rows if row["kind"] == "train" and row["loss"]]
        curve = run["curves"]["train"]["values"]["loss"]["mean"]
        self.assertEqual(len([value for value in curve if value is not None]), len(losses))
        self.assertAlmostEqual(curve[-1], losses[-1], delta=1e-5 * abs(losses[-1]))
        self.assertEqual(run["events"]["counts"]["rollback"], 1)
        self.assertEqual(
            [start["restart"] for start in run["starts"]["shown"]], ["fresh", "resume"]
        )
        parts = run["account"]["parts"].values()
        self.assertAlmostEqual(sum(part["seconds"] for part in parts), run["account"]["wall_s"], 3)
        self.assertEqual(sorted(run["tensors"]["step"]), run["tensors"]["step"])
        self.assertEqual(len(run["tensors"]["update_ratio"]), len(run["tensors"]["tensors"]))
        total = sum(score["samples"] for score in run["confusions"][0]["scores"])
        self.assertEqual(total, 90)

    def evaluate_confusion(self):
        result = harness.run(
            "evaluate",
            "deck.toml",
            *("--checkpoint", "run/checkpoints/best.h5", "--confusion", "run/confusion.csv"),
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, 0, result.text)

    def test_several_runs_have_the_differences_of_their_decks(self):
        self.train("--set", "run.stop=5 steps")
        self.train(
            "--set", "run.stop=5 steps", "--set", "run.folder=other", "--set", "schedule.rate=0.2"
        )
        page = self.report("run", "other")
        self.assertTrue("<th>schedule.rate</th><td>0.1</td><td>0.2</td>" in page)
        self.assertFalse("<th>optimizer.momentum</th>" in page)
        self.assertEqual([run["name"] for run in self.figures("run", "other")], ["run", "other"])
        # Two folders of one name are told apart.
        os.makedirs(self.path("more"))
        shutil.copytree(self.path("run"), self.path("more/run"))
        names = [run["name"] for run in self.figures("run", "more/run")]
        self.assertEqual(names, ["run", "more/run"])
        self.assertIn("at most 24", self.report(*["run"] * 25, expect=2))
        self.assertIn("is given twice", self.report("run", "more/../run", expect=2))
        # A deck that cannot be read does not hide the differences of the others.
        pathlib.Path(self.path("more/run/deck.toml")).write_text("[model\n")
        page = self.report("more/run", "run", "other")
        self.assertIn("<th>schedule.rate</th><td>?</td><td>0.1</td><td>0.2</td>", page)

    def test_a_page_is_replaced_and_nothing_else(self):
        self.write_run("run", [train_row(1, 1.0)])
        self.report("run")
        first = os.stat(self.path("page.html")).st_ino
        self.report("run")
        self.assertNotEqual(os.stat(self.path("page.html")).st_ino, first)
        mine = "<!DOCTYPE html>\n<html>mine"
        pathlib.Path(self.path("other.html")).write_text(mine)
        self.assertIn("is no report file", self.report("run", out="other.html", expect=2))
        self.assertEqual(pathlib.Path(self.path("other.html")).read_text(), mine)
        for name in ("deck.toml", "run/STOP", "run/metrics.jsonl"):
            self.assertIn("must end in .html", self.report("run", out=name, expect=2))
        self.assertFalse(os.path.exists(self.path("run/STOP")))
        self.assertIn("no folder", self.report("run", out="none/page.html", expect=2))
        self.assertIn("is no run folder", self.report("data", expect=2))
        self.assertIn("no such folder", self.report("nothing", expect=2))
        both = harness.run("report", "run", "--out", "a.html", "--json", cwd=self.folder)
        self.assertEqual((both.returncode, os.path.exists(self.path("a.html"))), (2, False))

    def test_damaged_files_cost_their_own_part_alone(self):
        self.train("--set", "run.stop=10 steps")
        clean = self.figures("run")[0]["curves"]
        with open(self.path("run/metrics.jsonl"), "ab") as file:
            file.write(b"no JSON\n\xff\xfe\n{}\n[1]\n" + b"x" * 2_000_000 + b'\n{"kind": "tra')
        self.assertEqual(self.figures("run")[0]["curves"], clean)
        self.assertIn("cannot be read", self.report("run"))
        for name, words in (
            ("deck.toml", "deck.toml"),
            ("environment.json", "is not JSON"),
            ("exit.json", "is not JSON"),
            ("prediction.json", "is not JSON"),
        ):
            pathlib.Path(self.path("run/" + name)).write_bytes(b"[model\xff")
            self.assertTrue(any(words in text for text in self.figures("run")[0]["troubles"]), name)
        pathlib.Path(self.path("run/c.csv")).write_text("true\\predicted,a,b\na,1\n")
        os.symlink("/etc/passwd", self.path("run/link.csv"))
        os.mkfifo(self.path("run/pipe.csv"))
        page = self.report("run")
        self.assertTrue("row 1 has 2 cells" in page)
        self.assertFalse("root:" in page)
        self.assertEqual(self.figures("run")[0]["curves"], clean)

    def test_runs_of_an_earlier_version(self):
        for name in ("mlp", "resnet", "gpt"):
            shutil.copytree(EARLIER / name, self.path(name), dirs_exist_ok=True)
            self.assertIn("<h2>Curves</h2>", self.report(name), name)

    def test_ten_thousand_events_and_a_long_run(self):
        events = [
            {"kind": "event", "step": i, "event": "skipped_step", "detail": "why " * 100}
            for i in range(10_000)
        ]
        self.write_run("events", events)
        page = self.report("events")
        self.assertTrue("9800 more events" in page)
        self.assertLess(len(page), 300_000)
        # One spike among 100,000 rows, and one in a short run.
        rng = random.Random(1)
        for steps in (30, 100_000):
            self.write_run(
                "long",
                [
                    train_row(step, 123.456 if step == steps // 3 else rng.random())
                    for step in range(1, steps + 1)
                ],
            )
            page = self.report("long")
            self.assertLess(len(page), MAX_PAGE_BYTES)
            self.assertTrue("123.456" in page)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(memory, 300 << 10, "KiB")

    def test_many_large_runs_make_a_page_of_at_most_two_megabytes(self):
        names = []
        for run in range(24):
            names.append(f"run{run}")
            rows = [train_row(step, 1 + random.random()) for step in range(1, 700)]
            rows += [
                {"kind": "tensors", "step": step, "tensor": f"layer{i}", "gradient_norm": i * step}
                for step in range(1, 65)
                for i in range(40)
            ]
            rows += [
                {"kind": "event", "step": i, "event": "restart", "detail": '"' * 300}
                for i in range(300)
            ]
            self.write_run(names[-1], rows)
        page = self.report(*names)
        self.assertLess(len(page), MAX_PAGE_BYTES)
        self.assertIn("Norms of tensors", page)

    def test_a_run_that_diverged_says_so(self):
        rows = [train_row(step, 1 / step) for step in range(1, 50)]
        rows += [train_row(step, None) for step in range(50, 60)]
        rows.append(
            {"kind": "evaluate", "step": 59, "epoch": 1, "split": "validation", "loss": None}
        )
        rows.append({**rows[-1], "step": 58, "loss": 0.5, "top1": 0.25})
        rows[-1], rows[-2] = rows[-2], rows[-1]
        self.write_run("run", rows)
        page = self.report("run")
        self.assertIn('<th>training loss</th><td colspan="1"><span class="bad">not finite', page)
        self.assertIn(
            "validation: loss not finite (best 0.5), top-1 not finite (best 25.00 %)", page
        )
        self.assertNotIn("loss", self.figures("run")[0]["latest"])

    def test_extreme_numbers_make_a_page_without_nan(self):
        for losses in (
            [2.3026, 2.3027, 2.3028],
            [1e-300, 1e300],
            [-1.7e308, 1.7e308],
            [0.0],
            [5.0] * 5,
        ):
            self.write_run("run", [train_row(10**6 + i, loss) for i, loss in enumerate(losses)])
            page = self.report("run")
            drawing = page[page.index("<svg") : page.rindex("</svg>")]
            self.assertNotRegex(drawing, r"\b(nan|inf)\b", losses)
            ticks = re.findall(r"<text[^>]*>([^<]*)</text>", drawing[: drawing.index("</svg>")])
            self.assertLess(len(ticks), 25)
            # Neighbors differ.
            for one, other in zip(ticks, ticks[1:]):
                self.assertNotEqual(one, other, losses)
        # One row is a dot.
        self.write_run("run", [train_row(1, 2.0)])
        self.assertRegex(self.report("run"), r'data-form="dots" d="M[\d. ]+h0"')

    def test_a_prediction_is_compared_as_in_the_log(self):
        rows = [{"kind": "event", "step": 0, "event": "start"}]
        rows += [train_row(step, 1.0, step_s=0.2, forward_s=0.05) for step in range(1, 11)]
        self.write_run("run", rows)
        plan = {"machine": {"name": "node"}, "step": {"seconds": 0.1, "forward_s": 0.05}}
        plan["run"] = {"seconds": 100}
        pathlib.Path(self.path("run/prediction.json")).write_text(json.dumps(plan))
        start = {"time": "2026-01-01T00:00:00Z", "device": "cpu", "hosts": ["a", "b", "a", "b"]}
        start["layout"] = "data 1 x tensor 2 x pipeline 2"
        path = pathlib.Path(self.path("run/environment.json"))
        path.write_text(json.dumps([start]))
        page = self.report("run")
        self.assertIn("<th>step</th><td>100 ms</td><td>200 ms</td><td>2.00</td>", page)
        self.assertIn("<th>forward</th><td>50 ms</td><td>50 ms</td><td>1.00</td>", page)
        self.assertNotIn("all steps of the run", page)  # It has not ended.
        self.assertIn("<td>a</td><td>0, 2</td><td>0</td><td>0</td><td>0-1</td>", page)
        # The host of a GPU does not know the parts.
        path.write_text(json.dumps([{**start, "device": "gpu NVIDIA H100"}]))
        page = self.report("run")
        self.assertIn("<th>computation and communication</th>", page)
        self.assertNotIn("<th>forward</th>", page)

    def test_tidy_finds_no_error(self):
        if not shutil.which("tidy"):
            self.skipTest("tidy is not installed")
        self.train_with_faults()
        self.evaluate_confusion()
        self.report("run")
        result = subprocess.run(
            ["tidy", "-q", "-e", self.path("page.html")], stderr=subprocess.PIPE, text=True
        )
        self.assertLess(result.returncode, 2, result.stderr)
        self.assertNotIn("Error:", result.stderr)


@unittest.skipIf(browser.missing(), f"{browser.missing()} is not installed")
class InABrowser(Page):
    def test_axes_hover_and_hiding(self):
        self.train_with_faults()
        shutil.copytree(self.path("run"), self.path("other"))
        self.report("run", "other")
        with browser.Browser() as window:
            window.open(self.path("page.html"))
            texts = "return document.querySelector('.x-axis').textContent"
            self.assertTrue(window.run(texts).endswith("steps"))
            path = "return document.querySelector('path[data-name=loss]').getAttribute('d')"
            drawn = window.run(path)
            # The script draws the same curve over the steps as the program.
            window.click("label:nth-of-type(2) input[name=axis]")
            self.assertTrue(window.run(texts).endswith("epochs"))
            window.click("label:nth-of-type(1) input[name=axis]")
            self.assertEqual(window.run(path), drawn)
            window.click("label:nth-of-type(4) input[name=axis]")
            self.assertTrue(window.run(texts).endswith("seconds"))
            # Values under the pointer.
            window.run("document.querySelector('svg.plot').scrollIntoView({block: 'center'})")
            window.point_at("svg.plot")
            tip = "return document.querySelector('.tip').textContent"
            self.assertRegex(window.run(tip), r"(?s)step \d+\nrun: [\d.]+.*\nother: [\d.]+")
            # Hide a run.
            window.click("input[data-shows='1']")
            window.point_at("svg.plot", 4)
            self.assertNotIn("other", window.run(tip))
            window.click("input[data-hides='no-smooth']")
            shown = "return getComputedStyle(document.querySelector('path.smooth')).display"
            self.assertEqual(window.run(shown), "none")
            self.assertEqual(window.messages(), [])
            page = self.path("page.html")
            self.assertEqual(window.requests_of(page), ["file://" + page])

    def test_texts_of_a_run_are_not_executed(self):
        name = HOSTILE.replace("/", "\u2215")
        rows = [train_row(step, 1 / step) for step in range(1, 50)]
        rows.append({"kind": "event", "step": 3, "event": HOSTILE, "detail": HOSTILE})
        rows.append({"kind": "event", "step": 3, "event": "restart", "detail": HOSTILE})
        rows.append({"kind": "evaluate", "step": 5, "epoch": 1, "split": HOSTILE, "loss": 1})
        for split in ("__proto__", "x\ufffe", "\u202e"):
            rows.append({"kind": "evaluate", "step": 5, "epoch": 1, "split": split, "loss": 1})
        rows.append({"kind": "tensors", "step": 5, "tensor": HOSTILE, "gradient_norm": 1})
        self.write_run(name, rows)
        folder = pathlib.Path(self.path(name))
        folder.joinpath("deck.toml").write_text(f"[model]\n# {HOSTILE}\n")
        start = dict.fromkeys(("time", "command", "version", "layout", "device", "job"), HOSTILE)
        start["hosts"] = start["devices"] = [HOSTILE]
        folder.joinpath("environment.json").write_text(json.dumps([start]))
        folder.joinpath("exit.json").write_text(json.dumps({"code": 1, "reason": HOSTILE}))
        folder.joinpath("c.csv").write_text(f"true\\predicted,{HOSTILE}\n{HOSTILE},3\n")
        self.report(name)
        with browser.Browser() as window:
            window.open(self.path("page.html"))
            self.assertNotEqual(window.run("return document.title"), "executed")
            self.assertEqual(window.run("return document.images.length"), 0)
            self.assertEqual(window.run("return document.scripts.length"), 2)
            window.click("label:nth-of-type(2) input[name=axis]")
            window.run("document.querySelector('svg.plot').scrollIntoView({block: 'center'})")
            window.point_at("svg.plot")
            tip = window.run("return document.querySelector('.tip').textContent")
            self.assertIn("training: 0.02041", tip)
            # Every file was read, and its text is shown.
            text = window.run("return document.body.textContent")
            self.assertIn("ended with 1: " + HOSTILE, text)
            self.assertIn("c.csv" + "class", text.replace("\n", ""))
            self.assertIn("Last command: " + HOSTILE, text)
            self.assertIn("# " + HOSTILE, text)
            self.assertGreater(text.count(HOSTILE), 12)
            self.assertEqual(window.messages(), [])
            page = self.path("page.html")
            self.assertEqual(window.requests_of(page), ["file://" + page])


if __name__ == "__main__":
    harness.main(at_once=2)
