# SPDX-License-Identifier: Apache-2.0
"""Tests that class names and tokenizers which do not belong together are refused by check, train,
evaluate and restarts, whichever two sides they are on."""

import os
import shutil

import harness

try:
    import h5py
    import numpy as np
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

HEAD = """
[run]
name = "run"
folder = "run"
stop = "4 steps"

[batch]
global = 6
micro = 3

[optimizer]
kind = "adamw"

[schedule]
kind = "constant"
rate = 0.01

[checkpoint]
every = "2 steps"
"""
IMAGES = '[model]\nkind = "mlp"\nwidths = [4]\n'
TOKENS = '[model]\nkind = "gpt"\nlayers = 1\nheads = 2\nwidth = 8\ncontext = 16\n'
NAMES = ["ant", "bee", "cow"]
CHECKPOINT = "run/checkpoints/step_000000004.h5"


class Case(harness.Case):
    model = IMAGES

    def deck(self, train, **sets):
        keys = "".join('%s = "%s"\n' % item for item in dict(train=train, **sets).items())
        self.write_deck("%s%s[data]\n%s" % (HEAD, self.model, keys))

    def call(self, *arguments, expect=0, ranks=1):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def refuse(self, *arguments, saying, ranks=1):
        text = self.call(*arguments, expect=2, ranks=ranks)
        for part in saying:
            self.assertIn(part, text)


class Classes(Case):
    def make(self, name, classes, labels=3):
        """Writes a dataset of twelve images. `classes`: the names, or None."""
        os.mkdir(self.path(name))
        with h5py.File(self.path(name, "a.h5"), "w") as file:
            file.attrs["format"] = "trireme-shard"
            file["images"] = np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4, 1)
            file["labels"] = np.arange(12, dtype=np.int32) % labels
            if classes is not None:
                file["classes"] = classes

    def setUp(self):
        super().setUp()
        self.make("named", NAMES)
        self.make("turned", NAMES[::-1])
        self.make("fewer", NAMES[:2], labels=2)
        self.make("unnamed", None)
        self.make("shifted", ["1", "2", "3"])
        self.make("numbered", ["0", "1", "2"])

    def test_sets_of_one_deck(self):
        for key in ("validation", "test"):
            for other, saying in (
                ("turned", 'at class 0: data.%s = "turned" calls it "cow", but ' % key),
                ("fewer", 'at class 2: data.%s = "fewer" has only 2 classes, but ' % key),
            ):
                self.deck("named", **{key: other})
                for command in (("check",), ("train",), ("plan", "--machine", "h100")):
                    saying_all = [saying, 'data.%s = "%s"' % (key, other)]
                    self.refuse(command[0], "deck.toml", *command[1:], saying=saying_all)
        self.deck("named", validation="fewer", test="named")
        self.refuse("train", "deck.toml", saying=["class names"], ranks=2)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_a_set_without_names(self):
        line = 'classes are not compared: data.%s = "unnamed" has no names'
        for named in ("named", "numbered"):
            self.deck(named, validation="unnamed")
            self.assertIn("note    " + line % "validation", self.call("check", "deck.toml"))
            self.deck("unnamed", validation=named)
            self.assertIn(line % "train", self.call("train", "deck.toml"))
            shutil.rmtree(self.path("run"))
        for sets in (("shifted", "unnamed"), ("unnamed", "shifted")):
            self.deck(sets[0], test=sets[1])
            for command in ("check", "train"):
                self.refuse(command, "deck.toml", saying=["numbers", 'class 0 is "1"'])
        self.deck("unnamed", validation="unnamed")
        self.assertNotIn("compared", self.call("check", "deck.toml"))

    def test_a_checkpoint_and_the_sets_of_evaluate(self):
        self.deck("named", validation="named", test="unnamed")
        self.call("train", "deck.toml")
        evaluate = ("evaluate", "deck.toml", "--checkpoint", CHECKPOINT, "--split")
        for split in ("train", "validation"):
            self.assertNotIn("compared", self.call(*evaluate, split))
        line = 'classes are not compared: data.test = "unnamed" has no names'
        self.assertIn(line, self.call(*evaluate, "test"))
        self.deck("turned", validation="turned", test="unnamed")
        for split in ("train", "validation", "test"):
            self.refuse(*evaluate, split, saying=[CHECKPOINT, "class names", '"cow"'])
        self.refuse(*evaluate, "train", saying=[CHECKPOINT], ranks=2)
        self.deck("shifted")
        self.refuse(*evaluate, "train", saying=["class names", '"1"'])

    def test_a_checkpoint_without_names_stays_usable(self):
        self.deck("unnamed")
        self.call("train", "deck.toml")
        self.deck("named")
        line = "classes are not compared: %s has no names" % CHECKPOINT
        self.assertIn(
            line, self.call("evaluate", "deck.toml", "--checkpoint", CHECKPOINT, "--split", "train")
        )
        restart = ("train", "deck.toml", "--set", "run.folder=new", "--restart", CHECKPOINT)
        self.assertIn(line, self.call(*restart, "--set", "run.stop=6 steps"))
        shutil.rmtree(self.path("new"))
        self.deck("shifted")
        self.refuse(*restart, saying=["numbers in another order", CHECKPOINT])

    def test_a_restart(self):
        self.deck("named")
        self.call("train", "deck.toml")
        self.deck("turned")
        self.refuse(
            "train",
            "deck.toml",
            "--set",
            "run.stop=6 steps",
            saying=["class names", 'data.train = "turned"', CHECKPOINT],
        )
        restart = ("train", "deck.toml", "--set", "run.folder=new", "--restart", CHECKPOINT)
        for ranks in (1, 2):
            saying = ["class names", "turned", "--restart %s --weights-only" % CHECKPOINT]
            self.refuse(*restart, saying=saying, ranks=ranks)
        text = self.call(*restart, "--weights-only")
        self.assertIn("warning: the class names differ at class", text)
        self.assertIn("--weights-only takes the weights as they are", text)
        self.deck("named")
        self.assertNotIn(
            "class names", self.call("train", "deck.toml", "--set", "run.stop=6 steps")
        )

    def test_names_outlive_a_restart_on_a_set_without_names(self):
        self.deck("named")
        self.call("train", "deck.toml")
        self.deck("unnamed")
        self.call("train", "deck.toml", "--set", "run.stop=6 steps")
        with h5py.File(self.path("run/checkpoints/step_000000006.h5")) as file:
            self.assertEqual([name.decode() for name in file["classes"]], NAMES)
        self.deck("turned")
        self.refuse("train", "deck.toml", "--set", "run.stop=8 steps", saying=["class names"])

    def test_a_step_that_no_run_can_write(self):
        self.deck("named")
        self.call("train", "deck.toml")
        for step in (2**63 - 1, 2**63 - 2, 2**53 + 1):
            with h5py.File(self.path(CHECKPOINT)) as sealed, h5py.File(
                self.path("other.h5"), "w"
            ) as file:
                for name in sealed:
                    sealed.copy(name, file)
                file.attrs.update(sealed.attrs)
                file.attrs["step"] = np.int64(step)
            self.refuse(
                *("train", "deck.toml", "--set", "run.folder=new", "--restart", "other.h5"),
                saying=["other.h5: its attribute step is %d, which no run can write" % step],
            )


