# SPDX-License-Identifier: Apache-2.0
"""Tests the learning-rate schedules: restarts, layouts, plateaus, and the pictures of `check`."""

import math
import os
import pathlib
import signal
import xml.etree.ElementTree

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, MIDDLE = 12, 7
LAST = "checkpoints/step_%09d.h5" % STEPS

# The keys of each kind, for a run of STEPS steps.
SCHEDULES = {
    "constant": {},
    "cosine": {"min_ratio": 0.1},
    "step": {"milestones": '["6 steps", "9 steps"]', "gamma": 0.3},
    "exponential": {"gamma": 0.7, "every": "2 steps"},
    "polynomial": {"power": 2},
    "restarts": {"period": "4 steps", "factor": 1.5},
    "one-cycle": {"peak_at": 0.4},
    "plateau": {"patience": 0, "threshold": 0.99, "factor": 0.5},
}
RATES = {"sgd": 0.05, "lars": 1, "adamw": 0.002, "lamb": 0.01}
PRECISIONS = ("float32", "bfloat16", "float16")

# The schedules in docs/figures/schedules, over 100 epochs of 500 steps.
PICTURES = {
    "cosine": ("warmup=5 epochs",),
    "polynomial": ("warmup=5 epochs", "power=2"),
    "step": ("warmup=5 epochs", 'milestones=["30 epochs", "60 epochs", "80 epochs"]'),
    "exponential": ("warmup=5 epochs", "gamma=0.95"),
    "restarts": ("period=15 epochs", "factor=2", "min_ratio=0.01"),
    "one-cycle": (),
    "plateau": ("warmup=5 epochs", "factor=0.5", "patience=9"),
}


def settings(table, values):
    return [word for key, value in values.items() for word in ("--set", f"{table}.{key}={value}")]


class Schedules(harness.Case):
    def words(self, kind, optimizer="sgd", precision="float32", stop=STEPS, folder="run"):
        words = ["--set", f"run.stop={stop} steps", "--set", f"run.folder={folder}"]
        words += settings("schedule", {"kind": kind, "rate": RATES[optimizer]})
        words += settings("schedule", {"length": f"{STEPS} steps", **SCHEDULES[kind]})
        words += settings("optimizer", {"kind": optimizer})
        words += settings("precision", {"compute": precision})
        return words + settings("evaluate", {"every": "2 steps"})

    def deck_of(self, kind, optimizer):
        """The keys of the deck that belong to the kind and the optimizer."""
        text = harness.DECK
        if kind == "one-cycle":
            text = text.replace('warmup = "5 steps"\n', "")
        else:
            text = text.replace('warmup = "5 steps"', 'warmup = "2 steps"')
        if kind == "one-cycle" or optimizer in ("adamw", "lamb"):
            text = text.replace("momentum = 0.9\n", "")
        self.write_deck(text.replace('test = "data/test"\n', ""))

    def test_every_schedule_optimizer_and_precision_resumes_with_the_same_bits(self):
        """Each pair of two of the three occurs. Some cases also begin in another layout."""
        for s, kind in enumerate(SCHEDULES):
            for o, optimizer in enumerate(RATES):
                precision = PRECISIONS[(s + o) % len(PRECISIONS)]
                with self.subTest(kind=kind, optimizer=optimizer, precision=precision):
                    self.deck_of(kind, optimizer)
                    name = f"{kind}-{optimizer}"
                    words = self.words(kind, optimizer, precision, folder=name)
                    self.train(*words)
                    whole = harness.digest(self.path(name, LAST))
                    # This start ends with an evaluation that a whole run does not make here. A
                    # plateau must not count it.
                    part = self.words(kind, optimizer, precision, MIDDLE, name + "-parts")
                    self.train(*part)
                    self.train(*self.words(kind, optimizer, precision, folder=name + "-parts"))
                    self.assertEqual(harness.digest(self.path(name + "-parts", LAST)), whole)
                    if s % len(RATES) != o:
                        continue
                    # The first part in two stages; one rank resumes it.
                    part = self.words(kind, optimizer, precision, MIDDLE, name + "-stages")
                    self.train(*part, "--set", "parallel.pipeline=2", ranks=2)
                    self.train(*self.words(kind, optimizer, precision, folder=name + "-stages"))
                    expected = harness.losses(self.path(name))
                    found = harness.losses(self.path(name + "-stages"))
                    for step, (a, b) in enumerate(zip(expected, found, strict=True), 1):
                        self.assertLess(abs(a - b), 1e-5 * abs(a), f"step {step}")

    def rates(self, folder, key="rate"):
        by_step = harness.last_by_step(harness.read_rows(self.path(folder), "train"))
        return [by_step[step][key] for step in sorted(by_step)]

    def test_a_plateau_reduces_the_rate_and_a_rollback_or_restart_remembers_it(self):
        self.deck_of("plateau", "sgd")
        words = self.words("plateau")
        self.train(*words)
        # Evaluations after steps 2, 4, ...: that at the end of the warm-up does not count, the
        # next one is the first. No loss falls below 1 % of it.
        peak = RATES["sgd"]
        expected = [peak / 2, peak] + [peak] * 4 + [peak / 2] * 2 + [peak / 4] * 2 + [peak / 8] * 2
        self.assertEqual(self.rates("run"), expected)
        events = [r for r in harness.read_rows(self.path("run"), "event")]
        events = [(r["step"], r["detail"]) for r in events if r["event"] == "rate_reduced"]
        self.assertEqual([step for step, _ in events], [6, 8, 10, 12])
        self.assertEqual(events[0][1], "loss did not improve in 1 evaluation: rate 0.05 -> 0.025")
        # Killed between an evaluation and the next checkpoint: the evaluation is made again.
        words = self.words("plateau", folder="killed")
        fault = ("--allow-faults", "--set", "debug.fault=kill rank 0 step 9")
        killed = harness.run("train", "deck.toml", *words, *fault, cwd=self.folder)
        self.assertEqual(killed.returncode, -signal.SIGKILL, killed.text)
        self.train(*words)
        self.assertEqual(self.rates("killed"), expected)
        self.assertEqual(
            harness.digest(self.path("killed", LAST)), harness.digest(self.path("run", LAST))
        )
        # A rollback undoes the reductions since the checkpoint: of step 10 to that of step 5.
        words = self.words("plateau", folder="back")
        words += ["--set", "health.rollback_after=2", "--set", "checkpoint.every=5 steps"]
        fault = ("--allow-faults", "--set", "debug.fault=nan rank 0 step 8..9")
        self.train(*words, *fault)
        back = [r["detail"] for r in harness.read_rows(self.path("back"), "event")
                if r["event"] == "rollback"]  # fmt: skip
        self.assertEqual(len(back), 1)
        self.assertIn("from step 9 to 5", back[0])
        self.assertEqual(self.rates("back"), expected)
        # A part of the run with another metric, then with another kind.
        self.train(*self.words("plateau", stop=MIDDLE, folder="changed"))
        text = self.train(
            *self.words("plateau", stop=10, folder="changed"), "--set", "schedule.metric=top1"
        ).text
        self.assertIn("schedule.metric is now top1: best loss of the plateau reset", text)
        self.assertEqual(self.rates("changed")[-3:], [peak / 2] * 3)
        text = self.train(*self.words("cosine", folder="changed")).text
        self.assertIn('schedule.kind is no longer "plateau": its reductions of the rate (2)', text)

    def test_one_cycle_changes_the_momentum(self):
        self.deck_of("one-cycle", "sgd")
        self.train(*self.words("one-cycle"), "--set", "schedule.momentum=[0.5, 0.9]")
        peak_at = 0.4 * STEPS - 1
        for step, momentum in enumerate(self.rates("run", "momentum")):
            rises = step <= peak_at
            part = step / peak_at if rises else (step - peak_at) / (STEPS - 1 - peak_at)
            start, end = (0.9, 0.5) if rises else (0.5, 0.9)
            expected = end + (start - end) * (1 + math.cos(math.pi * part)) / 2
            self.assertAlmostEqual(momentum, expected, places=12)
        # The momentum reaches the update: the constant one gives other weights.
        one_cycle = harness.digest(self.path("run", LAST))
        words = self.words("one-cycle", folder="constant")
        self.train(*words, "--set", "schedule.momentum=[0.9, 0.9]")
        self.assertNotEqual(harness.digest(self.path("constant", LAST)), one_cycle)


