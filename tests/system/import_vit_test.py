# SPDX-License-Identifier: Apache-2.0
"""Tests the import of vision transformers under timm's names.

Weights return from export with the same bits. Files of networks that a vit does not compute are
refused, with the tensor that shows it. Where timm is installed, its models have the same logits.
"""

import array
import json
import os
import unittest

import harness
import pytorch_parity as images
import pytorch_vit_parity as models
import safetensors_io

try:
    import h5py
    import timm
    import torch
except ImportError as error:
    timm, MISSING = None, str(error)
else:
    MISSING = ""


class ImportVit(harness.Case):
    samples = 64

    def setUp(self):
        super().setUp()
        for pool in ("token", "mean"):
            self.write_deck(models.deck(self.folder, "x", pool, "adamw"), pool + ".toml")

    def import_model(self, tensors, pool="token", *more, expect=0):
        safetensors_io.write(self.path("model.safetensors"), tensors)
        result = harness.run(
            *("import", "model.safetensors", pool + ".toml", "--out", "imported.h5"),
            *("--overwrite", *more),
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def test_exported_weights_are_those_that_were_imported(self):
        for pool in ("token", "mean"):
            with self.subTest(pool):
                tensors = models.initial_tensors(pool)
                self.import_model(tensors, pool)
                result = harness.run(
                    *("export", "imported.h5", "--out", "out.safetensors", "--overwrite"),
                    cwd=self.folder,
                )
                self.assertEqual(result.returncode, 0, result.text)
                written = safetensors_io.read(self.path("out.safetensors"))
                self.assertEqual(set(written), set(tensors))
                for name, (shape, values) in tensors.items():
                    self.assertEqual(written[name], ("F32", list(shape), values.tobytes()))

    def test_networks_that_it_does_not_compute_are_refused(self):
        width = models.WIDTH
        for name, shape, words in [
            ("dist_token", (1, 1, width), "distilled DeiT"),
            ("reg_token", (1, 4, width), "register tokens"),
            ("norm_pre.weight", (width,), "as in CLIP"),
            ("blocks.0.attn.q_norm.weight", (16,), "norms of queries and keys"),
        ]:
            with self.subTest(name):
                count = 1
                for extent in shape:
                    count *= extent
                tensors = models.initial_tensors("token")
                tensors[name] = (shape, array.array("f", [0.5] * count))
                text = self.import_model(tensors, expect=2)
                self.assertIn(name, text)
                self.assertIn(words, text)
                self.assertFalse(os.path.exists(self.path("imported.h5")))

    def test_another_pool_or_number_of_layers_is_explained(self):
        token, mean = (models.initial_tensors(pool) for pool in ("token", "mean"))
        self.assertIn('use model.pool = "mean"', self.import_model(mean, expect=2))
        self.assertIn('use model.pool = "token"', self.import_model(token, "mean", expect=2))
        positions = models.PATCHES + 3
        token["pos_embed"] = (
            (1, positions, models.WIDTH),
            array.array("f", [0.0] * (positions * models.WIDTH)),
        )
        text = self.import_model(token, expect=2)
        self.assertIn("pos_embed has %d rows" % positions, text)
        self.assertNotIn("model.pool", text)
        text = self.import_model(
            models.initial_tensors("token"), "token", "--set", "model.layers=2", expect=2
        )
        self.assertRegex(text, r"blocks\.2\..* is not in the deck's model")

    @unittest.skipIf(timm is None, "no models to compare with: %s" % MISSING)
    def test_models_of_timm_have_the_same_loss_and_logits(self):
        images.make_shards(harness.TRIREME, self.folder)
        pixels, labels = images.dataset()
        side = images.SIDE
        x = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(-1, 1, side, side)
        x = (x[images.TRAINED :].float() / 255 - images.MEAN) / images.STD
        y = torch.tensor(labels[images.TRAINED :])
        for pool in ("token", "mean"):
            with self.subTest(pool):
                torch.manual_seed(3)
                network = timm.models.VisionTransformer(
                    img_size=side,
                    patch_size=models.PATCH,
                    in_chans=1,
                    num_classes=images.CLASSES,
                    embed_dim=models.WIDTH,
                    depth=models.LAYERS,
                    num_heads=models.HEADS,
                    mlp_ratio=models.RATIO,
                    class_token=pool == "token",
                    global_pool="token" if pool == "token" else "avg",
                    init_values=models.LAYER_SCALE[pool] or None,
                ).eval()
                with torch.no_grad():
                    for weight in network.parameters():
                        weight += 0.05 * torch.randn_like(weight)
                    logits = network(x)
                    expected = torch.nn.functional.cross_entropy(logits, y).item()
                tensors = {
                    name: (tuple(value.shape), array.array("f", value.flatten().tolist()))
                    for name, value in network.state_dict().items()
                }
                self.import_model(tensors, pool)
                result = harness.run(
                    *("evaluate", pool + ".toml", "--checkpoint", "imported.h5", "--json"),
                    *("--predictions", "rows.h5", "--logits", "--overwrite", "--top", "1"),
                    *("--set", "data.validation=%s/validation" % self.folder),
                    cwd=self.folder,
                )
                self.assertEqual(result.returncode, 0, result.text)
                found = json.loads(result.stdout)["loss"]
                self.assertLess(abs(found - expected) / expected, 2e-4)
                with h5py.File(self.path("rows.h5")) as file:
                    difference = abs(torch.from_numpy(file["logits"][()]) - logits).max().item()
                self.assertLess(difference, 1e-4)


if __name__ == "__main__":
    unittest.main()
