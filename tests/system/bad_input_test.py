# SPDX-License-Identifier: Apache-2.0
"""Tests mistakes in decks: exit code 2 before training, with file, line, key and remedy.

All mistakes of a deck are reported at once, and printed once at any number of ranks.
"""

import os
import re

import harness

# (old text of the deck, new text, words that the message must contain)
MISTAKES = {
    "a misspelt key": ("momentum = 0.9", "momentun = 0.9", ["momentun", 'did you mean "momentum"']),
    "a misspelt table": ("[schedule]", "[shedule]", ["shedule", "schedule"]),
    "a wrong type": ("depth = 8", 'depth = "eight"', ["[model] depth", "integer"]),
    "a negative batch": ("global = 64", "global = -64", ["[batch] global", "-64"]),
    "a batch that does not divide": (
        "global = 64",
        "global = 50",
        ["batch.global", "50", "48", "64"],
    ),
    "missing data": ('train = "data/train"', 'train = "data/nowhere"', ["data/nowhere"]),
    "a folder that cannot be made": (
        'folder = "run"',
        'folder = "deck.toml/run"',
        ["run.folder", "Not a directory", "may be written"],
    ),
    "a wrong unit": ('stop = "20 steps"', 'stop = "20 stepps"', ["[run] stop", "stepps", "steps"]),
    "a bad name": ('name = "test"', 'name = "a/b"', ["[run] name", "a/b"]),
    "a wrong choice": ('kind = "sgd"', 'kind = "sdg"', ["sdg", "sgd"]),
    "a key of another kind": ("weight_decay = 5e-4", "beta1 = 0.9", ["beta1", "adamw"]),
    "a value out of range": ("momentum = 0.9", "momentum = 1.9", ["[optimizer] momentum", "1.9"]),
    "a depth that is none": ("depth = 8", "depth = 9", ["depth", "8"]),
    "broken TOML": ("[batch]", "[batch", ["deck.toml:"]),
    "no data at all": ('train = "data/train"', "", ["train"]),
}


# Impossible layouts: (deck, changes, ranks, key whose line the message names, further words of the
# message). The last change is the mistake.
GPT_MISTAKES = {
    "heads that do not divide": (
        harness.GPT_DECK,
        [("tensor = 1", "tensor = 4")],
        4,
        "tensor",
        ["model.heads = 2", "use 2"],
    ),
    "more stages than blocks": (
        harness.GPT_DECK,
        [("layers = 3", "layers = 2"), ("pipeline = 1", "pipeline = 4")],
        4,
        "pipeline",
        ["only 3 blocks", "use parallel.pipeline = 3"],
    ),
    "a split network of images": (
        harness.DECK + "[parallel]\ntensor = 1\n",
        [("tensor = 1", "tensor = 2")],
        4,
        "tensor",
        ["gpt", "use tensor = 1"],
    ),
    "micro-batches that make no groups": (
        harness.GPT_DECK,
        [
            ("pipeline = 1", "pipeline = 2"),
            ('"1f1b"', '"interleaved"'),
            ("chunks = 1", "chunks = 2"),
            ("global = 8", "global = 12"),
        ],
        4,
        "global",
        ["3 micro-batches", "use batch.global = 8 or 16"],
    ),
    "sequence without tensor": (
        harness.GPT_DECK,
        [("sequence = false", "sequence = true")],
        4,
        "sequence",
        ["parallel.tensor = 1", "use sequence = false"],
    ),
}


