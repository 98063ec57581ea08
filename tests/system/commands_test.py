# SPDX-License-Identifier: Apache-2.0
"""Tests the commands other than `train` and `evaluate`.

Export and import of safetensors, inspect, verify, shard, bench, help.
"""

import json
import os
import re
import shutil
import subprocess
import unittest

import harness
import safetensors_io


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
        first = safetensors_io.read(self.path("first.safetensors"))
        second = safetensors_io.read(self.path("second.safetensors"))
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
            self.refuse(
                "export", checkpoint, "--out", output, "--overwrite", saying="is the input file"
            )
        for output in ("w.safetensors", "deck.toml"):
            self.refuse(
                "import",
                "w.safetensors",
                "deck.toml",
                "--out",
                output,
                "--overwrite",
                saying="is the input file",
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
        os.symlink("w.safetensors", self.path("link"))
        self.succeed("export", checkpoint, "--out", "link", "--overwrite")
        self.assertTrue(os.path.islink(self.path("link")))

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
        self.assertEqual(result.stderr.count("verify runs on one process"), 1, result.stderr)
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

    def test_an_answer_without_standard_output_is_a_failure(self):
        warmup = ("--set", "schedule.warmup=1 step")
        self.train("--set", "run.stop=2 steps", *warmup)
        checkpoint = self.path("run/checkpoints/step_000000002.h5")
        evaluate = ("evaluate", "deck.toml", "--checkpoint", checkpoint, "--json")
        made = ("shard", "text", "deck.toml", "--out", "made")
        for code, arguments in (
            (1, ("inspect", "--json", self.path("data/train"))),
            (1, ("--version",)),
            (1, ("train", "--help")),
            (1, ("check", "--keys")),  # more than a buffer
            (1, evaluate),
            (1, made),
            # Its log is on standard error and in a file.
            (0, ("train", "deck.toml", "--set", "run.stop=3 steps", *warmup)),
        ):
            words = ["sh", "-c", 'exec "$0" "$@" >&-', *harness.command(*arguments)]
            result = subprocess.run(
                words, stderr=subprocess.PIPE, cwd=self.folder, env=harness.environment(), text=True
            )
            self.assertEqual(result.returncode, code, result.stderr)
            if code == 1:
                self.assertRegex(result.stderr, "standard output|Bad file descriptor")

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
        # most of the file is values of tensors
        flip(self.path("value.h5"), os.path.getsize(whole) // 2)
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
        flip(broken, os.path.getsize(broken) // 2)  # nearly all bytes of the file are images
        for path in ("copy", broken):
            result = harness.run("verify", path, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertRegex(
                result.text,
                re.escape(os.path.basename(broken))
                + r": damaged: bytes \d+ to \d+ \(block \d+ of \d+\) do not match the seal",
            )
        # the other shard is intact
        self.assertEqual(
            harness.run("verify", "copy", cwd=self.folder).text.count(": damaged: "), 1
        )

    def test_a_shard_without_a_seal_is_valid_and_verify_says_what_it_did_not_check(self):
        shutil.copytree(self.shared + "/train", self.path("copy"))
        for name in os.listdir(self.path("copy")):
            with open(self.path("copy", name), "rb") as file:
                content = file.read()
            with open(self.path("copy", name), "wb") as file:
                file.write(content[content.index(b"\x89HDF") :])
        said = self.succeed("verify", "copy")
        self.assertEqual(said.count("no seal: "), 2, said)
        self.assertEqual(said.count("attributes"), 2, said)
        self.assertNotIn("whole", said)
        first = self.train("--set", "run.stop=5 steps").text
        self.assertIn("step_000000005.h5", first)
        # The identity of the dataset is that of the sealed shards: the run continues with them.
        self.train("--set", "run.stop=10 steps", "--set", "data.train=copy")

    def test_a_start_refuses_a_shard_whose_length_is_not_that_of_its_seal(self):
        shutil.copytree(self.shared + "/train", self.path("copy"))
        longer = self.path("copy", sorted(os.listdir(self.path("copy")))[1])
        with open(longer, "ab") as file:
            file.write(b"x")
        for arguments in (
            ("train", "deck.toml", "--set", "data.train=copy"),
            ("check", "deck.toml", "--set", "data.train=copy"),
            ("inspect", longer),
            ("verify", "copy"),
        ):
            result = harness.run(*arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
            self.assertIn(os.path.basename(longer), result.text)
            self.assertIn("its seal (bytes 8 to 16)", result.text)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_shards_have_the_same_sealed_bytes_at_any_number_of_ranks(self):
        harness.write_idx(self.path("images"), (30, 4, 4), bytes(range(240)) * 2)
        harness.write_idx(self.path("labels"), (30,), bytes(i % 3 for i in range(30)))
        for ranks in (1, 2, 3):
            self.succeed(
                "shard",
                "idx",
                "images",
                "labels",
                "--out",
                "made%d" % ranks,
                "--shards",
                "3",
                "--classes",
                "cat,dog,fish",
                ranks=ranks,
            )
        for name in os.listdir(self.path("made1")):
            contents = []
            for ranks in (1, 2, 3):
                with open(self.path("made%d" % ranks, name), "rb") as file:
                    contents.append(file.read())
            self.assertEqual(contents[0][:8], b"TRIREME1")
            self.assertEqual(contents, contents[:1] * 3)
        self.assertEqual(self.succeed("verify", "made2").count("whole"), 3)
        place = contents[0].index(b"fish")
        flip(self.path("made2", name), place)
        result = harness.run("verify", "made2", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertRegex(result.text, re.escape(name) + ": damaged: bytes .* the seal")

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

    def test_verify_goes_on_after_a_file_that_cannot_be_read(self):
        shutil.copytree(self.shared + "/train", self.path("copy"))
        first, second = sorted(os.listdir(self.path("copy")))
        # In the process that reads with HDF5 the disk fails after the seal was checked.
        library = self.preloaded(
            "broken_disk",
            r"""
            #define _GNU_SOURCE
            #include <dlfcn.h>
            #include <errno.h>
            #include <stdio.h>
            #include <string.h>
            #include <unistd.h>

            static int is_broken(int file) {
              char link[64], path[4096], words[4096];
              snprintf(link, sizeof link, "/proc/self/fd/%d", file);
              ssize_t length = readlink(link, path, sizeof path - 1);
              if (length < 0) return 0;
              path[length] = 0;
              FILE* command = fopen("/proc/self/cmdline", "r");
              length = command ? (ssize_t)fread(words, 1, sizeof words, command) : 0;
              if (command) fclose(command);
              return strstr(path, "BROKEN") && memmem(words, length, "index-hdf5", 10);
            }

            ssize_t pread(int file, void* out, size_t bytes, off_t place) {
              ssize_t (*next)(int, void*, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
              if (is_broken(file)) { errno = EIO; return -1; }
              return next(file, out, bytes, place);
            }
            ssize_t pread64(int file, void* out, size_t bytes, off64_t place) {
              return pread(file, out, bytes, place);
            }
            """.replace("BROKEN", first),
        )
        env = {"LD_PRELOAD": library}
        result = harness.run("verify", "copy", cwd=self.folder, env=env)
        self.assertEqual(result.returncode, 1, result.text)
        self.assertRegex(result.text, re.escape(first) + ": not checked: .*Input/output error")
        self.assertIn(second + ": whole", result.text)
        # A failed disk is not a fault of the file.
        result = harness.run("inspect", "copy/" + first, cwd=self.folder, env=env)
        self.assertEqual(result.returncode, 1, result.text)
        self.assertIn("Input/output error", result.text)
        # A damaged file outweighs it.
        flip(self.path("copy", second), os.path.getsize(self.path("copy", second)) // 2)
        result = harness.run("verify", "copy", cwd=self.folder, env=env)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn(first + ": not checked: ", result.text)
        self.assertIn(second + ": damaged: ", result.text)

        os.remove(self.path("copy", second))
        os.symlink("nowhere", self.path("copy", second))
        with open(self.path("copy", "._" + second), "w") as file:
            file.write("a name that begins with a dot is ignored")
        result = harness.run("verify", "copy", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn(first + ": whole", result.text)
        self.assertRegex(result.text, re.escape(second) + ": not checked: .*No such file")

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
            # the width of the model is intact
            self.assertTrue(2.5e6 < figures["bytes"] <= 3 << 20, figures["bytes"])
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

    def test_bench_data_measures_reading(self):
        harness.make_dataset(self.path("images"), samples=300, size=16)
        bench = ("bench", "data", "--folder", "images", "--seconds", "0.05", "--batch", "64")
        figures = json.loads(self.succeed(*bench, "--json"))
        self.assertEqual((figures["subject"], figures["samples"]), ("data", 300))
        rows = figures["rows"]
        self.assertEqual(
            [(row["stage"], row.get("workers"), row.get("prefetch")) for row in rows],
            [("large blocks", None, None)]
            + [("read", workers, prefetch) for workers in (1, 2, 4) for prefetch in (1, 4)]
            + [("crop, flip, normalize", None, None)],
        )
        for row in rows[1:]:
            self.assertGreater(row["samples_per_s"], 0)
            self.assertGreater(row["samples_per_s_core"], 0)
            self.assertAlmostEqual(
                row["mb_per_s"], row["samples_per_s"] * figures["sample_bytes"] / 1e6, delta=1
            )
        table = self.succeed(*bench, "--workers", "3", "--cold")
        self.assertRegex(table, r"read +3 +1 +\d+ +\d+ +\d+ +\d+")
        self.assertIn("from the disk", table)
        self.refuse(*bench, "--decode", "fast", saying="--decode fast applies to encoded images")
        # --colors is for RGB images, of which the readers change every one.
        self.refuse(*bench, "--colors", saying="--colors changes RGB images of uint8, but its")
        harness.write_idx(self.path("rgb"), (128, 8, 8, 3), bytes(128 * 192))
        harness.write_idx(self.path("labels"), (128,), bytes(i % 2 for i in range(128)))
        self.succeed("shard", "idx", "rgb", "labels", "--out", "rgb_set")
        bench = ("bench", "data", "--folder", "rgb_set", "--seconds", "0.05", "--colors", "--json")
        rows = json.loads(self.succeed(*bench))["rows"]
        stages = [row["stage"] for row in rows if row.get("samples_per_s_core", 0) > 0]
        self.assertIn("crop and colors", stages)

    def test_bench_refuses_options_of_other_datasets(self):
        harness.make_text(self.path("text"))
        for folder, option, saying in (
            ("text/train", "--crop", "--crop 8 is for images, but text/train contains tokens"),
            ("data/train", "--context", "--context 8 is for tokens, but data/train contains"),
        ):
            self.refuse("bench", "data", "--folder", folder, option, "8", saying=saying)

    def test_bench_refuses_what_it_cannot_measure(self):
        for arguments, saying in (
            (("io", "--folder", "none"), "none: no such folder"),
            (("io", "--bytes", "1000"), "--bytes 1000"),
            (("io", "--bytes", "9EB"), "free in"),
            (("io", "--bytes", "many"), "--bytes"),
            (("io", "--rounds", "0"), "--rounds"),
            (("data",), "--folder DATASET is missing"),
            (("data", "--folder", "none"), "none: there is no such folder"),
            (("data", "--folder", ".", "--rounds", "2"), "--rounds belongs to bench comm"),
            (("io", "--cold"), "--cold belongs to bench data"),
            (("io", "--decode", "fast"), "--decode belongs to bench data"),
            (("data", "--folder", ".", "--decode", "quick"), "--decode"),
            (("disk",), "subjects are comm, conv, data, gemm, io, ops, step"),
            (("gemm", "--folder", "."), "--folder belongs to bench data, io"),
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


if __name__ == "__main__":
    unittest.main()
