# SPDX-License-Identifier: Apache-2.0
"""Tests the commands with language models.

Export and import of safetensors, generate, check, traces, and runs that diverge.
"""

import json
import math
import os
import random
import re
import shutil
import unittest

import harness
import safetensors_io

CHECKPOINT_WORK = {"copy", "digests", "layout", "write", "read_back", "publish"}


def gpt2_weights(layers=3, width=16, context=16, vocabulary=256):
    """Returns names, shapes and fixed random values of a GPT-2: {name: (shape, values)}."""
    shapes = {
        "wte.weight": (vocabulary, width),
        "wpe.weight": (context, width),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    for layer in range(layers):
        for name, shape in {
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,),
            "attn.c_proj.weight": (width, width),
            "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
            "mlp.c_fc.weight": (width, 4 * width),
            "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (4 * width, width),
            "mlp.c_proj.bias": (width,),
        }.items():
            shapes["h.%d.%s" % (layer, name)] = shape
    rng = random.Random(4)
    return {
        name: (
            shape,
            [rng.gauss(0, 0.02) for _ in range(shape[0] * (shape[1] if len(shape) > 1 else 1))],
        )
        for name, shape in shapes.items()
    }


class LanguageModel(harness.Case):
    samples = 64  # images in one test

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        harness.make_text(cls.shared + "/text")

    def setUp(self):
        super().setUp()
        os.symlink(self.shared + "/text", self.path("text"))
        self.write_deck(harness.GPT_DECK, "gpt.toml")

    def command(self, *arguments, ranks=1, expect=0):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, "%s: %s" % (arguments, result.text))
        return result

    def test_safetensors_of_gpt2_go_round_without_a_changed_bit(self):
        weights = gpt2_weights()
        made = {"transformer." + name: tensor for name, tensor in weights.items()}
        made["lm_head.weight"] = weights["wte.weight"]
        safetensors_io.write(self.path("made.safetensors"), made)
        self.command("import", "made.safetensors", "gpt.toml", "--out", "imported.h5")
        self.command("export", "imported.h5", "--out", "again.safetensors")
        safetensors_io.write(self.path("meant.safetensors"), weights)
        self.assertEqual(
            safetensors_io.read(self.path("again.safetensors")),
            safetensors_io.read(self.path("meant.safetensors")),
        )

        result = self.command(
            "train",
            "gpt.toml",
            "--restart",
            "imported.h5",
            "--set",
            "parallel.tensor=2",
            "--set",
            "parallel.pipeline=2",
            ranks=4,
        )
        self.assertIn("no optimizer state", result.text)
        self.command("export", "run/checkpoints/step_000000006.h5", "--out", "trained.safetensors")
        self.command("import", "trained.safetensors", "gpt.toml", "--out", "back.h5")
        self.command("export", "back.h5", "--out", "round.safetensors")
        trained = safetensors_io.read(self.path("trained.safetensors"))
        self.assertEqual(trained, safetensors_io.read(self.path("round.safetensors")))
        self.assertEqual(set(trained), set(weights))
        self.assertNotEqual(
            trained["h.1.mlp.c_fc.weight"],
            safetensors_io.read(self.path("again.safetensors"))["h.1.mlp.c_fc.weight"],
        )

        made["lm_head.weight"] = (weights["wte.weight"][0], [0.0] * len(weights["wte.weight"][1]))
        safetensors_io.write(self.path("untied.safetensors"), made)
        self.assertIn(
            "lm_head.weight",
            self.command(
                "import", "untied.safetensors", "gpt.toml", "--out", "none.h5", expect=2
            ).text,
        )
        self.assertFalse(os.path.exists(self.path("none.h5")))

    def test_what_a_run_says_is_in_tokens(self):
        result = self.command("train", "gpt.toml", ranks=2)
        self.assertRegex(result.text, r"step 6/6, .* tokens/s")
        for row in harness.read_rows(self.path("run"), "train"):
            self.assertAlmostEqual(
                row["tokens_per_s"], 16 * row["samples_per_s"], delta=1e-9 * row["tokens_per_s"]
            )
        rows = harness.read_rows(self.path("run"), "evaluate")
        self.assertEqual([row["step"] for row in rows], [2, 4, 6])
        for row in rows:
            self.assertAlmostEqual(math.log(row["perplexity"]), row["loss"], delta=1e-12)
            self.assertLess(row["top1"], row["top5"])
        self.assertRegex(
            result.text,
            r"validation at step 6 .* perplexity %.3f, top-1 .* tokens" % rows[-1]["perplexity"],
        )
        best = json.loads(self.command("inspect", "--json", "run/checkpoints/best.h5").stdout)
        self.assertEqual(best["step"], min(rows, key=lambda row: row["perplexity"])["step"])
        self.assertEqual(
            [best["state"][key] for key in ("tokenizer", "vocabulary", "best_metric")],
            ["bytes", 256, "perplexity"],
        )

        meant = (
            "validation: loss %.6f, perplexity %.3f, top-1 %.2f %%, top-5 %.2f %%, %d tokens\n"
            % (
                rows[-1]["loss"],
                rows[-1]["perplexity"],
                100 * rows[-1]["top1"],
                100 * rows[-1]["top5"],
                16 * rows[-1]["samples"],
            )
        )
        for ranks, layout in ((1, ()), (3, ()), (2, ("--set", "parallel.tensor=2"))):
            said = self.command(
                "evaluate",
                "run/deck.toml",
                "--checkpoint",
                "run/checkpoints/step_000000006.h5",
                *layout,
                ranks=ranks,
            ).stdout
            if layout:  # sums over a tensor group are rounded in another order
                self.assertLess(
                    abs(float(re.search(r"loss (\S+),", said)[1]) - rows[-1]["loss"]), 1e-5
                )
            else:
                self.assertIn(meant, said)

    def test_check_tells_the_memory_that_the_run_takes(self):
        layouts = (
            ([], 1),
            (["parallel.tensor=2"], 2),
            (
                [
                    "parallel.shard=parameters",
                    'parallel.offload=["optimizer", "parameters", "activations"]',
                ],
                2,
            ),
        )
        for number, (keys, ranks) in enumerate(layouts):
            options = [
                word
                for key in keys + ["run.stop=1 steps", "run.folder=memory-%d" % number]
                for word in ("--set", key)
            ]
            told = self.command("check", "gpt.toml", "--ranks", str(ranks), *options).stdout
            taken = self.command("train", "gpt.toml", *options, ranks=ranks).text
            memory = re.search(r"^memory +(?:a rank needs about )?(.+)$", told, re.MULTILINE)[1]
            host = " and .* of the host .*" if "offload" in str(keys) else ""
            self.assertRegex(
                memory,
                r"^[0-9.]+ .iB \(weights .*workspace [^)]*\)"
                + host
                + r" and [0-9.]+ .iB for the checkpoint being written$",
            )
            self.assertIn("memory per rank: %s; " % memory, taken)

    def test_a_checkpoint_of_another_model_is_refused(self):
        self.command("train", "gpt.toml")
        checkpoint = "run/checkpoints/step_000000006.h5"
        # the shapes of tensors do not depend on the number of heads
        for key, value in (("layers", 2), ("heads", 4)):
            setting = ("--set", "model.%s=%d" % (key, value))
            self.assertIn(
                "model." + key,
                self.command(
                    "evaluate", "gpt.toml", "--checkpoint", checkpoint, *setting, expect=2
                ).text,
            )
            self.assertIn(
                "model." + key,
                self.command(
                    "train",
                    "gpt.toml",
                    "--set",
                    "run.folder=other",
                    *setting,
                    "--restart",
                    checkpoint,
                    "--weights-only",
                    expect=2,
                ).text,
            )
            self.assertFalse(os.path.exists(self.path("other")))

    def test_a_run_that_diverges_keeps_the_checkpoints_of_before(self):
        diverging = (
            "--set",
            "schedule.rate=1e30",
            "--set",
            "checkpoint.every=1 step",
            "--set",
            "checkpoint.keep=1",
            "--set",
            "parallel.tensor=2",
            "--set",
            "parallel.pipeline=2",
        )
        self.assertIn(
            "diverged", self.command("train", "gpt.toml", *diverging, ranks=4, expect=76).text
        )
        # after the only step with a finite loss
        self.assertEqual(harness.checkpoints(self.path("run")), ["step_000000001.h5"])
        with open(self.path("run/exit.json")) as file:
            self.assertEqual(json.load(file)["code"], 76)
        # The end may also come before the last allowed step.
        self.command(
            "train",
            "gpt.toml",
            *diverging,
            "--set",
            "run.folder=short",
            "--set",
            "run.stop=3 steps",
            ranks=4,
            expect=76,
        )
        self.assertEqual(harness.checkpoints(self.path("short")), ["step_000000001.h5"])

    def test_a_trace_is_written_also_where_the_run_ends_before_its_last_step(self):
        self.command(
            "train",
            "gpt.toml",
            "--set",
            "monitor.trace=5..100",
            "--set",
            "parallel.pipeline=2",
            "--set",
            "monitor.every=1 step",
            # An evaluation between the two recorded steps, whose exchanges are part of neither.
            "--set",
            "evaluate.every=5 steps",
            # A checkpoint is written while the second one trains.
            "--set",
            "checkpoint.every=5 steps",
            ranks=2,
        )
        with open(self.path("run/trace.json")) as file:
            objects = json.load(file)
        lanes = {
            (entry["pid"], entry["tid"]): entry["args"]["name"].rstrip(" 0123456789")
            for entry in objects
            if entry["name"] == "thread_name"
        }
        events = [event for event in objects if event["ph"] == "X"]
        for event in events:
            event["lane"] = lanes[event["pid"], event["tid"]]
        self.check_threads(events)
        waits = [event for event in events if event["name"] == "wait"]
        self.assertEqual({event["lane"] for event in waits}, {"waits"})
        actions = [event for event in events if event["name"] in ("forward", "backward")]
        self.assertEqual({event["lane"] for event in actions}, {"step"})
        names = {event["lane"]: set() for event in events}
        for event in events:
            names[event["lane"]].add(event["name"])
        self.assertEqual(names["step"], {"forward", "backward", "evaluate"})
        self.assertEqual(names["optimizer"], {"update", "finish_update"})
        self.assertEqual(names["readers"], {"read"})
        self.assertLessEqual(names["checkpoint"], CHECKPOINT_WORK)
        self.assertIn("digests", names["checkpoint"])
        self.assertEqual({event["pid"] for event in actions}, {0, 1})
        # The second stage waits for its first input, the first one for its first gradient. Waits
        # are the exposed communication of a step. What has arrived already, because a busy machine
        # delayed the receiver, is not waited for; not in both stages at once.
        awaited = {event["args"]["for"] for event in waits}
        self.assertTrue(awaited & {"receive_activation", "receive_gradient"}, awaited)
        rows = {row["step"]: row for row in harness.read_rows(self.path("run"), "train")}
        for step in (5, 6):
            seconds = [
                event["dur"] / 1e6
                for event in waits
                if (event["pid"], event["args"]["step"]) == (0, step)
            ]
            self.assertLessEqual(sum(seconds), rows[step]["comm_exposed_s"] + 1e-6 * len(seconds))
            optimizer = [
                event["dur"] / 1e6
                for event in events
                if (event["pid"], event["args"]["step"], event["lane"]) == (0, step, "optimizer")
            ]
            self.assertAlmostEqual(sum(optimizer), rows[step]["optimizer_s"], delta=1e-5)
            # The second stage waits for the input of each of the four micro-batches at most once.
            inputs = [
                event
                for event in waits
                if (event["pid"], event["args"]["step"], event["args"]["for"])
                == (1, step, "receive_activation")
            ]
            self.assertLessEqual(len(inputs), 4)
        self.assertEqual(len(actions), 2 * 2 * 2 * 4)  # steps, stages, directions, micro-batches
        # MPI messages that accompany them: each stage sends some and receives some.
        exchanges = [event for event in events if event.get("cat") == "exchange"]
        for sender, direction in ((0, "activation"), (1, "gradient")):
            received = [
                event
                for event in exchanges
                if (event["pid"], event["name"]) == (1 - sender, "receive_" + direction)
            ]
            self.assertEqual(len(received), 2 * 4)
            self.assertEqual({event["lane"] for event in received}, {"group pipeline"})
            self.assertEqual({event["args"]["micro_batch"] for event in received}, set(range(4)))

    def check_threads(self, events):
        """No two events of a thread overlap, since viewers would nest them."""
        ends = {}
        for event in sorted(events, key=lambda event: event["ts"]):
            thread = event["pid"], event["tid"]
            self.assertGreaterEqual(event["ts"], ends.get(thread, 0) - 1e-3, event)
            ends[thread] = event["ts"] + event["dur"]

    def test_generate(self):
        self.command("train", "gpt.toml")
        checkpoint = "run/checkpoints/step_000000006.h5"

        def text(*more, ranks=1):
            return self.command(
                "generate", checkpoint, "--prompt", "to the", "--tokens", "40", *more, ranks=ranks
            ).stdout

        first = text("--seed", "5")
        self.assertTrue(first.startswith("to the"), first)
        self.assertGreater(len(first), len("to the\n"))
        self.assertEqual(first, text("--seed", "5"))
        self.assertEqual(first, text("--seed", "5", ranks=2))
        self.assertNotEqual(first, text("--seed", "6"))
        self.assertEqual(
            text("--temperature", "0", "--seed", "5"), text("--temperature", "0", "--seed", "6")
        )
        self.assertEqual(text("--temperature", "0"), text("--top-k", "1"))

        self.assertIn(
            "--prompt", self.command("generate", checkpoint, "--prompt", "", expect=2).text
        )
        self.command("generate", checkpoint, "--prompt", "to", "--temperature", "-1", expect=2)
        self.command("generate", checkpoint, "--prompt", "to", "--tokens", "0", expect=2)
        missing = self.command("generate", "none.h5", "--prompt", "to", expect=2).text
        self.assertIn("none.h5: no such checkpoint", missing)
        self.assertNotIn("--restart", missing)
        # The model sees the end of a prompt that is longer than its context, whatever the bytes.
        prompt, more = "\u6f22" * 40, ("--tokens", "3", "--temperature", "0")
        longer, shorter = (
            self.command("generate", checkpoint, "--prompt", text, *more).stdout
            for text in (prompt, prompt[-6:])
        )
        self.assertTrue(longer.startswith(prompt), longer)
        self.assertEqual(longer[len(prompt) :], shorter[6:])
        self.train(
            "--set",
            "run.folder=images",
            "--set",
            "run.stop=1 steps",
            "--set",
            "schedule.warmup=none",
        )
        refused = self.command(
            "generate", "images/checkpoints/step_000000001.h5", "--prompt", "to", expect=2
        )
        self.assertIn("not a language model", refused.text)
        self.assertEqual(refused.stdout, "")

    def test_the_end_of_a_text_ends_what_is_generated(self):
        with open(self.path("texts.jsonl"), "w") as file:
            file.write('{"text": "a quick fox"}\n' * 60)
        texts = ("shard", "jsonl", "texts.jsonl", "--out")
        # A byte is no end, so its token is behind those of the tokenizer; and a piece of a model.
        for name, options in (
            ("bytes", ("--vocabulary", "259", "--end-of-text", "257")),
            ("pieces", ("--train-tokenizer", "269", "--end-of-text", "</s>")),
        ):
            shutil.rmtree(self.path("moved"), ignore_errors=True)
            self.command(*texts, name, *options)
            self.command(
                "train",
                "gpt.toml",
                *("--set", "run.folder=run-" + name),
                *("--set", "data.train=" + name),
                *("--set", "data.validation=" + name),
                *("--set", "run.stop=150 steps"),
                *("--set", "schedule.rate=0.01"),
            )
            checkpoint = "run-%s/checkpoints/step_000000150.h5" % name
            words = ("generate", checkpoint, "--prompt", "a qui", "--temperature", "0")
            ended = self.command(*words, "--tokens", "40")
            self.assertEqual(ended.stdout, "a quick fox\n", name)
            self.assertRegex(ended.text, r"the text ends after \d+ tokens?")
            self.assertEqual(self.command(*words, "--tokens", "1").stdout[:5], "a qui")
            os.rename(self.path(name), self.path("moved"))
            if name == "bytes":
                found = self.command(*words, "--tokens", "40").stdout
                self.assertTrue(found.startswith("a quick fox"), found)
            else:
                missing = self.command(*words, expect=2).text
                self.assertIn("pieces is missing, with the tokenizer.model", missing)
                self.assertIn("give it by --tokenizer FILE", missing)
                self.command(*words, "--tokens", "2", "--tokenizer", "moved/tokenizer.model")

    def test_generate_from_a_tiny_model_that_was_made_for_a_gpu(self):
        """One row of logits is larger than all activations of the model."""
        safetensors_io.write(
            self.path("tiny.safetensors"), gpt2_weights(layers=1, width=2, context=4)
        )
        sizes = {"layers": 1, "heads": 1, "width": 2, "context": 4}
        settings = ["model.%s=%d" % size for size in sizes.items()] + ["run.device=cuda"]
        options = [word for setting in settings for word in ("--set", setting)]
        self.command("import", "tiny.safetensors", "gpt.toml", *options, "--out", "tiny.h5")
        text = self.command("generate", "tiny.h5", "--prompt", "to the", "--tokens", "8").stdout
        self.assertTrue(text.startswith("to the"), text)


if __name__ == "__main__":
    unittest.main()