class Pictures(harness.Case):
    def check(self, *words, expect=0):
        result = harness.run("check", "deck.toml", *words, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def test_the_pictures_of_the_documents_are_those_of_the_program(self):
        for kind, keys in PICTURES.items():
            self.write_deck(
                f'[run]\nname = "{kind}"\nstop = "100 epochs"\n[model]\ndepth = 20\n'
                '[data]\ntrain = "none"\nvalidation = "none"\n[batch]\nglobal = 512\nmicro = 64\n'
                f'[schedule]\nkind = "{kind}"\nrate = 0.4\n'
            )
            words = [word for key in keys for word in ("--set", "schedule." + key)]
            words += ["--assume", "images:256000,32x32x3,10", "--schedule", "plot.svg"]
            text = self.check(*words)
            self.assertIn("plot.svg: the learning rate", text)
            with open(self.path("plot.svg"), encoding="utf-8") as file:
                drawn = file.read()
            xml.etree.ElementTree.fromstring(drawn)
            page = ROOT / "docs/figures/schedules" / (kind + ".svg")
            if "TRIREME_WRITE_FIGURES" in os.environ:
                page.parent.mkdir(exist_ok=True)
                page.write_text(drawn, encoding="utf-8")
            self.assertEqual(page.read_text(encoding="utf-8"), drawn, kind)

    def test_wrong_targets_are_refused(self):
        self.write_deck(harness.DECK)
        with open(self.path("notes.svg"), "w") as file:
            file.write("notes")
        for target, message in (
            ("", "--schedule: must not be empty"),
            ("deck.toml", "exists and is no SVG file, so it is not replaced"),
            ("notes.svg", "exists and is no SVG file, so it is not replaced"),
            ("none/plot.svg", "there is no folder"),
        ):
            self.assertIn(message, self.check("--schedule", target, expect=2))
        self.check("--schedule", "plot.svg")
        self.check("--schedule", "plot.svg")
        text = self.check(
            "--schedule",
            "plot.svg",
            "--set",
            "run.stop=1 hour",
            "--set",
            "schedule.kind=constant",
            expect=2,
        )
        self.assertIn("--set run.stop=1 hour", text)
        self.assertIn("--schedule does not know how many steps to draw", text)
        self.assertNotIn("nothing is wrong", text)
        text = self.check("--schedule", "new", "--images", "./new", expect=2)
        self.assertIn("--images and --schedule name the same file, new; name two files", text)


if __name__ == "__main__":
    harness.main(at_once=2)
