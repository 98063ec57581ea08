# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme shard text` and `shard jsonl`: long texts, JSON Lines, and ends of documents."""

import json
import os
import re

import harness

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")

import tokens_test
from tokens_test import story


class Texts(tokens_test.TokenFolder):
    def test_tokens_of_long_texts_decode_to_the_text(self):
        texts = {
            "prose.txt": story(3000),
            "one_line.txt": story(3000).replace("\n", " "),
            "no_blanks.txt": "oar" * 10_000,
            "blanks.txt": "oar" + " " * 30_000 + "sal\n" + "\n" * 9000 + "ath",
        }
        for name, text in texts.items():
            self.put(name, text)
        train = ("shard", "text", "prose.txt", "--train-tokenizer", "400", "--out", "made")
        result = harness.run(*train, cwd=self.folder)
        if "without SentencePiece" in result.text:
            self.skipTest("this build is without SentencePiece")
        self.assertEqual(result.returncode, 0, result.text)
        # Later fields of a model replace earlier ones: add_dummy_prefix, remove_extra_whitespaces.
        model = self.read("made/tokenizer.model")
        for prefix, trim in ((1, 0), (1, 1), (0, 1)):
            self.put("m.model", model + bytes([0x1A, 4, 0x18, prefix, 0x20, trim]))
            for name, text in texts.items():
                self.succeed(
                    *("shard", "text", name, "--tokenizer", "m.model"),
                    *("--out", "made", "--overwrite"),
                )
                tokens = self.tokens_of("made")
                pieces = self.pieces_of(model)
                found = b"".join(pieces[token] for token in tokens).replace(b"\xe2\x96\x81", b" ")
                whole = text if not trim else re.sub(" +", " ", text).strip(" ")
                self.assertEqual(found.decode(), " " * prefix + whole, (name, prefix, trim))

    def test_no_source_or_tokenizer_of_the_folder_is_replaced(self):
        self.put("tokenizer.model", story(3000))
        os.mkdir(self.path("other"))
        self.put("other/tokenizer.model", "mine")
        os.mkdir(self.path("linked"))
        os.link(self.path("tokenizer.model"), self.path("linked/tokenizer.model"))
        os.mkdir(self.path("listed"))
        self.put("listed/skipped.csv", "line,reason\n")
        train = ("--train-tokenizer", "400")
        for source, out, more, said in (
            ("tokenizer.model", ".", train, "would replace the input file tokenizer.model"),
            ("tokenizer.model", "linked", train, "would replace the input file tokenizer.model"),
            ("listed/skipped.csv", "listed", (), "would replace the input file listed/skipped.csv"),
        ):
            words = ("shard", "text", source, "--out", out, "--overwrite")
            result = harness.run(*words, *more, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(said, result.text)
        words = ("shard", "text", "tokenizer.model", *train, "--out", "other")
        result = harness.run(*words, cwd=self.folder)
        if "without SentencePiece" in result.text:
            self.skipTest("this build is without SentencePiece")
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("--out other: holds another tokenizer.model", result.text)
        self.assertEqual(self.read("other/tokenizer.model"), b"mine")
        self.assertEqual(os.listdir(self.path("other")), ["tokenizer.model"])
        self.succeed(*words, "--overwrite")
        made = self.read("other/tokenizer.model")
        self.succeed(*words, "--overwrite")
        again = ("--tokenizer", "other/tokenizer.model", "--out", "other", "--overwrite")
        self.succeed("shard", "text", "tokenizer.model", *again)
        self.assertEqual(self.read("other/tokenizer.model"), made)
        # Tokens without a model leave none.
        self.succeed("shard", "text", "tokenizer.model", "--out", "other", "--overwrite")
        self.assertEqual([n for n in os.listdir(self.path("other")) if not n.endswith(".h5")], [])

    @staticmethod
    def pieces_of(model):
        """Returns the bytes of each piece of a SentencePiece model."""
        pieces, at = [], 0
        while model[at] == 0x0A:  # field 1, of fewer than 128 bytes
            end = at + 2 + model[at + 1]
            piece = model[at + 4 : at + 4 + model[at + 3]]
            byte = re.fullmatch(rb"<0x(..)>", piece)
            pieces.append(bytes([int(byte[1], 16)]) if byte else piece)
            at = end
        return pieces

    def put_lines(self, name, values, **options):
        self.put(name, "".join(json.dumps(value, **options) + "\n" for value in values))

    def test_texts_of_json_lines(self):
        texts = ["one\ntwo", "caf\u00e9 \U0001f6a3", "", story(400), 'a "quoted" \\ text']
        self.put_lines("a.jsonl", [{"text": text, "id": i} for i, text in enumerate(texts)])
        self.put_lines("b.jsonl.gz", [{"body": 7, "text": texts[3]}], ensure_ascii=False)
        whole = "".join(texts + [texts[3]]).encode()
        for ranks in (1, 2, 3):
            output = self.succeed(
                *("shard", "jsonl", "a.jsonl", "b.jsonl.gz", "--out", "made"),
                *("--shards", 3, "--overwrite"),
                ranks=ranks,
            )
            self.assertIn("5 documents", output)
            self.assertEqual(self.bytes_of("made"), whole)
        self.succeed("shard", "jsonl", "a.jsonl", "--field", "text", "--out", "one")
        with h5py.File(self.path("one/shard_00000.h5")) as file:
            ends = np.cumsum([0] + [len(text.encode()) for text in texts if text])
            self.assertEqual(list(file["documents"]), list(ends))
        # A model is trained on the texts, not on the marks of JSON.
        self.put_lines("c.jsonl", [{"text": story(50, seed=i)} for i in range(40)])
        train = ("shard", "jsonl", "c.jsonl", "--train-tokenizer", "400", "--out", "pieces")
        result = harness.run(*train, cwd=self.folder)
        if "without SentencePiece" not in result.text:
            self.assertEqual(result.returncode, 0, result.text)
            self.assertNotIn(
                b"text", b" ".join(self.pieces_of(self.read("pieces/tokenizer.model")))
            )
        # Read as plain text, with a line that says so.
        for name in ("a.jsonl", "b.jsonl.gz"):
            result = harness.run(
                "shard", "text", name, "--out", "plain", "--overwrite", cwd=self.folder
            )
            self.assertIn(name + ": is read as one document", result.stderr)
            self.assertIn(b'{"', self.bytes_of("plain"))

    def test_lines_that_cannot_be_used(self):
        good = '{"text": "good"}\n'
        bad = {
            '{"content": "x"}': "its members are: content",
            '{"text": 5}': 'its member "text" is a number',
            '{"text": "cut': "is not JSON",
            '"text"': "is a string; a line must be an object",
        }
        skip = ("--on-error", "skip")
        for line, reason in bad.items():
            self.put("a.jsonl", good + line + "\n" + good)
            shard = ("shard", "jsonl", "a.jsonl", "--out", "made")
            self.refuse(*shard, saying="a.jsonl:2: ")
            self.refuse(*shard, saying=reason)
            self.assertFalse(os.path.exists(self.path("made")))
        self.put("a.jsonl", good + "".join(line + "\n" + good for line in bad))
        self.put_lines("b.jsonl", [{"text": "b"}, [1]])
        for ranks in (1, 2):
            output = self.succeed(
                *("shard", "jsonl", "a.jsonl", "b.jsonl", "--out", "made", "--overwrite"),
                *skip,
                ranks=ranks,
            )
            self.assertIn("5 lines: skipped, as made/skipped.csv says", output)
            self.assertEqual(self.bytes_of("made"), b"good" * 5 + b"b")
            rows = self.read("made/skipped.csv").decode().splitlines()
            self.assertEqual(rows[0], "line,reason")
            self.assertEqual(
                [row.split('",')[0] for row in rows[1:]],
                ['"a.jsonl:%d' % number for number in (2, 4, 6, 8)] + ['"b.jsonl:2'],
            )
        self.put("a.jsonl", good)
        self.succeed("shard", "jsonl", "a.jsonl", "--out", "made", "--overwrite", *skip)
        self.assertFalse(os.path.exists(self.path("made/skipped.csv")))
        self.put("a.jsonl", "[]\n")
        self.refuse("shard", "jsonl", "a.jsonl", "--out", "x", *skip, saying="no tokens found")
        self.assertFalse(os.path.exists(self.path("x")))

    def test_every_document_ends_with_a_token(self):
        self.put("a.txt", "one")
        self.put("b.txt.gz", "three")
        self.put("empty.txt", "")
        self.put_lines("a.jsonl", [{"text": "one"}, {"text": ""}, {"text": "three"}])
        np.save(self.path("a.npy"), np.arange(5, dtype=np.uint8))
        end = ("--end-of-text", "256")
        room = ("--vocabulary", "257")
        meant = list(b"one") + [256] + list(b"three") + [256]
        for source in (("text", "a.txt", "empty.txt", "b.txt.gz"), ("jsonl", "a.jsonl")):
            for ranks, shards in ((1, 1), (2, 3)):
                self.succeed(
                    *("shard", *source, *end, *room, "--out", "made", "--overwrite"),
                    *("--shards", shards),
                    ranks=ranks,
                )
                self.assertEqual(list(self.tokens_of("made")), meant)
                with h5py.File(self.path("made/shard_00000.h5")) as file:
                    self.assertEqual(file.attrs["end_of_text"], 256)
            self.assertIn("documents end with token 256", self.succeed("inspect", "made"))
            self.assertEqual(
                json.loads(self.succeed("inspect", "--json", "made"))["end_of_text"], 256
            )
            self.assertEqual(self.succeed("verify", "made").count("whole"), 3)
        self.succeed("shard", "tokens", "a.npy", *end, *room, "--out", "numbers")
        self.assertEqual(list(self.tokens_of("numbers")), [0, 1, 2, 3, 4, 256])
        text = ("shard", "text", "a.txt", "--out", "x")
        self.refuse(*text, *end, saying="give --vocabulary 257 --end-of-text 256")
        self.refuse(*text, "--end-of-text", "10", saying="give --vocabulary 257 --end-of-text 256")
        self.refuse(*text, "--end-of-text", "10", *room, saying="uses this token for text")
        self.refuse(*text, "--end-of-text", "</s>", *room, saying="must be the number of a token")
        self.refuse(*text, "--end-of-text", "-1", *room, saying="is not in the vocabulary")
        self.assertFalse(os.path.exists(self.path("x")))

    def test_a_piece_of_the_model_ends_documents(self):
        self.put_lines("a.jsonl", [{"text": story(60, seed=i) + " 2x2"} for i in range(30)])
        train = ("shard", "jsonl", "a.jsonl", "--train-tokenizer", "400")
        result = harness.run(*train, "--out", "plain", cwd=self.folder)
        if "without SentencePiece" in result.text:
            self.skipTest("this build is without SentencePiece")
        model = ("--tokenizer", "plain/tokenizer.model")
        shard = ("shard", "jsonl", "a.jsonl", *model)
        pieces = self.pieces_of(self.read("plain/tokenizer.model"))
        end = pieces.index(b"</s>")
        # A number is a token's, though a piece of the text has the same name.
        self.assertIn(b"%d" % end, pieces)
        for name in ("<s>", "</s>", end):
            self.succeed(*shard, "--end-of-text", name, "--out", "made", "--overwrite")
            with h5py.File(self.path("made/shard_00000.h5")) as file:
                ends = file["documents"][1:].astype(np.int64)
                self.assertEqual(len(ends), 30)
                token = pieces.index(b"<s>") if name == "<s>" else end
                self.assertTrue((file["tokens"][:][ends - 1] == token).all())
                self.assertEqual((file["tokens"][:] == token).sum(), 30)
        self.succeed(*shard, "--vocabulary", 401, "--end-of-text", 400, "--out", "wide")
        self.assertEqual((self.tokens_of("wide") == 400).sum(), 30)
        self.refuse(*shard, "--end-of-text", "400", "--out", "x", saying="not in the vocabulary")
        self.refuse(*shard, "--end-of-text", "300", "--out", "x", saying="for text")
        self.refuse(*shard, "--end-of-text", "<unk>", "--out", "x", saying="for text")
        self.refuse(*shard, "--end-of-text", "<end>", "--out", "x", saying="no such piece")
        self.refuse(*shard, "--field", "", "--out", "x", saying="--field: must not be empty")

    def test_sets_that_end_documents_in_two_ways_are_refused(self):
        self.put("a.txt", story(50))
        room = ("--vocabulary", "258")
        for name, end in (("none", ()), ("a", (256,)), ("b", (257,))):
            options = ("--end-of-text", *end) if end else ()
            self.succeed("shard", "text", "a.txt", *room, *options, "--out", name)
        with open(self.path("deck.toml"), "w") as file:
            file.write(harness.GPT_DECK)
        for train, validation, good in (
            ("a", "a", 1),
            ("a", "b", 0),
            ("none", "a", 0),
            ("b", "none", 0),
        ):
            result = harness.run(
                *("check", "deck.toml", "--set", "data.train=" + train),
                *("--set", "data.validation=" + validation),
                cwd=self.folder,
            )
            self.assertEqual(result.returncode, 0 if good else 2, result.text)
            if not good:
                self.assertIn("one --end-of-text", result.text)
        os.link(self.path("b/shard_00000.h5"), self.path("a/shard_00001.h5"))
        self.refuse("inspect", "a", saying="must have the same attribute end_of_text")


if __name__ == "__main__":
    harness.main(at_once=3)
