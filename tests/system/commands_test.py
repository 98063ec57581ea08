"""The commands beside `train`: safetensors in and out, evaluate, inspect, verify, and the help of each."""

import json
import math
import os
import re
import random
import shutil
import struct
import subprocess
import unittest

import harness


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}: the format is 8 bytes of length, a JSON header, the data."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


def write_safetensors(path, tensors):
    """float32 tensors of {name: (shape, values)}."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + 4 * len(values)],
        }
        data += struct.pack("<%df" % len(values), *values)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def gpt2_weights(layers=3, width=16, context=16, vocabulary=256):
    """Names and shapes of GPT-2 with values of a fixed seed: {name: (shape, values)}."""
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


def flip(path, place):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


class Commands(harness.Case):
    def succeed(self, *arguments, ranks=1):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, 0, "%s: %s" % (arguments, result.text))
        return result.stdout

    def test_safetensors_go_round_without_a_changed_bit(self):
        self.train("--set", "run.stop=5 steps")
        self.succeed("export", "run/checkpoints/step_000000005.h5", "--out", "first.safetensors")
        self.succeed("import", "first.safetensors", "deck.toml", "--out", "imported.h5")
        self.succeed("export", "imported.h5", "--out", "second.safetensors")
        first, second = read_safetensors(self.path("first.safetensors")), read_safetensors(
            self.path("second.safetensors")
        )
        self.assertEqual(first, second)
        self.assertEqual(first["conv1.weight"][:2], ("F32", [8, 1, 3, 3]))
        self.assertEqual(first["fc.weight"][:2], ("F32", [5, 32]))
        self.assertIn("layer1.0.bn1.running_var", first)
        self.assertFalse([name for name in first if "momentum" in name])

        self.succeed("verify", "imported.h5")
        imported = json.loads(self.succeed("inspect", "--json", "imported.h5"))
        self.assertEqual((imported["step"], imported["updates"]), (0, 0))
        result = self.train(
            "--set", "run.folder=other", "--set", "run.stop=5 steps", "--restart", "imported.h5"
        )
        self.assertIn("no optimizer state", result.text)
        self.assertEqual(
            sorted(harness.last_by_step(harness.read_rows(self.path("other"), "train"))),
            [1, 2, 3, 4, 5],
        )

    def test_a_safetensors_file_that_does_not_fit_is_refused_by_name(self):
        self.train("--set", "run.stop=5 steps")
        self.succeed("export", "run/checkpoints/step_000000005.h5", "--out", "w.safetensors")
        result = harness.run(
            "import",
            "w.safetensors",
            "deck.toml",
            "--set",
            "model.depth=14",
            "--out",
            "imported.h5",
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("layer1.1.conv1.weight", result.text)
        self.assertFalse(os.path.exists(self.path("imported.h5")))

    def bytes_of(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def refuse(self, *arguments, saying):
        result = harness.run(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
        self.assertIn(saying, result.text)

    def test_no_output_replaces_an_input_or_anything_unasked(self):
        self.train("--set", "run.stop=5 steps")
        checkpoint = "run/checkpoints/step_000000005.h5"
        self.succeed("export", checkpoint, "--out", "w.safetensors")
        os.link(self.path(checkpoint), self.path("again.h5"))
        before = {name: self.bytes_of(name) for name in (checkpoint, "w.safetensors", "deck.toml")}
        for output in (checkpoint, "again.h5"):
            self.refuse("export", checkpoint, "--out", output, "--overwrite", saying="is the file")
        for output in ("w.safetensors", "deck.toml"):
            self.refuse(
                "import",
                "w.safetensors",
                "deck.toml",
                "--out",
                output,
                "--overwrite",
                saying="is the file",
            )
        self.refuse(
            "import", "w.safetensors", "deck.toml", "--out", checkpoint, saying="--overwrite"
        )
        self.refuse("export", checkpoint, "--out", "w.safetensors", saying="--overwrite")
        self.refuse("export", checkpoint, "--out", "run", saying="folder")
        for output in ("none/out", "deck.toml/out", "n" * 300):
            self.refuse("import", "w.safetensors", "deck.toml", "--out", output, saying="--out")
        self.refuse("export", "run", "--out", "other", saying="checkpoints/*.h5")
        self.refuse("import", "run", "deck.toml", "--out", "other.h5", saying="is a folder")
        self.assertEqual(before, {name: self.bytes_of(name) for name in before})
        self.succeed("export", checkpoint, "--out", "w.safetensors", "--overwrite")

    def test_work_of_one_process_is_done_once_under_a_launcher(self):
        self.train("--set", "run.stop=5 steps")
        checkpoint = "run/checkpoints/step_000000005.h5"
        for arguments in (
            ("check", "deck.toml"),
            ("inspect", "run"),
            ("inspect", "--digest", checkpoint),
            ("verify", "run"),
            ("verify", "--help"),
            ("--version",),
        ):
            self.assertEqual(self.succeed(*arguments, ranks=2), self.succeed(*arguments), arguments)
        result = harness.run("verify", "run", ranks=3, cwd=self.folder)
        self.assertEqual(result.stderr.count("verify is work for one process"), 1, result.stderr)
        self.assertEqual(
            self.succeed("export", checkpoint, "--out", "w.safetensors", ranks=2),
            "w.safetensors written\n",
        )
        self.assertEqual(
            self.succeed("import", "w.safetensors", "deck.toml", "--out", "w.h5", ranks=2).count(
                "w.h5"
            ),
            1,
        )
        self.succeed("verify", "w.h5")

    def test_errors_are_said_once_under_a_launcher(self):
        open(self.path("text"), "w").close()
        for arguments in (
            ("check", "none.toml"),
            ("inspect", "none"),
            ("verify", "none"),
            ("export", "none.h5", "--out", "w"),
            ("import", "none", "deck.toml", "--out", "w.h5"),
            ("generate", "none.h5", "--prompt", "a"),
            ("evaluate", "deck.toml", "--checkpoint", "none.h5"),
            ("shard", "idx", "none", "none", "--out", "made"),
            ("shard", "text", "text", "--out", "made"),
            ("train", "none.toml"),
            ("train", "deck.toml", "--set", "data.train=none"),
            ("traim",),
            ("verify", "--quick"),
        ):
            alone = harness.run(*arguments, cwd=self.folder)
            self.assertEqual(alone.returncode, 2, "%s: %s" % (arguments, alone.text))
            result = harness.run(*arguments, ranks=2, cwd=self.folder)
            self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
            self.assertEqual(
                result.text.count(alone.stderr.splitlines()[-1]),
                1,
                "%s: %s" % (arguments, result.text),
            )

    def test_shard_replaces_shards_and_nothing_else(self):
        harness.write_idx(self.path("images"), (6, 2, 2), bytes(24))
        harness.write_idx(self.path("labels"), (6,), bytes(6))
        shard = ("shard", "idx", "images", "labels", "--out", "made")
        self.succeed(*shard, "--shards", "3")
        os.mkdir(self.path("made/.making"))
        self.succeed(*shard, "--shards", "2", "--overwrite", ranks=2)
        self.assertEqual(
            len([name for name in os.listdir(self.path("made")) if name.endswith(".h5")]), 2
        )
        self.assertEqual(json.loads(self.succeed("inspect", "--json", "made"))["samples"], 6)
        with open(self.path("made/mine.h5"), "w") as file:
            file.write("not a shard")
        self.refuse(*shard, "--overwrite", saying="mine.h5")
        self.assertEqual(len(os.listdir(self.path("made"))), 4)

    def test_a_full_disk_behind_standard_output_is_a_failure(self):
        for arguments in (("inspect", "--json", self.path("data/train")), ("--help",)):
            with open("/dev/full", "w") as full:
                result = subprocess.run(
                    harness.command(*arguments),
                    stdout=full,
                    stderr=subprocess.PIPE,
                    cwd=self.folder,
                    universal_newlines=True,
                )
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("standard output", result.stderr)

    def test_evaluate_gives_the_numbers_of_the_run(self):
        self.train("--set", "run.stop=5 steps")
        rows = {row["split"]: row for row in harness.read_rows(self.path("run"), "evaluate")}
        self.assertEqual(set(rows), {"validation", "test"})
        for split, row in rows.items():
            meant = "%s: loss %.6f, top-1 %.3f %%, top-5 %.3f %%, %d samples\n" % (
                split,
                row["loss"],
                100 * row["top1"],
                100 * row["top5"],
                row["samples"],
            )
            for ranks in (1, 2, 4):
                said = self.succeed(
                    "evaluate",
                    "run/deck.toml",
                    "--checkpoint",
                    "run/checkpoints/step_000000005.h5",
                    "--split",
                    split,
                    ranks=ranks,
                )
                self.assertEqual(
                    said.count("\n" + meant) + said.startswith(meant),
                    1,
                    "%d ranks: %s" % (ranks, said),
                )

    def test_inspect_describes_each_kind_of_thing(self):
        self.train("--set", "run.stop=5 steps")
        shard = sorted(os.listdir(self.path("data/train")))[0]
        checkpoint = "run/checkpoints/step_000000005.h5"
        for path, kind in (
            ("data/train/" + shard, "shard"),
            ("data/train", "dataset"),
            (checkpoint, "checkpoint"),
            ("run", "run"),
        ):
            self.assertIn(
                {
                    "shard": "320",
                    "dataset": "640",
                    "checkpoint": "model/fc.weight",
                    "run": "step_000000005.h5",
                }[kind],
                self.succeed("inspect", path),
            )
            described = json.loads(self.succeed("inspect", "--json", path))
            self.assertEqual((described["kind"], described["path"]), (kind, path))
            if kind == "shard":
                self.assertEqual(
                    (described["samples"], described["shape"]), (self.samples // 2, [12, 12, 1])
                )
            if kind == "dataset":
                self.assertEqual(
                    (described["samples"], described["class_count"], len(described["shards"])),
                    (self.samples, 5, 2),
                )
            if kind == "checkpoint":
                self.assertEqual(
                    (described["step"], described["samples"], described["sealed"]), (5, 320, True)
                )
                self.assertEqual(described["tensors"]["model/fc.weight"]["shape"], [5, 32])
            if kind == "run":
                self.assertEqual(
                    (
                        described["newest"]["step"],
                        described["metrics"]["train"]["step"],
                        described["exit"]["code"],
                    ),
                    (5, 5, 0),
                )

    def test_inspect_says_of_a_damaged_checkpoint_that_it_is(self):
        self.train("--set", "run.stop=5 steps")
        whole = self.path("run/checkpoints/step_000000005.h5")
        self.assertIsNone(json.loads(self.succeed("inspect", "--json", whole))["damage"])
        for name, place in (("seal", 20), ("magic", 2)):
            shutil.copy(whole, self.path(name + ".h5"))
            flip(self.path(name + ".h5"), place)
            self.assertRegex(self.succeed("inspect", name + ".h5"), "damaged: .*the seal")
            self.assertIn(
                "the seal", json.loads(self.succeed("inspect", "--json", name + ".h5"))["damage"]
            )
        shutil.copy(whole, self.path("value.h5"))
        flip(
            self.path("value.h5"), os.path.getsize(whole) // 2
        )  # most of the file is values of tensors
        self.assertIn("verify", self.succeed("inspect", "value.h5"))
        result = harness.run("inspect", "--digest", "value.h5", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertRegex(result.text, r"value\.h5: the values of \S+ do not match its digest")

    def test_the_digest_tells_checkpoints_apart(self):
        self.train("--set", "run.stop=10 steps")
        five, ten = (
            harness.digest("run/checkpoints/step_%09d.h5" % step, cwd=self.folder)
            for step in (5, 10)
        )
        self.assertNotEqual(five, ten)
        shutil.copy(self.path("run/checkpoints/step_000000005.h5"), self.path("copy.h5"))
        self.assertEqual(harness.digest("copy.h5", cwd=self.folder), five)

    def test_verify_names_the_place_of_a_changed_byte_in_a_shard(self):
        shutil.copytree(self.shared + "/train", self.path("copy"))
        self.assertEqual(self.succeed("verify", "copy").count("whole"), 2)
        broken = self.path("copy", sorted(os.listdir(self.path("copy")))[1])
        flip(broken, os.path.getsize(broken) // 2)  # nearly all of the file is its images
        for path in ("copy", broken):
            result = harness.run("verify", path, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertRegex(
                result.text,
                re.escape(os.path.basename(broken))
                + r": damaged: block \d+ of /images and /labels \(samples \d+ to \d+\)",
            )
        self.assertEqual(
            harness.run("verify", "copy", cwd=self.folder).text.count("damaged"), 1
        )  # the other shard is whole

    def test_verify_of_a_run_looks_at_each_checkpoint(self):
        self.train("--set", "run.stop=10 steps")
        self.assertEqual(
            self.succeed("verify", "run").count("whole"),
            len([n for n in os.listdir(self.path("run/checkpoints")) if n.endswith(".h5")]),
        )
        flip(self.path("run/checkpoints/step_000000005.h5"), 5000)
        result = harness.run("verify", "run", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertRegex(result.text, r"step_000000005\.h5: damaged: .*\d")
        self.assertRegex(result.text, r"step_000000010\.h5: whole")

    def test_bench_io_measures_and_leaves_nothing(self):
        os.mkdir(self.path("disk"))
        for ranks in (1, 2):
            figures = json.loads(
                self.succeed(
                    "bench",
                    "io",
                    "--folder",
                    "disk",
                    "--bytes",
                    "3MiB",
                    "--rounds",
                    "2",
                    "--json",
                    ranks=ranks,
                )
            )
            self.assertEqual(
                (figures["subject"], figures["ranks"], figures["rounds"]), ("io", ranks, 2)
            )
            self.assertTrue(
                2.5e6 < figures["bytes"] <= 3 << 20, figures["bytes"]
            )  # the width of the model is whole
            ways = {way["name"]: way for way in figures["ways"]}
            self.assertEqual(len(ways), 7)
            for name in ("raw write", "raw read"):
                self.assertEqual(ways[name]["of_raw"], 1)
            for name, way in ways.items():
                self.assertTrue(0 < way["least"] <= way["mb_per_s"] <= way["most"], name)
            for how in ("at once", "by a thread"):
                self.assertLess(
                    ways["checkpoint %s: whole" % how]["most"],
                    ways["checkpoint %s: writing" % how]["most"],
                )
            self.assertEqual(os.listdir(self.path("disk")), [])
        table = self.succeed("bench", "io", "--folder", "disk", "--bytes", "1MiB", "--rounds", "1")
        for name in ways:
            self.assertRegex(table, r"(?m)^%s +[0-9.]+ +[0-9.]+ \.\. [0-9.]+ +[0-9.]+$" % name)

    def test_bench_refuses_what_it_cannot_measure(self):
        for arguments, saying in (
            (("io", "--folder", "none"), "none: no such folder"),
            (("io", "--bytes", "1000"), "--bytes 1000"),
            (("io", "--bytes", "9EB"), "free in"),
            (("io", "--bytes", "many"), "--bytes"),
            (("io", "--rounds", "0"), "--rounds"),
            (("gemm",), "io is"),
            (("disk",), "gemm, conv, comm, step"),
        ):
            self.refuse("bench", *arguments, saying=saying)
        result = harness.run("bench", "io", "--folder", "none", ranks=2, cwd=self.folder)
        self.assertEqual(
            (result.returncode, result.text.count("no such folder")), (2, 1), result.text
        )
        self.refuse("bench", saying="SUBJECT")

    def test_each_command_has_help_with_an_example(self):
        overview = self.succeed("--help")
        commands = re.findall(
            r"^  ([a-z]+) +[A-Z]", re.split("(?i)subcommands:", overview)[1], re.MULTILINE
        )
        for command in (
            "train",
            "check",
            "evaluate",
            "shard",
            "inspect",
            "verify",
            "import",
            "export",
            "generate",
        ):
            self.assertIn(command, commands)
        for command in commands:
            text = self.succeed(command, "--help")
            self.assertIn("Example", text, command)
            self.assertIn("trireme " + command, text)


class LanguageModel(harness.Case):
    samples = 64  # of images, which one test takes

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
        write_safetensors(self.path("made.safetensors"), made)
        self.command("import", "made.safetensors", "gpt.toml", "--out", "imported.h5")
        self.command("export", "imported.h5", "--out", "again.safetensors")
        write_safetensors(self.path("meant.safetensors"), weights)
        self.assertEqual(
            read_safetensors(self.path("again.safetensors")),
            read_safetensors(self.path("meant.safetensors")),
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
        trained = read_safetensors(self.path("trained.safetensors"))
        self.assertEqual(trained, read_safetensors(self.path("round.safetensors")))
        self.assertEqual(set(trained), set(weights))
        self.assertNotEqual(
            trained["h.1.mlp.c_fc.weight"],
            read_safetensors(self.path("again.safetensors"))["h.1.mlp.c_fc.weight"],
        )

        made["lm_head.weight"] = (weights["wte.weight"][0], [0.0] * len(weights["wte.weight"][1]))
        write_safetensors(self.path("untied.safetensors"), made)
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

        meant = "validation: loss %.6f, perplexity %.4f, top-1 %.3f %%, %d tokens\n" % (
            rows[-1]["loss"],
            rows[-1]["perplexity"],
            100 * rows[-1]["top1"],
            16 * rows[-1]["samples"],
        )
        for ranks, layout in ((1, ()), (3, ()), (2, ("--set", "parallel.tensor=2"))):
            said = self.command(
                "evaluate",
                "run/deck.toml",
                "--checkpoint",
                "run/checkpoints/step_000000006.h5",
                *layout,
                ranks=ranks
            ).stdout
            if layout:  # sums over a tensor group are rounded otherwise
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
                + r" and [0-9.]+ .iB for the checkpoint under way$",
            )
            self.assertIn("memory a rank: %s; " % memory, taken)

    def test_a_checkpoint_of_another_model_is_refused(self):
        self.command("train", "gpt.toml")
        checkpoint = "run/checkpoints/step_000000006.h5"
        for key, value in (
            ("layers", 2),
            ("heads", 4),
        ):  # of which the heads leave no trace in the shapes of tensors
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
                    expect=2
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
        self.assertEqual(
            harness.checkpoints(self.path("run")), ["step_000000001.h5"]
        )  # after the one step whose loss was finite
        with open(self.path("run/exit.json")) as file:
            self.assertEqual(json.load(file)["code"], 76)
        # Also where the end comes before the last allowed step.
        self.command(
            "train",
            "gpt.toml",
            *diverging,
            "--set",
            "run.folder=short",
            "--set",
            "run.stop=3 steps",
            ranks=4,
            expect=76
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
            ranks=2,
        )
        with open(self.path("run/trace.json")) as file:
            text = json.load(file)
        events = text["traceEvents"] if isinstance(text, dict) else text
        actions = [event for event in events if event.get("ph") == "X"]
        self.assertEqual({event["pid"] for event in actions}, {0, 1})
        self.assertEqual(len(actions), 2 * 2 * 2 * 4)  # steps, stages, directions, micro-batches
        # What goes over MPI beside them: each stage's messages, those that it sends and those that it takes.
        begins, ends = (
            {(event["pid"], event["id"]): event for event in events if event["ph"] == phase}
            for phase in "be"
        )
        self.assertEqual(begins.keys(), ends.keys())
        for key, begin in begins.items():
            self.assertLessEqual(begin["ts"], ends[key]["ts"])
        names = [(begin["pid"], begin["name"]) for begin in begins.values()]
        for sender, direction in ((0, "activation"), (1, "gradient")):
            self.assertEqual(names.count((1 - sender, "receive_" + direction)), 2 * 4)

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
        self.assertIn("no language model", refused.text)
        self.assertEqual(refused.stdout, "")


if __name__ == "__main__":
    unittest.main()
