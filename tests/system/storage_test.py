# SPDX-License-Identifier: Apache-2.0
"""Tests that the storage of an HDF5 file does not matter to its reader.

Shards and checkpoints that h5py stores in many ways give the results of the plain ones: contiguous,
little-endian, in one file without a user block. Storage that few programs use gives these results
too, or is refused by name, and never gives others.
"""

import json
import os
import unittest

import harness

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")

from storage_files import (
    CHECKPOINTS,
    DOCUMENTS,
    GZIP,
    IMAGES,
    IMAGES_DECK,
    IMAGE_SHARDS,
    LABELS,
    LATEST,
    SHUFFLE,
    TOKENS,
    TOKENS_DECK,
    TOKEN_SHARDS,
    UNUSUAL_CHECKPOINTS,
    UNUSUAL_IMAGE_SHARDS,
    UNUSUAL_TOKEN_SHARDS,
    put,
    tensors,
)


class Storage(harness.Case):
    samples = 128

    def setUp(self):
        super().setUp()
        self.count = 0

    def trained(self, deck, write, ranks=1):
        """Writes a dataset of one shard and trains on it. Returns (digest or None, output)."""
        self.count += 1
        name = "case%d" % self.count
        os.mkdir(self.path(name))
        # The name of the shard is part of the identity of the dataset.
        write(self.path(name, "shard.h5"))
        self.write_deck(deck.replace('"shards"', '"%s"' % name), name + ".toml")
        result = harness.run(
            "train", name + ".toml", "--set", "run.folder=run" + name, cwd=self.folder, ranks=ranks
        )
        if result.returncode != 0:
            return None, result
        newest = harness.checkpoints(self.path("run" + name))[-1]
        return harness.digest(self.path("run" + name, "checkpoints", newest)), result

    def write_shard(self, path, kind, case, values):
        options, *writers = case
        with h5py.File(path, "w", **options) as file:
            file.attrs["format"] = "trireme-shard"
            file.attrs["kind"] = kind
            if kind == "tokens":
                file.attrs["vocabulary"] = 300
            for write, array in zip(writers, values):
                write(file, array)

    def check_shards(self, deck, kind, values, plain, usual, unusual):
        def digest_of(case, ranks=1):
            return self.trained(
                deck, lambda path: self.write_shard(path, kind, case, values), ranks
            )

        expected, result = digest_of(plain)
        self.assertIsNotNone(expected, result.text)
        for name, case in usual.items():
            with self.subTest(name):
                found, result = digest_of(case)
                self.assertEqual(found, expected, result.text)
                shard = self.path("case%d" % self.count, "shard.h5")
                result = harness.run("verify", shard)
                self.assertEqual(result.returncode, 0, result.text)
                self.assertIn("no checksums", result.text)
        for name, case in unusual.items():
            with self.subTest(name):
                found, result = digest_of(case)
                if found is None:
                    self.assertEqual(result.returncode, 2, result.text)
                    self.assertIn("shard.h5", result.text)
                    print("%s: %s" % (name, self.errors_of(result.text)), flush=True)
                else:
                    self.assertEqual(found, expected)
        # Other ranks read from the description that rank 0 sends.
        expected, result = digest_of(plain, ranks=2)
        for name in list(usual)[::4]:
            with self.subTest(name, ranks=2):
                self.assertEqual(digest_of(usual[name], ranks=2)[0], expected)

    def test_images(self):
        self.check_shards(
            IMAGES_DECK,
            "images",
            (IMAGES, LABELS),
            ({}, put("images"), put("labels")),
            IMAGE_SHARDS,
            UNUSUAL_IMAGE_SHARDS,
        )

    def test_tokens(self):
        self.check_shards(
            TOKENS_DECK,
            "tokens",
            (TOKENS, DOCUMENTS),
            ({}, put("tokens"), put("documents")),
            TOKEN_SHARDS,
            UNUSUAL_TOKEN_SHARDS,
        )

    def test_checkpoints(self):
        self.train("--set", "run.stop=5 steps")
        source = self.path("run/checkpoints/step_000000005.h5")

        def write(path, options, write_tensor):
            with h5py.File(source) as ours, h5py.File(path, "w", **options) as file:
                file.attrs.update(ours.attrs)
                for group in ("model", "buffers"):
                    for name, values in ours[group].items():
                        # Values that float16 and bfloat16 represent.
                        whole = np.round(values[...].astype(np.float64) * 64) / 64
                        short = np.clip(whole, -2, 2 - 1 / 64).astype(np.float32)
                        write_tensor(file, "%s/%s" % (group, name), short)

        def evaluated(case, ranks=1):
            write(self.path("other.h5"), *case)
            arguments = ("deck.toml", "--checkpoint", "other.h5", "--json")
            return harness.run("evaluate", *arguments, cwd=self.folder, ranks=ranks)

        plain = ({}, tensors())
        result = evaluated(plain)
        self.assertEqual(result.returncode, 0, result.text)
        expected = json.loads(result.stdout)
        self.assertGreater(expected["loss"], 0)
        for name, case in CHECKPOINTS.items():
            with self.subTest(name):
                result = evaluated(case)
                self.assertEqual(result.returncode, 0, result.text)
                self.assertEqual(json.loads(result.stdout), expected)
                result = harness.run("verify", self.path("other.h5"))
                self.assertEqual(result.returncode, 0, result.text)
        for name, case in UNUSUAL_CHECKPOINTS.items():
            with self.subTest(name):
                result = evaluated(case)
                if result.returncode == 0:
                    self.assertEqual(json.loads(result.stdout), expected)
                else:
                    self.assertEqual(result.returncode, 2, result.text)
                    self.assertIn("other.h5", result.text)
                    print("%s: %s" % (name, self.errors_of(result.text)), flush=True)
        expected = json.loads(evaluated(plain, ranks=2).stdout)
        for name in list(CHECKPOINTS)[::4]:
            with self.subTest(name, ranks=2):
                self.assertEqual(json.loads(evaluated(CHECKPOINTS[name], 2).stdout), expected)

    def test_a_restart_from_any_storage(self):
        """Tests that weights and optimizer state of other storage continue as the plain ones."""
        self.train("--set", "run.stop=5 steps")
        source, digests = self.path("run/checkpoints/step_000000005.h5"), []
        for index, (options, write_tensor) in enumerate(
            (
                ({}, tensors()),
                ({}, tensors(type=">f8", halves=True, **GZIP, **SHUFFLE)),
                (LATEST, tensors(halves=True, **GZIP)),
            )
        ):
            with h5py.File(source) as ours, h5py.File(
                self.path("from%d.h5" % index), "w", **options
            ) as file:

                def copy(name, item):
                    if isinstance(item, h5py.Group):
                        file.require_group(name).attrs.update(item.attrs)
                    elif item.dtype == np.float32:
                        write_tensor(file, name, item[...])

                file.attrs.update(ours.attrs)
                ours.visititems(copy)
            self.train(
                *("--set", "run.stop=10 steps"),
                *("--set", "run.folder=run%d" % index),
                *("--restart", "from%d.h5" % index),
            )
            digests.append(harness.digest(self.path("run%d/checkpoints/step_000000010.h5" % index)))
        self.train("--set", "run.stop=10 steps")
        digests.append(harness.digest(self.path("run/checkpoints/step_000000010.h5")))
        self.assertEqual(len(set(digests)), 1, digests)


if __name__ == "__main__":
    unittest.main()
