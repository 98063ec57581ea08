# SPDX-License-Identifier: Apache-2.0
"""Tests optimizer.groups, optimizer.clip_value and model.drop_path in whole runs.

Layouts and restarts have the same bits, frozen weights keep theirs and have no optimizer state, and
a restart may freeze and thaw weights.
"""

import json
import os
import shutil
import unittest

import harness

try:
    import h5py
except ImportError:
    h5py = None

FROZEN = '{ match = "layer1.*", frozen = true }, { match = "*conv*", frozen = true }'
GROUPS = (
    '[{ match = "fc.*", rate_ratio = 2, decay = 0.01 }, %s, { match = "*.bias", decay = 0 }]'
    % FROZEN
)
STEP = "checkpoints/step_0000000%02d.h5"


def settings(values):
    return [word for key, value in values.items() for word in ("--set", "%s=%s" % (key, value))]


ALL = {
    "optimizer.groups": GROUPS,
    "optimizer.clip_value": 1e-2,
    "optimizer.clip_norm": 0.5,
    "optimizer.ema": 0.9,
    "model.drop_path": 0.3,
    "schedule.kind": "constant",
}
LAYOUTS = {
    "one": (1, {}),
    "recomputed": (1, {"parallel.recompute": "all"}),
    "gradients": (4, {"parallel.shard": "gradients", "parallel.bucket_mb": 0.002}),
    "parameters": (
        2,
        {
            "parallel.shard": "parameters",
            "parallel.offload": '["optimizer", "parameters", "activations"]',
            "parallel.bucket_mb": 0.002,
        },
    ),
}