class Tokenizers(Case):
    model = TOKENS

    def setUp(self):
        super().setUp()
        for name, words in (("a", "the cat sat on the mat"), ("b", "le chien dort ici bas")):
            with open(self.path(name + ".txt"), "w") as file:
                for i in range(600):
                    file.write("%s %d, %d\n" % (words, i, i * 7 % 13))
            text = harness.run(
                "shard",
                "text",
                name + ".txt",
                "--train-tokenizer",
                290,
                "--out",
                name,
                cwd=self.folder,
            )
            if "without SentencePiece" in text.text:
                self.skipTest(text.text)
            self.assertEqual(text.returncode, 0, text.text)
        model = self.path("a", "tokenizer.model")
        self.call("shard", "text", "b.txt", "--tokenizer", model, "--out", "b of a")

    def test_sets_of_one_deck(self):
        for key in ("validation", "test"):
            self.deck("a", **{key: "b"})
            for command in ("check", "train"):
                saying = ['the tokenizer.model of data.%s = "b" is not that of' % key]
                self.refuse(command, "deck.toml", saying=saying)
            self.deck("a", **{key: "b of a"})
            self.assertNotIn("compared", self.call("check", "deck.toml"))
        # The shards hold the digest.
        for name in ("b", "b of a"):
            os.remove(self.path(name, "tokenizer.model"))
        self.assertNotIn("compared", self.call("check", "deck.toml"))
        self.deck("a", test="b")
        self.refuse("check", "deck.toml", saying=["the tokenizer.model of data.test"])
        self.forget_digest("b of a")
        self.deck("a", test="b of a")
        line = 'tokenizers are not compared: data.test = "b of a" has no tokenizer.model'
        self.assertIn(line, self.call("check", "deck.toml"))

    def forget_digest(self, folder):
        """Makes the shards of a folder those of an earlier version, without a seal."""
        for name in os.listdir(self.path(folder)):
            if not name.endswith(".h5"):
                continue
            path = self.path(folder, name)
            with h5py.File(path) as sealed, h5py.File(path + ".new", "w") as file:
                for dataset in sealed:
                    sealed.copy(dataset, file)
                for key, value in sealed.attrs.items():
                    if key != "tokenizer_digest":
                        file.attrs[key] = value
            os.replace(path + ".new", path)

    def test_a_wrong_model_beside_the_shards(self):
        self.deck("a")
        commands = [["check", "deck.toml"], ["inspect", "a"], ["verify", "a"]]
        commands.append(["train", "deck.toml", "--restart", "none"])
        model, shard = "a/tokenizer.model", "a/shard_00000.h5"
        with open(self.path("b", "tokenizer.model"), "rb") as file:
            other = file.read()
        with open(self.path(model), "rb") as file:
            right = file.read()
        for content in (other, b"junk", b"", right[:-1]):
            with open(self.path(model), "wb") as file:
                file.write(content)
            for command in commands:
                saying = [model, shard, "is not the model that encoded"]
                self.refuse(*command, saying=saying)
        self.forget_digest("a")
        for content, saying in (
            (b"junk", "is not a SentencePiece model"),
            (b"", "is not a SentencePiece model"),
        ):
            with open(self.path(model), "wb") as file:
                file.write(content)
            for command in commands:
                self.refuse(*command, saying=[model, shard, saying])
        with open(self.path(model), "wb") as file:
            file.write(right)
        for command in commands:
            self.call(*command)
        with h5py.File(self.path(shard), "a") as file:
            del file["checksums"]
            file["tokens"][...] = 1
            for owner in (file, file["tokens"]):
                owner.attrs["vocabulary"] = 289
        for command in commands:
            self.refuse(*command, saying=[model, shard, "has 290 pieces", "is 289"])

    def test_a_digest_outlives_a_restart_without_the_model(self):
        self.deck("a")
        self.call("train", "deck.toml")
        self.forget_digest("a")
        shutil.move(self.path("a", "tokenizer.model"), self.path("kept.model"))
        self.call("train", "deck.toml", "--set", "run.stop=6 steps")
        shutil.copy(self.path("b", "tokenizer.model"), self.path("a", "tokenizer.model"))
        saying = ["the tokenizer.model of data.train", "step_000000006.h5"]
        self.refuse("train", "deck.toml", "--set", "run.stop=8 steps", saying=saying)

    def test_a_checkpoint(self):
        self.deck("a")
        self.call("train", "deck.toml")
        evaluate = ("evaluate", "deck.toml", "--checkpoint", CHECKPOINT, "--split", "train")
        generate = ("generate", CHECKPOINT, "--prompt", "cat", "--tokens", 4)
        self.assertNotIn("compared", self.call(*evaluate))
        self.call(*generate)
        text = self.call(*generate, "--tokenizer", self.path("b", "tokenizer.model"))
        self.assertIn("warning: the tokenizer.model of --tokenizer", text)
        # The shards stay, the model beside them is another one. They hold no digest.
        self.forget_digest("a")
        shutil.copy(self.path("b", "tokenizer.model"), self.path("a", "tokenizer.model"))
        saying = ["the tokenizer.model of data.train", CHECKPOINT]
        self.refuse(*evaluate, saying=saying)
        self.refuse(*generate, saying=saying)
        self.refuse("train", "deck.toml", "--set", "run.stop=6 steps", saying=saying)
        restart = ("train", "deck.toml", "--set", "run.folder=new", "--restart", CHECKPOINT)
        self.refuse(*restart, saying=saying)
        self.assertIn("--weights-only takes", self.call(*restart, "--weights-only"))