class BadInput(harness.Case):
    def check(self, before, after, words, ranks):
        self.assertIn(before, harness.DECK)
        self.write_deck(harness.DECK.replace(before, after, 1))
        result = self.train(ranks=ranks, expect=2)
        for word in words:
            self.assertIn(word, result.text)
        if after:  # a missing key has no line
            lines = harness.DECK.replace(before, after, 1).split("\n")
            self.assertRegex(
                result.text,
                r"deck\.toml:%s:\d+" % (lines.index(after) + 1 if after in lines else r"\d+"),
            )
        self.assertFalse(
            os.path.exists(self.path("run")), "a start that failed left an empty run folder"
        )
        return result.text

    def test_each_mistake_is_named_with_its_remedy(self):
        for what, (before, after, words) in MISTAKES.items():
            with self.subTest(what):
                self.check(before, after, words, 1)

    def test_printed_once_at_four_ranks(self):
        for what in ("a misspelt key", "missing data", "a batch that does not divide"):
            with self.subTest(what):
                before, after, words = MISTAKES[what]
                text = self.check(before, after, words, 4)
                self.assertEqual(
                    text.count(words[0]), self.check(before, after, words, 1).count(words[0])
                )

    def test_all_mistakes_of_a_deck_at_once(self):
        deck = harness.DECK
        for what in (
            "a misspelt key",
            "a wrong type",
            "a negative batch",
            "a wrong unit",
            "a bad name",
        ):
            before, after, _ = MISTAKES[what]
            deck = deck.replace(before, after, 1)
        self.write_deck(deck)
        text = self.train(expect=2).text
        self.assertGreaterEqual(len(re.findall(r"deck\.toml:\d+:\d+", text)), 5)
        for word in ("momentun", "depth", "global", "stepps", "a/b"):
            self.assertIn(word, text)

    def test_layouts_that_cannot_be(self):
        """Checks `check` and `train`; at four ranks the message is printed once."""
        harness.make_text(self.path("text"))
        for what, (deck, changes, ranks, key, words) in GPT_MISTAKES.items():
            with self.subTest(what):
                for before, after in changes:
                    self.assertEqual(deck.count(before), 1, before)
                    deck = deck.replace(before, after)
                self.write_deck(deck)
                line = next(
                    number
                    for number, text in enumerate(deck.split("\n"), 1)
                    if changes[-1][1] in text
                )
                for result in (
                    harness.run("check", "deck.toml", "--ranks", ranks, cwd=self.folder),
                    self.train(ranks=ranks, expect=2),
                ):
                    self.assertEqual(result.returncode, 2, result.text)
                    self.assertRegex(result.text, r"deck\.toml:%d:\d+: .*%s" % (line, key))
                    for word in words:
                        self.assertEqual(result.text.count(word), 1, result.text)
                self.assertFalse(os.path.exists(self.path("run")))

    def test_a_plan_beyond_the_memory_of_the_host(self):
        resnet = 'kind = "resnet"\ndepth = 8\nwidth = 8\nstem = "small"'
        self.assertIn(resnet, harness.DECK)
        deck = harness.DECK.replace(resnet, 'kind = "mlp"\nwidths = [65536]')
        deck = deck.replace("micro = 16", "micro = 536870912").replace(
            "global = 64", "global = 1073741824"
        )
        self.write_deck(deck.replace("workers = 1", "drop_last = false"))
        result = harness.run("check", "deck.toml", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(result.text, r"warning a rank needs [0-9.]+ TiB, but this host has .*")
        self.assertIn("of memory; use a smaller batch.micro", result.text)
        for ranks in (1, 2):
            text = self.train(ranks=ranks, expect=2).text
            self.assertEqual(text.count("but this host has"), 1, text)
            self.assertFalse(os.path.exists(self.path("run")))

    def test_check_says_the_same_as_train(self):
        before, after, words = MISTAKES["a misspelt key"]
        self.write_deck(harness.DECK.replace(before, after, 1))
        result = harness.run("check", "deck.toml", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn(words[1], result.text)
        self.write_deck(harness.DECK)
        self.assertEqual(harness.run("check", "deck.toml", cwd=self.folder).returncode, 0)

    def test_the_command_line_too(self):
        for arguments in (
            ("train",),
            ("train", "nowhere.toml"),
            ("trian", "deck.toml"),
            ("train", "deck.toml", "--restrat", "auto"),
            ("train", "deck.toml", "--set", "run.seed"),
            ("train", "deck.toml", "--set", "run.sed=3"),
            ("evaluate", "deck.toml", "--checkpoint", "nowhere.h5"),
            ("verify", "nowhere.h5"),
            ("inspect", "nowhere"),
        ):
            result = harness.run(*arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
            self.assertTrue(result.text.strip())

    def test_an_empty_value_is_not_one_that_was_left_out(self):
        for option in ("--timeline", "--memory-plot", "--simgrid", "--json", "--sbatch", "--group"):
            result = harness.run("plan", "deck.toml", option, "", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("%s: must not be empty; give " % option, result.text)
            self.assertIn("or leave the option out", result.text)
        for arguments, name in (
            (("bench", "gemm", "--machine-out", ""), "--machine-out"),
            (("doctor", "--folder", ""), "--folder"),
            (("train", "deck.toml", "--restart", ""), "--restart"),
            (("check", "deck.toml", "--set", ""), "--set"),
            (("export", "a.h5", "--out", ""), "--out"),
            (("generate", "", "--prompt", "x"), "CHECKPOINT"),
            (("generate", "a.h5", "--prompt", ""), "--prompt"),
            (("train", ""), "DECK"),
            (("verify", ""), "PATH"),
        ):
            result = harness.run(*arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("%s: must not be empty" % name, result.text)

    def test_a_folder_that_cannot_be_written_is_found_before_the_work(self):
        with harness.SmallDisk(self.path("disk"), 1 << 20, read_only=True):
            for arguments in (
                # The sources do not exist: they are read after this check.
                ("export", "none.h5", "--out", "disk/out"),
                ("import", "none", "deck.toml", "--out", "disk/out"),
                ("check", "none.toml", "--images", "disk/out"),
                ("check", "none.toml", "--schedule", "disk/out"),
                ("bench", "gemm", "--machine-out", "disk/out"),
            ):
                result = harness.run(*arguments, cwd=self.folder)
                self.assertEqual(result.returncode, 2, result.text)
                saying = "%s disk/out: no file can be made in its folder" % arguments[-2]
                self.assertIn(saying, result.text)
                self.assertIn("name a file in another folder", result.text)

    def test_a_link_to_nothing_is_no_output_file(self):
        os.symlink("none", self.path("link"))
        for arguments in (
            ("export", "none.h5", "--out"),
            ("export", "none.h5", "--overwrite", "--out"),
            ("import", "none", "deck.toml", "--out"),
            ("bench", "gemm", "--machine-out"),
        ):
            result = harness.run(*arguments, "link", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("%s link: is a link to nothing; " % arguments[-1], result.text)
        self.assertEqual(os.readlink(self.path("link")), "none")

    def test_numbers_on_the_command_line(self):
        shard = ("shard", "text", "nowhere", "--out", "made")
        generate = ("generate", "nowhere.h5", "--prompt", "to")
        for command, option, word, rule in (
            (shard, "--shards", "0", "a whole number of 1 to 1073741824"),
            (shard, "--shards", "1e3", "a whole number of 1 to 1073741824"),
            (shard, "--shards", "010", "a whole number of 1 to 1073741824"),
            (shard, "--hold-out", "-1", "a number above 0"),
            (shard, "--hold-out", "much", "a number above 0"),
            (generate, "--tokens", "2.5", "a whole number of 1 to 1073741824"),
            (generate, "--temperature", "-1", "a number of 0 to 1000"),
            (generate, "--temperature", "nan", "a number of 0 to 1000"),
            (generate, "--seed", "-1", "a whole number of 0 to 18446744073709551615"),
        ):
            result = harness.run(*command, option, word, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn('%s: must be %s, but is "%s"' % (option, rule, word), result.text)
        self.assertFalse(os.path.exists(self.path("made")))

    def test_names_of_classes(self):
        harness.write_idx(self.path("images"), (4, 2, 2), bytes(16))
        harness.write_idx(self.path("labels"), (4,), bytes((0, 1, 2, 1)))
        shard = ("shard", "idx", "--out", "made", "--classes")
        for names, words in (
            ("cat,,fish", "the name of class 1 is empty"),
            ("cat,dog,cat", "cat is named twice"),
            ("cat,dog", "sample 2: label 2 is past the 2 classes"),
        ):
            result = harness.run(*shard, names, "images", "labels", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(words, result.text)
        result = harness.run(*shard, "cat,dog,fish", "images", "labels", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("3 classes", result.text)


if __name__ == "__main__":
    harness.main(at_once=3)
