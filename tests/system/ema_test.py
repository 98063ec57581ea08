# SPDX-License-Identifier: Apache-2.0
"""Tests optimizer.ema, the average of the weights.

All layouts and restarts have the same average. Evaluations and the commands other than `train` use
it.
"""

import json

import harness

EMA = ("--set", "optimizer.ema=0.9")
FIVE, TEN = "checkpoints/step_000000005.h5", "checkpoints/step_000000010.h5"
# (ranks, further options on the command line)
LAYOUTS = {
    "one": (1, {}),
    "slots": (2, {"parallel.shard": "optimizer", "parallel.recompute": "all"}),
    "gradients": (
        4,
        {
            "parallel.shard": "gradients",
            "parallel.offload": '["optimizer"]',
            "parallel.bucket_mb": "0.002",
        },
    ),
    "parameters": (
        2,
        {
            "parallel.shard": "parameters",
            "parallel.offload": '["optimizer", "parameters", "activations"]',
            "parallel.bucket_mb": "0.002",
        },
    ),
}


def settings(values):
    return [word for key, value in values.items() for word in ("--set", "%s=%s" % (key, value))]


class Ema(harness.Case):
    def train_to(self, steps, folder, *more, ranks=1, expect=0):
        """Trains at a constant rate, so that more steps do not change the earlier ones."""
        return self.train(
            "--set",
            "run.folder=" + folder,
            "--set",
            "run.stop=%d steps" % steps,
            "--set",
            "schedule.kind=constant",
            *more,
            ranks=ranks,
            expect=expect
        )

    def evaluated(self, folder):
        return {
            (row["step"], row["split"]): row
            for row in harness.read_rows(self.path(folder), "evaluate")
        }

    def said(self, *arguments, ranks=1, expect=0):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.stdout if expect == 0 else result.text

    def metrics_of(self, checkpoint, *more, ranks=1):
        return self.said("evaluate", "deck.toml", "--checkpoint", checkpoint, *more, ranks=ranks)

    def tensors_of(self, checkpoint):
        return json.loads(self.said("inspect", "--json", checkpoint))["tensors"]

    def test_one_average_at_every_layout_and_after_a_kill(self):
        digests, rows = {}, {}
        for name, (ranks, layout) in LAYOUTS.items():
            self.train_to(10, name, *EMA, *settings(layout), ranks=ranks)
            digests[name] = harness.digest(self.path(name, TEN))
            rows[name] = {
                key: [row[metric] for metric in ("loss", "top1", "top5", "weights")]
                for key, row in self.evaluated(name).items()
            }
        result = harness.run(
            "train",
            "deck.toml",
            "--set",
            "run.folder=killed",
            "--set",
            "run.stop=10 steps",
            "--set",
            "schedule.kind=constant",
            *EMA,
            "--set",
            "parallel.shard=optimizer",
            "--set",
            "checkpoint.async=false",
            "--allow-faults",
            "--set",
            "debug.fault=kill rank 1 step 8",
            ranks=2,
            cwd=self.folder
        )
        self.assertNotEqual(result.returncode, 0, result.text)
        self.assertEqual(harness.checkpoints(self.path("killed")), ["step_000000005.h5"])
        self.train_to(10, "killed", *EMA, "--set", "parallel.shard=gradients", ranks=4)
        digests["killed"] = harness.digest(self.path("killed", TEN))
        self.assertEqual(len(set(digests.values())), 1, digests)
        for name in rows:
            self.assertEqual(rows[name], rows["one"], name)

    def test_it_is_the_average_that_is_evaluated_and_the_training_does_not_know(self):
        self.train_to(10, "run", *EMA)
        self.train_to(10, "plain")
        run, plain = self.tensors_of("run/" + TEN), self.tensors_of("plain/" + TEN)
        self.assertEqual(
            {path: tensor for path, tensor in run.items() if not path.startswith("ema/")}, plain
        )
        self.assertEqual(
            {path.split("/", 1)[1] for path in run if path.startswith(("model/", "buffers/"))},
            {path[4:] for path in run if path.startswith("ema/")},
        )

        averaged, raw = (
            self.evaluated("run")[10, "validation"],
            self.evaluated("plain")[10, "validation"],
        )
        self.assertEqual((averaged["weights"], "weights" in raw), ("ema", False))
        self.assertNotEqual(averaged["loss"], raw["loss"])
        for row, more in (
            (averaged, ()),
            (averaged, ("--weights", "ema")),
            (raw, ("--weights", "model")),
        ):
            for ranks in (1, 2):
                self.assertIn(
                    "validation: loss %.6f, top-1 %.2f %%" % (row["loss"], 100 * row["top1"]),
                    self.metrics_of("run/" + TEN, *more, ranks=ranks),
                )
        # best.h5 is the checkpoint of the step with the best evaluation of the average.
        info = json.loads(self.said("inspect", "--json", "run/checkpoints/best.h5"))
        best = max(
            (row["top1"], -row["step"])
            for (_, split), row in self.evaluated("run").items()
            if split == "validation"
        )
        self.assertEqual((info["state"]["best"], info["step"]), (best[0], -best[1]))

    def test_the_average_leaves_as_safetensors_and_comes_back_as_weights(self):
        self.train_to(5, "run", *EMA)
        for name, more in (("ema", ("--weights", "ema")), ("model", ())):
            self.said("export", "run/" + FIVE, "--out", name + ".safetensors", *more)
            self.said("import", name + ".safetensors", "deck.toml", "--out", name + ".h5")
            self.assertEqual(
                self.metrics_of(name + ".h5"), self.metrics_of("run/" + FIVE, "--weights", name)
            )
        self.assertNotEqual(self.metrics_of("ema.h5"), self.metrics_of("model.h5"))
        self.assertIn(
            "holds no average of the weights",
            self.said(
                "evaluate", "deck.toml", "--checkpoint", "ema.h5", "--weights", "ema", expect=2
            ),
        )
        self.assertIn(
            "model",
            self.said(
                "evaluate", "deck.toml", "--checkpoint", "ema.h5", "--weights", "average", expect=2
            ),
        )
        # Imported weights are the start of the average. At a rate of zero the average stays there,
        # except for the running statistics.
        result = self.train_to(
            1,
            "tuned",
            *EMA,
            "--restart",
            "model.h5",
            "--set",
            "schedule.rate=1e-30",
            "--set",
            "schedule.warmup=1 step",
            "--set",
            "optimizer.weight_decay=0",
            "--set",
            "optimizer.momentum=0"
        )
        self.assertIn("the average of the weights starts from the weights of model.h5", result.text)
        tensors = self.tensors_of("tuned/checkpoints/step_000000001.h5")
        for path in [path for path in tensors if path.startswith("model/")]:
            self.assertEqual(tensors["ema/" + path[6:]]["digest"], tensors[path]["digest"])
        self.assertNotEqual(
            tensors["ema/bn1.running_var"]["digest"], tensors["buffers/bn1.running_var"]["digest"]
        )

    def test_a_restart_may_take_it_up_and_leave_it(self):
        self.train_to(5, "run")
        result = self.train_to(10, "run", *EMA)
        self.assertIn("changed since the checkpoint: optimizer.ema: 0.0 -> 0.9", result.text)
        self.assertRegex(
            result.text,
            "the average of the weights starts from the weights of .*%s, which has none" % FIVE,
        )
        self.assertIn("ema/fc.weight", self.tensors_of("run/" + TEN))
        result = self.train_to(15, "run")
        self.assertIn("optimizer.ema: 0.9 -> 0.0", result.text)
        self.assertNotIn("ema/fc.weight", self.tensors_of("run/checkpoints/step_000000015.h5"))

    def test_generate_writes_with_the_average(self):
        """At 0.999 the average hardly moves, while the weights learn to write spaces and vowels at
        a high rate."""
        harness.make_text(self.path("text"))
        self.write_deck(harness.GPT_DECK)
        self.train("--set", "optimizer.ema=0.999", "--set", "schedule.rate=0.1")
        checkpoint = "run/checkpoints/step_000000006.h5"
        texts = {
            more: self.said("generate", checkpoint, "--prompt", "a", "--tokens", "40", *more)
            for more in ((), ("--weights", "ema"), ("--weights", "model"))
        }
        self.assertEqual(texts[()], texts["--weights", "ema"])
        self.assertNotEqual(texts[()], texts["--weights", "model"])

    def test_a_decay_that_is_none_is_refused(self):
        for wrong in ("1.0", "-0.1", "1.5"):
            text = self.train("--set", "optimizer.ema=" + wrong, expect=2).text
            self.assertIn("ema", text)
            self.assertIn("at least 0 and below 1", text)


if __name__ == "__main__":
    harness.main(at_once=3)