class EndsOfDocuments(Case):
    model = TOKENS

    def make(self, end):
        options = ("--vocabulary", "258", *(("--end-of-text", end) if end else ()))
        self.call("shard", "text", "a.txt", *options, "--out", "a", "--overwrite")

    def test_a_checkpoint(self):
        with open(self.path("a.txt"), "w") as file:
            file.write("the cat sat on the mat\n" * 90)
        self.make("256")
        self.deck("a")
        self.call("train", "deck.toml")
        evaluate = ("evaluate", "deck.toml", "--checkpoint", CHECKPOINT, "--split", "train")
        generate = ("generate", CHECKPOINT, "--prompt", "cat", "--tokens", 4)
        resume = ("train", "deck.toml", "--set", "run.stop=6 steps")
        restart = ("train", "deck.toml", "--set", "run.folder=new", "--restart", CHECKPOINT)
        for command in (evaluate, generate):
            self.assertNotIn("compared", self.call(*command))
        # The same text with another token after it.
        self.make("257")
        saying = ['the documents of data.train = "a" end with token 257, but those of', CHECKPOINT]
        for command in (evaluate, resume, restart):
            self.refuse(*command, saying=saying)
        self.refuse(*generate, saying=["end with token 257", "token 256"])
        self.assertIn("--weights-only takes", self.call(*restart, "--weights-only"))
        # A side that names none. The text has one more byte, so that it has as many tokens.
        with open(self.path("a.txt"), "a") as file:
            file.write("\n")
        self.make(None)
        line = 'ends of documents are not compared: data.train = "a" names no end-of-text token'
        for command in (evaluate, resume):
            self.assertIn(line, self.call(*command))


if __name__ == "__main__":
    harness.main(at_once=2)
