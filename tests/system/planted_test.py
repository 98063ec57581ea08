# SPDX-License-Identifier: Apache-2.0
"""Tests files that another user puts into a run folder: deep or huge JSON, pipes, folders, links.

A record that cannot be read is set aside and the run goes on. Nothing is written through a link,
and nothing waits for a pipe.
"""

import glob
import json
import os
import shutil
import subprocess

import harness

DEEP = b"[" * 300000
RECORDS = ("exit.json", "environment.json", "metrics.jsonl", "prediction.json", "algorithms.txt")
NAMES = (*RECORDS, "trace.json", "log.txt", "deck.toml", "restart.json", "decks", "tensorboard")


class Planted(harness.Case):
    def setUp(self):
        super().setUp()
        self.train("--set", "run.stop=5 steps")
        os.rename(self.path("run"), self.path("first"))

    def renew(self):
        """Makes the run folder as the first start left it."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        shutil.copytree(self.path("first"), self.path("run"))

    def remove(self, name):
        path = self.path("run", name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)
        return path

    def write(self, name, data, size=0):
        with open(self.remove(name), "wb") as file:
            file.write(data)
            file.truncate(max(size, len(data)))

    def resume(self, expect=0):
        return self.train("--set", "run.stop=6 steps", expect=expect)

    def inspect(self):
        result = harness.run("inspect", "--json", "run", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return json.loads(result.stdout)

    def test_records_that_cannot_be_read_are_set_aside(self):
        for name, data, size in (
            ("exit.json", b'{"code": ' + DEEP, 0),
            ("exit.json", b"{}", 1 << 31),
            ("exit.json", b'{"code": 0, "reason": "\xff"}', 0),
            ("environment.json", DEEP, 0),
            ("environment.json", b"[", 1 << 31),
        ):
            with self.subTest(name=name, size=size):
                self.renew()
                self.write(name, data, size)
                result = self.resume()
                self.assertIn("resumed from run/checkpoints/step_000000005.h5", result.text)
                self.assertIn("warning: run/%s: " % name, result.text)
                self.assertGreaterEqual(os.path.getsize(self.path("run", name + ".damaged")), size)
                with open(self.path("run", name)) as file:
                    json.load(file)

    def test_records_of_another_kind_are_set_aside(self):
        for name in RECORDS:
            for make in (os.mkfifo, os.mkdir):
                with self.subTest(name=name, make=make.__name__):
                    self.renew()
                    make(self.remove(name))
                    self.assertIn("run/%s.damaged" % name, self.resume().text)
                    self.assertTrue(os.path.exists(self.path("run", name + ".damaged")))

    def test_lines_of_metrics_that_cannot_be_read_are_skipped(self):
        with open(self.path("first/metrics.jsonl"), "rb") as file:
            rows = file.read()
        kinds = {json.loads(row)["kind"] for row in rows.splitlines()}
        for data, size in ((b'{"kind": "evaluate", "x":' + DEEP + b"}\n", 0), (b"", 1 << 31)):
            self.renew()
            self.write("metrics.jsonl", rows + data, size)
            described = self.inspect()
            self.assertEqual(set(described["metrics"]), kinds)
            if data:
                self.assertEqual(described["damaged"][0]["path"], "run/metrics.jsonl")
            self.resume()

    def test_inspect_names_a_record_and_shows_the_rest(self):
        for make in (
            lambda name: self.write(name, b'{"x": ' + DEEP),
            lambda name: os.mkfifo(self.remove(name)),
            lambda name: os.symlink("/dev/zero", self.remove(name)),
        ):
            for name in ("exit.json", "metrics.jsonl"):
                self.renew()
                make(name)
                described = self.inspect()
                self.assertEqual(described["newest"]["step"], 5)
                named = [entry["path"] for entry in described["damaged"]]
                if name == "exit.json" or not os.path.isfile(self.path("run", name)):
                    self.assertEqual(named, ["run/" + name])

    def test_a_link_is_refused_before_anything_is_written(self):
        outside = self.path("outside")
        os.mkdir(outside)
        for name in NAMES:
            target = outside if name in ("decks", "tensorboard") else outside + "/file"
            for exists in (True, False):
                with self.subTest(name=name, exists=exists):
                    self.renew()
                    with open(outside + "/file", "w") as file:
                        file.write("precious, without a line end")
                    os.symlink(target if exists else outside + "/missing", self.remove(name))
                    before = sorted(os.listdir(self.path("run")))
                    result = self.resume(expect=2)
                    self.assertIn("run/%s: is a link; remove it" % name, result.text)
                    self.assertEqual(len(self.errors_of(result.text)), 1)
                    self.assertEqual(sorted(os.listdir(self.path("run"))), before)
                    self.assertEqual(
                        self.contents("outside"), {"file": b"precious, without a line end"}
                    )

    def test_other_names_of_a_file_keep_their_content(self):
        """Hard links, as a backup by `cp -al` has them, or one that another user makes."""
        for name, end in (("metrics.jsonl", b'{"kind": "train", "st'), ("log.txt", b"")):
            self.renew()
            with open(self.path("run", name), "ab") as file:
                file.write(end)
            os.chmod(self.path("run", name), 0o640)
            os.link(self.path("run", name), self.path(name))
            with open(self.path(name), "rb") as file:
                before = file.read()
            self.resume()
            with open(self.path(name), "rb") as file:
                self.assertEqual(file.read(), before, name)
            with open(self.path("run", name), "rb") as file:
                rows = file.read()
            self.assertTrue(rows.startswith(before[: len(before) - len(end)]), name)
            self.assertGreater(len(rows), len(before))
            status = os.stat(self.path("run", name))
            self.assertEqual((status.st_nlink, status.st_mode & 0o777), (1, 0o640))
            os.remove(self.path(name))
        # A whole backup, from which the run can be repeated.
        self.renew()
        subprocess.run(["cp", "-al", "run", "backup"], cwd=self.folder, check=True)
        shutil.copytree(self.path("backup"), self.path("before"))
        self.resume()
        subprocess.run(["diff", "-r", "backup", "before"], cwd=self.folder, check=True)

    def test_the_folder_and_its_checkpoints_may_be_links(self):
        self.renew()
        os.mkdir(self.path("scratch"))
        os.rename(self.path("run/checkpoints"), self.path("scratch/checkpoints"))
        os.rename(self.path("run"), self.path("scratch/run"))
        os.symlink("scratch/run", self.path("run"))
        os.symlink("../checkpoints", self.path("scratch/run/checkpoints"))
        self.assertIn("resumed from", self.resume().text)
        self.assertTrue(os.path.exists(self.path("scratch/checkpoints/step_000000006.h5")))

    def test_other_files_of_another_kind_are_refused(self):
        for name, make in (
            ("log.txt", os.mkfifo),
            ("log.txt", os.mkdir),
            ("deck.toml", os.mkdir),
            ("restart.json", os.mkfifo),
            ("decks", os.mkfifo),
            ("checkpoints/best.h5", os.mkfifo),
            ("checkpoints/best.h5", os.mkdir),
            ("checkpoints/best.h5", lambda path: os.symlink("step_000000005.h5", path)),
        ):
            self.renew()
            make(self.remove(name))
            self.assertIn("run/" + name, self.errors_of(self.resume(expect=2).text)[0])
        for data, size in ((DEEP, 0), (b"{}", 1 << 31)):
            self.renew()
            self.write("restart.json", data, size)
            self.assertIn("run/restart.json: ", self.errors_of(self.resume(expect=2).text)[0])

    def test_a_folder_in_the_place_of_the_next_checkpoint_is_set_aside(self):
        for name, restart, kept in (
            ("step_000000006.h5.tmp", "auto", "step_000000006.h5.tmp.damaged"),
            ("step_000000006.h5.tmp", "none", "step_000000006.h5.tmp.damaged"),
            ("step_000000006.h5", "auto", "step_000000006.h5.damaged"),
            ("step_000000006.h5", "none", "before-*/step_000000006.h5"),
        ):
            with self.subTest(name=name, restart=restart):
                self.renew()
                os.makedirs(self.path("run/checkpoints", name, "x"))
                self.train("--set", "run.stop=6 steps", "--restart", restart)
                self.assertTrue(os.path.isfile(self.path("run/checkpoints/step_000000006.h5")))
                self.assertEqual(len(glob.glob(self.path("run/checkpoints", kept, "x"))), 1)

    def test_a_deck_may_come_through_a_pipe_that_somebody_writes_to(self):
        os.mkfifo(self.path("pipe"))
        result = harness.run("check", "pipe", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("pipe: is a pipe to which nothing was written", result.text)
        process = harness.start("check", "pipe", cwd=self.folder)
        with open(self.path("deck.toml")) as deck, open(self.path("pipe"), "w") as pipe:
            pipe.write(deck.read())
        text, _ = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(process.returncode, 0, text)


if __name__ == "__main__":
    harness.main(at_once=2)