class Groups(harness.Case):
    def run_to(self, steps, folder, *more, ranks=1, expect=0):
        return self.train(
            *settings({"run.folder": folder, "run.stop": "%d steps" % steps} | ALL),
            *more,
            ranks=ranks,
            expect=expect
        )

    def said(self, *arguments):
        result = harness.run(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def tensors_of(self, checkpoint):
        return json.loads(self.said("inspect", "--json", checkpoint))["tensors"]

    def is_frozen(self, name):
        return (name.startswith("layer1.") or "conv" in name) and "running" not in name

    def test_the_bits_are_equal_at_every_layout_and_after_a_kill(self):
        digests = {}
        for name, (ranks, layout) in LAYOUTS.items():
            self.run_to(10, name, *settings(layout), ranks=ranks)
            digests[name] = harness.digest(self.path(name, STEP % 10))
        result = harness.run(
            "train",
            "deck.toml",
            *settings({"run.folder": "killed", "run.stop": "10 steps"} | ALL),
            *settings({"checkpoint.async": "false", "debug.fault": "kill rank 1 step 8"}),
            "--allow-faults",
            ranks=2,
            cwd=self.folder
        )
        self.assertNotEqual(result.returncode, 0, result.text)
        self.run_to(10, "killed", "--set", "parallel.shard=optimizer", ranks=2)
        digests["killed"] = harness.digest(self.path("killed", STEP % 10))
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_other_kinds_of_sync_resume_with_their_bits(self):
        """The pending gradient and the outer momentum have no frozen tensors either."""
        for sync, more in (
            ("delayed", ()),
            ("every 5 steps", ("--set", "parallel.outer_momentum=0.5")),
        ):
            sync_key = ("--set", "parallel.sync=" + sync)
            folder = sync.replace(" ", "-")
            self.run_to(10, folder, *sync_key, *more, ranks=2)
            self.run_to(5, folder + "-again", *sync_key, *more, ranks=2)
            self.run_to(10, folder + "-again", *sync_key, *more, ranks=2)
            names = (folder, folder + "-again")
            digests = [harness.digest(self.path(name, STEP % 10)) for name in names]
            self.assertEqual(digests[0], digests[1], sync)
            tensors = self.tensors_of(folder + "/" + STEP % 10)
            slots = [path.split("/", 2)[2] for path in tensors if path.startswith("optimizer/")]
            self.assertTrue(slots)
            self.assertFalse([name for name in slots if self.is_frozen(name)])

    def test_frozen_weights_stay_and_have_no_slots(self):
        result = self.run_to(5, "run")
        self.assertIn('groups: "fc.*": 2 tensors, 165 weights, rate x 2, decay 0.01;', result.text)
        self.run_to(10, "run")
        five, ten = (self.tensors_of("run/" + STEP % step) for step in (5, 10))
        self.assertEqual(five.keys(), ten.keys())
        names = [path[6:] for path in ten if path.startswith("model/")]
        self.assertEqual(
            sorted(name for name in names if self.is_frozen(name)),
            sorted(name for name in names if "optimizer/momentum/" + name not in ten),
        )
        for name in names:
            for group in ("model/", "ema/"):
                same = five[group + name]["digest"] == ten[group + name]["digest"]
                self.assertEqual(same, self.is_frozen(name), group + name)

    def test_a_restart_may_freeze_and_thaw(self):
        thawed = ("--set", "optimizer.groups=[]")
        self.run_to(5, "run", *thawed)
        result = self.run_to(10, "run")
        self.assertIn(
            "changed since the checkpoint: optimizer.groups: not given -> [{", result.text
        )
        five, ten = (self.tensors_of("run/" + STEP % step) for step in (5, 10))
        name = "layer1.0.conv1.weight"
        self.assertIn("optimizer/momentum/" + name, five)
        self.assertNotIn("optimizer/momentum/" + name, ten)
        self.assertEqual(five["model/" + name]["digest"], ten["model/" + name]["digest"])
        # The average followed the weight until now. It would never reach it any more.
        self.assertNotEqual(five["ema/" + name]["digest"], five["model/" + name]["digest"])
        self.assertEqual(ten["ema/" + name]["digest"], ten["model/" + name]["digest"])
        result = self.run_to(15, "run", *thawed)
        self.assertRegex(result.text, r"has no optimizer state for \d+ tensors: it starts at zero")
        fifteen = self.tensors_of("run/" + STEP % 15)
        self.assertIn("optimizer/momentum/" + name, fifteen)
        self.assertNotEqual(ten["model/" + name]["digest"], fifteen["model/" + name]["digest"])

    @unittest.skipIf(h5py is None, "h5py is not installed")
    def test_a_thawed_weight_is_corrected_as_in_a_new_run(self):
        """Its moments begin at step 6, and so does the count of their bias correction."""
        self.write_deck(harness.DECK.replace("momentum = 0.9\n", ""))
        # The first update of adamw moves a weight by the rate, whatever its gradient is.
        keys = {"optimizer.kind": "adamw", "optimizer.clip_value": 0, "optimizer.clip_norm": 0}
        keys |= {"schedule.rate": 1e-3, "optimizer.ema": 0}
        adamw, thawed = settings(keys), ("--set", "optimizer.groups=[]")
        self.run_to(5, "run", *adamw)
        shutil.copytree(self.path("run"), self.path("two"))
        sharded = ("--set", "parallel.shard=parameters")
        for folder, ranks, layout in (("run", 1, ()), ("two", 2, sharded)):
            self.run_to(6, folder, *adamw, *thawed, *layout, ranks=ranks)
            self.run_to(7, folder, *adamw, *thawed, *layout, ranks=ranks)
        self.run_to(5, "whole", *adamw, *thawed)
        self.run_to(7, "whole", *adamw, *thawed)
        name = "layer1.0.conv1.weight"
        five, six, seven, two, whole = (
            h5py.File(self.path(folder, STEP % step), "r")
            for folder, step in (("run", 5), ("run", 6), ("run", 7), ("two", 7), ("whole", 7))
        )
        with five, six, seven, two, whole:
            moved = abs(six["model/" + name][()] - five["model/" + name][()])
            self.assertLess(moved.max(), 1.001e-3)
            self.assertGreater(moved.mean(), 0.9e-3)
            for slot in ("exp_avg", "exp_avg_sq"):
                path = "optimizer/%s/%s" % (slot, name)
                self.assertEqual(seven[path].attrs["updates_before"], 5)
                self.assertNotIn("updates_before", whole[path].attrs)
                self.assertNotIn("updates_before", seven["optimizer/%s/fc.bias" % slot].attrs)
        digests = [harness.digest(self.path(folder, STEP % 7)) for folder in ("run", "two")]
        self.assertEqual(digests[0], digests[1])
        # A run that goes on without a restart between steps 6 and 7.
        shutil.rmtree(self.path("two"))
        self.run_to(5, "two", *adamw)
        self.run_to(7, "two", *adamw, *thawed)
        self.assertEqual(harness.digest(self.path("two", STEP % 7)), digests[0])

    def test_the_stored_deck_is_that_of_the_run(self):
        self.run_to(5, "run")
        result = self.run_to(10, "run")
        for key in ("optimizer.groups", "optimizer.clip_value", "model.drop_path"):
            self.assertNotIn("changed since the checkpoint: " + key, result.text)
        result = self.run_to(15, "run", "--set", "model.drop_path=0.2", expect=2)
        self.assertIn("may not change model.drop_path: 0.3 -> 0.2", result.text)

    def test_groups_that_do_not_fit_are_refused(self):
        for groups, words in {
            '[{ match = "head.*" }]': [
                "optimizer.groups",
                'group 1 (match = "head.*") matches no weight',
                "conv1.weight",
                "fc.bias",
            ],
            '[{ match = "*", frozen = true }]': ["nothing would be trained"],
            '[{ match = "*" }, { match = "fc.*", rate_ratio = 2 }]': ["group 2", "has no effect"],
            '[{ match = "*", rate = 2 }]': ['"rate" is an unknown key', "rate_ratio"],
        }.items():
            for command in ("train", "check"):
                result = harness.run(
                    command, "deck.toml", "--set", "optimizer.groups=" + groups, cwd=self.folder
                )
                self.assertEqual(result.returncode, 2, groups + "\n" + result.text)
                for word in words:
                    self.assertIn(word, result.text)
                self.assertFalse(os.path.exists(self.path("run/checkpoints")))

    def test_a_language_model_trains_its_last_stage(self):
        """Freezes the embedding and the first blocks, so that the first stage has no gradients."""
        harness.make_text(self.path("text"))
        self.write_deck(harness.GPT_DECK)
        frozen = '[{ match = "w?e.weight", frozen = true }, { match = "h.0.*", frozen = true }]'
        losses = {}
        for name, ranks, layout in (
            ("one", 1, {}),
            ("pipeline", 2, {"parallel.pipeline": 2}),
            ("sharded", 2, {"parallel.shard": "parameters"}),
            ("tensor", 2, {"parallel.tensor": 2, "parallel.sequence": "true"}),
        ):
            self.train(
                *settings({"run.folder": name, "optimizer.groups": frozen, "model.drop_path": 0.3}),
                *settings(layout),
                ranks=ranks
            )
            losses[name] = harness.losses(self.path(name))
        for name, found in losses.items():
            for a, b in zip(losses["one"], found, strict=True):
                self.assertLess(abs(a - b), 5e-5 * a, name)
        self.assertLess(losses["one"][-1], losses["one"][0])


if __name__ == "__main__":
    harness.main(at_once=2)
