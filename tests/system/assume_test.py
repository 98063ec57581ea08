# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme check` without data (--assume), its JSON object, and the words of its lines."""

import json
import os
import re

import harness

CROP = (
    *("--set", "data.augment.random_resized_crop={ size = 8 }"),
    *("--set", "data.augment.random_crop=0"),
)
TWO = ("--set", "data.augment.normalize={ mean = [0.5, 0.5], std = [0.25, 0.25] }")
# The sets of harness.Case in words.
SETS = {
    "train": "images:640,12x12x1,5",
    "validation": "images:90,12x12x1,5",
    "test": "images:70,12x12x1,5",
}


def assume(**forms):
    return [word for split, form in forms.items() for word in ("--assume", split + "=" + form)]


class Assume(harness.Case):
    def check(self, *arguments, deck=harness.DECK, expect=0):
        self.write_deck(deck)
        result = harness.run("check", "deck.toml", *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result

    def lines(self, *arguments, deck=harness.DECK):
        """Returns the lines of the output by name, without the last one."""
        text = self.check(*arguments, deck=deck).stdout
        return {line[:8].strip(): line[8:] for line in text.splitlines()[:-1]}

    def json(self, *arguments, deck=harness.DECK):
        return json.loads(self.check(*arguments, "--json", deck=deck).stdout)

    def refused(self, *arguments, deck=harness.DECK):
        result = self.check(*arguments, deck=deck, expect=2)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        return result.stderr

    def without_data(self, deck=harness.DECK):
        return deck.replace('"data/', '"nowhere/').replace('"text/', '"nowhere/')

    def test_lines_are_those_of_real_data(self):
        real = self.lines()
        assumed = self.lines(*assume(**SETS), deck=self.without_data())
        self.assertEqual(assumed.pop("assumed"), "; ".join("%s=%s" % item for item in SETS.items()))
        self.assertEqual(
            assumed.pop("files"),
            "not checked: folders and shards of data.train, data.validation, data.test; labels; "
            "names of classes",
        )
        self.assertEqual(assumed, real)

    def test_the_first_line_and_the_last_one_say_that_data_are_assumed(self):
        text = self.check("--assume", SETS["train"], deck=self.without_data()).stdout.splitlines()
        self.assertTrue(text[0].startswith("assumed train=images:640,12x12x1,5; "), text[0])
        self.assertEqual(
            text[-1], "deck.toml: nothing is wrong, as far as it can be checked without the files"
        )
        self.assertEqual(self.check().stdout.splitlines()[-1], "deck.toml: nothing is wrong")

    def test_other_sets_take_the_form_of_the_training_set(self):
        for arguments in (("--assume", SETS["train"]), assume(train=SETS["train"])):
            self.assertEqual(
                self.json(*arguments, deck=self.without_data())["assumed"],
                {
                    "train": SETS["train"],
                    "validation": "images:50000,12x12x1,5",
                    "test": "images:50000,12x12x1,5",
                },
            )
        report = self.json("--assume", "tokens:2001,256", deck=self.without_data(harness.GPT_DECK))
        self.assertEqual(
            report["assumed"], {"train": "tokens:2001,256", "validation": "tokens:10000000,256"}
        )
        self.assertEqual(report["data"]["train"]["samples"], 2000 // 16)
        self.assertEqual(report["data"]["validation"]["samples"], (10000000 - 1) // 16)
        self.assertIn("tokenizers", report["not_checked"])

    def test_an_assumed_set_replaces_one_that_exists(self):
        report = self.json(*assume(validation="images:7,12x12x1,5"))
        self.assertEqual(report["assumed"], {"validation": "images:7,12x12x1,5"})
        self.assertEqual(report["data"]["validation"]["samples"], 7)
        self.assertEqual(report["data"]["train"]["samples"], self.samples)
        self.assertIn("data.validation", report["not_checked"][0])
        self.assertNotIn("data.train", report["not_checked"][0])

    def test_json_has_the_lines_and_their_numbers(self):
        gpt = self.without_data(harness.GPT_DECK)
        layout = ["--ranks", 4, "--set", "parallel.pipeline=2", "--assume", "tokens:2001,256"]
        for arguments, deck in (((), harness.DECK), (layout, gpt)):
            lines, report = self.lines(*arguments, deck=deck), self.json(*arguments, deck=deck)
            self.assertEqual(report["notes"], [lines["note"]] if "note" in lines else [])
            for name in set(lines) - {"assumed", "files", "note"}:
                self.assertEqual(report[name].pop("text"), lines[name])
            self.assertEqual(report["deck"], "deck.toml")
            self.assertEqual(
                [report["layout"][name] for name in ("ranks", "data", "tensor", "pipeline")],
                [int(n) for n in re.findall(r"\d+", lines["layout"])],
            )
            self.assertEqual(
                [report["model"]["weights"], report["model"]["blocks"]],
                [int(n) for n in re.findall(r"(\d+) (?:weights|blocks)", lines["model"])],
            )
            self.assertEqual(report["epoch"]["steps"], int(lines["epoch"].split()[2]))
            number, unit = re.search(r"([\d.]+) (KiB|MiB)", lines["memory"]).groups()
            bytes_of_unit = 1024 ** ("KiB", "MiB").index(unit) * 1024
            self.assertAlmostEqual(
                report["memory"]["bytes"] / bytes_of_unit, float(number), delta=0.051
            )
        report = self.json()
        self.assertEqual((report["assumed"], report["not_checked"]), ({}, []))
        self.assertEqual(report["stop"]["steps"], 20)
        self.assertEqual(
            report["data"]["test"],
            {"holds": "images", "samples": 70, "shape": [12, 12, 1], "class_count": 5},
        )

    def test_encoded_images_have_the_size_of_their_crops(self):
        arguments = [
            *assume(train="images:640,anyx3,5"),
            *CROP,
            *("--set", "data.augment.evaluate={ resize = 10, crop = 8 }"),
            *("--set", "data.augment.normalize={ mean = [0.5, 0.5, 0.5], std = [1, 1, 1] }"),
        ]
        report = self.json(*arguments)
        for name in ("train", "validation", "test"):
            self.assertEqual(report["data"][name]["shape"], [8, 8, 3])
            self.assertEqual(report["data"][name]["holds"], "encoded-images")

    def test_a_missing_dataset_names_the_option(self):
        self.assertIn("trireme check --assume", self.refused(deck=self.without_data()))

    def test_the_rules_about_data_hold(self):
        train = SETS["train"]
        for arguments, words in (
            (assume(train="tokens:9999,256"), 'holds tokens, but model.kind = "resnet"'),
            (assume(train="images:640,anyx1,5"), "write anyx3"),
            (assume(train="images:640,anyx3,5"), "give data.augment.random_resized_crop, as in"),
            (
                [*assume(train="images:640,12x12x1,5", validation="images:90,anyx3,5"), *CROP],
                "give data.augment.evaluate, as in",
            ),
            (
                [*assume(train="images:640,20x20x1,5", validation="images:90,12x12x1,5"), *CROP],
                "crop = 8 } gives images of an evaluation this size",
            ),
            (
                [*assume(train="images:640,12x12x3,5"), *TWO],
                "data.augment.normalize has 2 channels",
            ),
            (assume(train="images:640,12x12x1,1"), "a classifier needs two or more"),
            (assume(train="images:640,99999x12x1,5"), "a side can have 32768 pixels or less"),
            (assume(train="images:63,12x12x1,5"), "holds 63 samples, fewer than batch.global = 64"),
            (assume(train="images:1,12x12x1,5"), "holds 1 sample, fewer"),
            (assume(train=train, test="images:9,12x12x1,6"), "has 6 classes, but data.train only"),
            (assume(test="images:9,12x11x1,5"), "gives samples of 12 x 11 x 1"),
        ):
            self.assertIn(words, self.refused(*arguments))
        gpt = self.without_data(harness.GPT_DECK)
        for arguments, words in (
            (assume(train=train), 'holds images, but model.kind = "gpt" needs tokens'),
            (assume(train="tokens:16,256"), "16 tokens contain no sample of context 16"),
            (
                assume(train="tokens:9999,256", validation="tokens:9999,257"),
                "has a vocabulary of 257, but data.train only of 256",
            ),
            (
                [*assume(train="tokens:9999,256"), "--set", "model.vocabulary=255"],
                "model.vocabulary = 255 is less than that of data.train",
            ),
        ):
            self.assertIn(words, self.refused(*arguments, deck=gpt))

    def test_messages_name_the_option_as_typed(self):
        option = "images:640,99999x12x1,5"
        self.assertIn("--assume test=%s: data.test" % option, self.refused(*assume(test=option)))
        option = "images:640,11x12x1,5"
        self.assertIn(
            '--assume validation=%s: data.validation = "%s"' % (option, option),
            self.refused(*assume(validation=option)),
        )

    def test_a_set_without_the_highest_classes_is_accepted(self):
        self.check(*assume(test="images:640,12x12x1,1"))

    def test_wrong_assumptions_are_refused(self):
        train = SETS["train"]
        for arguments, words in (
            (("--assume", "640"), "--assume 640: write images:COUNT,HxWxC,CLASSES, fields:"),
            (("--assume", "images:0,2x2x1,5"), 'COUNT is "0"'),
            (("--assume", "trian=" + train), "write images:COUNT"),
            (("--assume", "images:9,3x32x32,5"), "the order of PyTorch; write HxWxC: 32x32x3"),
            (("--assume", "images:9,13x64x64,5"), "write HxWxC: 64x64x13"),
            ((*assume(train=train), "--assume", train), "the train set is assumed twice"),
        ):
            self.assertIn(words, self.refused(*arguments))
        deck = harness.DECK.replace('test = "data/test"\n', "")
        self.assertIn("the deck has no data.test", self.refused(*assume(test=train), deck=deck))

    def test_train_and_evaluate_refuse_it(self):
        for command in (("train",), ("evaluate", "--checkpoint", "none.h5")):
            result = harness.run(*command, "deck.toml", "--assume", SETS["train"], cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("unknown option --assume; it is an option of check", result.stderr)
            self.assertFalse(os.path.exists(self.path("run")))

    def test_train_counts_the_same_blocks(self):
        blocks = self.json()["model"]["blocks"]
        self.assertRegex(
            self.train("--set", "run.stop=1 step", "--set", "schedule.warmup=none").text,
            r"weights in %d blocks, 640 samples" % blocks,
        )

    def test_the_kind_is_that_of_the_deck(self):
        mlp = harness.DECK.replace(
            'kind = "resnet"\ndepth = 8\nwidth = 8\nstem = "small"', 'kind = "mlp"\nwidths = [4]'
        )
        for deck, kind in ((harness.DECK, "resnet"), (mlp, "mlp")):
            self.assertEqual(self.json(deck=deck)["model"]["kind"], kind)
            self.assertIn(
                'model.kind = "%s" needs images' % kind,
                self.refused("--assume", "tokens:9999,256", deck=deck),
            )
        self.assertRegex(self.lines(deck=mlp)["model"], r"^mlp: \d+ weights in 1 block$")

    def test_one_is_not_many(self):
        lines = self.lines(
            "--assume",
            "images:65,12x12x1,5",
            "--set",
            "run.stop=1 epoch",
            "--set",
            "schedule.warmup=1 step",
        )
        self.assertEqual(lines["epoch"], "64 samples, 1 step (1 sample left out)")
        self.assertEqual(lines["stop"], "1 epoch = 1 step")
        self.assertIn("warm-up over 1 step,", lines["rate"])
        text = harness.run("inspect", "data/test", cwd=self.folder).stdout
        self.assertIn("in 1 shard, 5 classes", text)


if __name__ == "__main__":
    harness.main(at_once=2)
