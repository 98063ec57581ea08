# SPDX-License-Identifier: Apache-2.0
"""Tests the import of language models of other programs.

config.json beside the weights, several files, names with prefixes, and transposed matrices.
"""

import array
import json
import os
import subprocess
import shutil
import unittest

import harness
import pytorch_gpt_parity as models
import safetensors_io

DECK = """
[run]
name = "model"
[model]
kind = "gpt"
layers = %d
heads = %d
width = %d
context = %d
mlp_width = %d
%s
[data]
train = "none"
"""
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": models.LAYERS,
        "n_head": models.HEADS,
        "n_embd": models.WIDTH,
        "n_positions": models.CONTEXT,
        "vocab_size": models.VOCABULARY,
        "layer_norm_epsilon": 1e-5,
    },
    "llama": {
        "model_type": "llama",
        "num_hidden_layers": models.LAYERS,
        "num_attention_heads": models.HEADS,
        "num_key_value_heads": 2,
        "hidden_size": models.WIDTH,
        "intermediate_size": 192,
        "max_position_embeddings": 2 * models.CONTEXT,
        "vocab_size": models.VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    },
}


class ImportModel(harness.Case):
    samples = 64

    def setUp(self):
        super().setUp()
        for form in CONFIGS:
            os.mkdir(self.path(form))
            models.write_safetensors(
                self.path(form + "/model.safetensors"), models.initial_tensors(form)
            )
            shape = models.FORMS[form]
            sizes = (models.LAYERS, models.HEADS, models.WIDTH, models.CONTEXT, shape["mlp_width"])
            self.write_deck(DECK % (*sizes, shape["deck"]), form + ".toml")

    def write_config(self, form, **changes):
        config = {**CONFIGS[form], **changes}
        with open(self.path(form + "/config.json"), "w") as file:
            json.dump({key: value for key, value in config.items() if value != "left out"}, file)

    def import_model(self, form, *more, expect=0, source=None):
        result = harness.run(
            "import",
            source or form + "/model.safetensors",
            form + ".toml",
            "--out",
            "imported.h5",
            "--overwrite",
            *more,
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, expect, result.text)
        if expect != 0:
            self.assertFalse(os.path.exists(self.path("imported.h5")))
        return result.text

    def bytes_of(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def exported(self):
        """Returns the tensors of the imported checkpoint."""
        result = harness.run(
            "export", "imported.h5", "--out", "out.safetensors", "--overwrite", cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, result.text)
        return safetensors_io.read(self.path("out.safetensors"))

    def write_parts(self, folder, tensors, parts):
        """Writes tensors in several files with an index, as transformers does."""
        os.mkdir(self.path(folder))
        files = ["model-%05d-of-%05d.safetensors" % (part + 1, parts) for part in range(parts)]
        place = {name: files[i % parts] for i, name in enumerate(sorted(tensors))}
        for file in files:
            models.write_safetensors(
                self.path(folder + "/" + file),
                {name: tensor for name, tensor in tensors.items() if place[name] == file},
            )
        with open(self.path(folder + "/model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {"total_size": 1}, "weight_map": place}, file)

    def test_several_files_have_the_tensors_of_one(self):
        for form in CONFIGS:
            self.import_model(form)
            meant = self.exported()
            self.write_parts(form + "/parts", models.initial_tensors(form), 5)
            for source in ("parts", "parts/", "parts/model.safetensors.index.json"):
                self.import_model(form, source="%s/%s" % (form, source))
                self.assertEqual(self.exported(), meant)
            self.import_model(form, source=form)
            self.assertEqual(self.exported(), meant)
            # config.json is that of the folder
            self.write_config(form, tie_word_embeddings=form == "llama")
            os.replace(self.path(form + "/config.json"), self.path(form + "/parts/config.json"))
            os.remove(self.path("imported.h5"))
            said = self.import_model(form, source=form + "/parts", expect=2)
            self.assertIn("parts/config.json: describes another model", said)

    def test_a_part_that_is_missing_is_named(self):
        self.write_parts("gpt2/parts", models.initial_tensors("gpt2"), 3)
        part = "gpt2/parts/model-00002-of-00003.safetensors"
        os.rename(self.path(part), self.path("part"))
        said = self.import_model("gpt2", source="gpt2/parts", expect=2)
        self.assertIn(
            "the index names %s, which is not in its folder" % os.path.basename(part), said
        )
        os.symlink("../../part", self.path(part))  # as in the cache of Hugging Face
        self.import_model("gpt2", source="gpt2/parts")
        before = os.stat(self.path("part"))
        result = harness.run(
            *("import", "gpt2/parts", "gpt2.toml", "--out", part, "--overwrite"), cwd=self.folder
        )
        self.assertEqual(result.returncode, 2)
        self.assertIn("is the input file", result.text)
        self.assertEqual(os.stat(self.path("part")).st_mtime_ns, before.st_mtime_ns)

    def test_no_output_replaces_an_input(self):
        self.write_config("gpt2")
        self.write_parts("parts", models.initial_tensors("gpt2"), 2)
        shutil.copy(self.path("gpt2/config.json"), self.path("parts/config.json"))
        os.link(self.path("parts/config.json"), self.path("hard"))
        os.symlink("parts/model.safetensors.index.json", self.path("soft"))
        part = "parts/model-00002-of-00002.safetensors"
        inputs = ("parts/config.json", "parts/model.safetensors.index.json", part, "gpt2.toml")
        before = {name: self.bytes_of(name) for name in inputs}
        for out in (*inputs, "hard", "soft"):
            result = harness.run(
                *("import", "parts", "gpt2.toml", "--out", out, "--overwrite"), cwd=self.folder
            )
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("is the input file", result.text)
        self.assertEqual(before, {name: self.bytes_of(name) for name in inputs})
        self.assertTrue(os.path.islink(self.path("soft")))
        self.import_model("gpt2")
        os.mkdir(self.path("out"))
        for name in ("model.safetensors", "config.json"):
            os.link(self.path("imported.h5"), self.path("out/" + name))
            checkpoint = self.bytes_of("imported.h5")
            self.assertIn("is the input file", self.export("out/", "--overwrite", expect=2))
            self.assertEqual(self.bytes_of("out/" + name), checkpoint)
            os.remove(self.path("out/" + name))

    def test_prefixes_of_wrappers_are_taken_off(self):
        for form, prefix in (
            ("gpt2", "module.transformer."),
            ("gpt2", "_orig_mod.transformer."),
            ("llama", "_orig_mod.module."),
        ):
            self.import_model(form)
            meant = self.exported()
            tensors = models.initial_tensors(form)
            made = {prefix + name: tensor for name, tensor in tensors.items()}
            models.write_safetensors(self.path("wrapped.safetensors"), made)
            self.import_model(form, source="wrapped.safetensors")
            self.assertEqual(self.exported(), meant)

    def test_matrices_of_nanogpt_are_transposed(self):
        self.import_model("gpt2")
        meant = self.exported()
        tensors = models.initial_tensors("gpt2")
        for name, ((*rest, columns), values) in list(tensors.items()):
            if name.startswith("h.") and rest:
                turned = array.array("f")
                for column in range(columns):
                    turned.extend(values[column::columns])
                tensors[name] = ((columns, *rest), turned)
        tensors = {"_orig_mod.transformer." + name: tensor for name, tensor in tensors.items()}
        models.write_safetensors(self.path("nano.safetensors"), tensors)
        for more in ((), ("--matrix-order", "linear")):
            said = self.import_model("gpt2", *more, source="nano.safetensors")
            self.assertIn("matrices are [out, in], as nanoGPT writes them", said)
            self.assertEqual(self.exported(), meant)
        os.remove(self.path("imported.h5"))
        more = ("--matrix-order", "conv1d")
        said = self.import_model("gpt2", *more, source="nano.safetensors", expect=2)
        self.assertIn("attn.c_attn.weight has shape [192, 64], but the deck's model has", said)

    def export(self, out, *more, expect=0, source="imported.h5"):
        result = harness.run("export", source, "--out", out, *more, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def test_an_exported_folder_is_imported_by_the_same_deck(self):
        for form in CONFIGS:
            self.import_model(form)
            meant = self.exported()
            self.export(form + "_out/")
            self.assertEqual(
                sorted(os.listdir(self.path(form + "_out"))), ["config.json", "model.safetensors"]
            )
            said = self.import_model(form, source=form + "_out")
            self.assertIn("describes the model of the deck", said)
            self.assertEqual(self.exported(), meant)
        # the names of transformers
        tensors = safetensors_io.read(self.path("gpt2_out/model.safetensors"))
        self.assertEqual({name[:12] for name in tensors}, {"transformer."})
        os.remove(self.path("imported.h5"))
        more = ("--set", "model.norm_epsilon=1e-6")
        self.assertIn(
            "model.norm_epsilon: 1e-06 in the deck, 1e-05 in config.json",
            self.import_model("llama", *more, source="llama_out", expect=2),
        )

    def test_a_folder_keeps_what_it_holds(self):
        self.import_model("gpt2")
        self.export("out/")
        before = self.bytes_of("out/config.json"), self.bytes_of("out/model.safetensors")
        self.assertIn("exists already", self.export("out/", expect=2))
        self.export("out/", "--overwrite")
        os.remove(self.path("out/config.json"))
        self.assertIn("model.safetensors: exists already", self.export("out/", expect=2))
        self.export("out/", "--overwrite")
        after = self.bytes_of("out/config.json"), self.bytes_of("out/model.safetensors")
        self.assertEqual(before, after)
        self.write_parts("parts", models.initial_tensors("gpt2"), 2)
        said = self.export("parts/", "--overwrite", expect=2)
        self.assertIn("holds weights in several files", said)
        self.assertFalse(os.path.exists(self.path("parts/model.safetensors")))

    def test_a_folder_is_replaced_as_a_whole(self):
        self.import_model("llama")
        self.export("out/")
        old = self.bytes_of("out/config.json"), self.bytes_of("out/model.safetensors")
        self.import_model("gpt2")
        limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", harness.TRIREME]  # in KiB
        result = subprocess.run(
            limited + ["export", "imported.h5", "--out", "out/", "--overwrite"],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(
            old, (self.bytes_of("out/config.json"), self.bytes_of("out/model.safetensors"))
        )
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["config.json", "model.safetensors"])
        os.chmod(self.path("out/config.json"), 0o640)
        self.export("out/", "--overwrite")
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["config.json", "model.safetensors"])
        self.assertEqual(os.stat(self.path("out/config.json")).st_mode & 0o777, 0o640)
        self.assertIn("describes the model of the deck", self.import_model("gpt2", source="out"))

    def test_a_folder_that_cannot_be_written_is_refused(self):
        self.import_model("gpt2")
        self.assertIn("the folder cannot be made", self.export("none/out/", expect=2))
        said = self.export("gpt2", expect=2)
        self.assertIn("is a folder; name a file, or write model.safetensors and config.json", said)
        with open(self.path("file"), "w"):
            pass
        self.export("file/", expect=2)
        self.assertEqual(self.bytes_of("file"), b"")
        os.truncate(self.path("imported.h5"), 5000)
        self.export("fresh/", expect=2)
        self.assertFalse(os.path.exists(self.path("fresh")))

    def test_a_model_without_a_family_is_not_written_as_a_folder(self):
        for form, setting in (
            ("gpt2", "model.norm=rms"),
            ("gpt2", "model.bias=false"),
            ("llama", "model.mlp=gelu"),
        ):
            deck = ("train", form + ".toml", "--set", setting, "--set", "data.train=text/train")
            batch = ("--set", "batch.global=2", "--set", "batch.micro=2", *harness.DEVICE)
            stop = ("--set", "run.stop=1 step", "--set", "run.folder=run-" + setting)
            if not os.path.exists(self.path("text")):
                harness.make_text(self.path("text"))
            result = harness.run(
                *deck, *batch, *stop, "--set", "model.vocabulary=256", cwd=self.folder
            )
            self.assertEqual(result.returncode, 0, result.text)
            checkpoint = "run-%s/checkpoints/step_000000001.h5" % setting
            said = self.export("out/", expect=2, source=checkpoint)
            self.assertIn("transformers has no model for this deck", said)
            self.assertFalse(os.path.exists(self.path("out")))
            self.export(setting + ".safetensors", source=checkpoint)

    def test_other_forms_are_refused_by_their_name(self):
        self.import_model("gpt2")
        for name in ("m.onnx", "m.pt", "m.pth", "m.bin", "M.ONNX", "pytorch_model.BIN", "m.gguf"):
            said = self.export(name, expect=2)
            self.assertIn("--out %s: is the name of " % name, said)
            self.assertIn("use --out %s.safetensors" % name.rsplit(".", 1)[0], said)
            self.assertFalse(os.path.exists(self.path(name)))
        self.export("weights")

    def test_a_config_of_the_decks_model_is_accepted(self):
        for form in CONFIGS:
            self.assertIn("no config.json", self.import_model(form))
            self.write_config(form, architectures=["Any"], initializer_range=0.5, use_cache=None)
            said = self.import_model(form)
            self.assertIn("config.json beside the weights describes the model of the deck", said)
            self.write_config(form, model_type="left out", n_head=77)
            said = self.import_model(form)
            self.assertIn(form + "/config.json has no model_type of transformers", said)

    def test_a_difference_is_refused_with_the_lines_of_the_deck(self):
        for form, key, value, line in (
            ("gpt2", "n_head", 8, "heads = 8"),
            ("gpt2", "layer_norm_epsilon", 1e-6, "norm_epsilon = 1e-06"),
            ("gpt2", "tie_word_embeddings", False, "tie_embeddings = false"),
            ("gpt2", "n_positions", 2 * models.CONTEXT, "context = %d" % (2 * models.CONTEXT)),
            ("llama", "num_attention_heads", 16, "heads = 16"),
            ("llama", "rms_norm_eps", 1e-6, "norm_epsilon = 1e-06"),
            ("llama", "rms_norm_eps", "left out", "norm_epsilon = 1e-06"),
            ("llama", "rope_theta", 5e5, "rope_base = 500000"),
            ("llama", "num_key_value_heads", None, "kv_heads = 4"),
            ("llama", "max_position_embeddings", 7, "context = 7"),
        ):
            with self.subTest(form=form, key=key):
                self.write_config(form, **{key: value})
                said = self.import_model(form, expect=2)
                self.assertIn("config.json: describes another model than the deck", said)
                self.assertRegex(said, r"model\.\w+: .* in the deck, .* \(%s\)" % key)
                self.assertIn("\n    %s\n" % line, said)

    def test_the_lines_make_a_deck_that_fits(self):
        numbers = {"rms_norm_eps": 1e-3, "rope_theta": 1e6}
        self.write_config("llama", **numbers)
        said = self.import_model("llama", expect=2)
        lines = said[said.index("[model]\n") :].rstrip()
        self.write_deck('[run]\nname = "a"\n[data]\ntrain = "none"\n' + lines + "\n", "llama.toml")
        self.import_model("llama")

    def test_the_other_family_is_refused(self):
        self.write_config("llama")
        os.replace(self.path("llama/config.json"), self.path("gpt2/config.json"))
        said = self.import_model("gpt2", expect=2)
        self.assertIn('model.positions: "learned" in the deck, "rope" in config.json', said)

    def test_a_model_that_is_not_computed_is_refused(self):
        for form, key, value in (
            ("gpt2", "activation_function", "gelu"),
            ("llama", "rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
            ("llama", "sliding_window", 4096),
            ("llama", "attention_bias", True),
            ("llama", "head_dim", 32),
            ("llama", "model_type", "gemma"),
        ):
            with self.subTest(key=key):
                self.write_config(form, **{key: value})
                said = self.import_model(form, expect=2)
                self.assertIn(form + "/config.json: ", said)
                self.assertIn(
                    "%s = %s" % (key, json.dumps(value).split(",")[0].split("{")[0]), said
                )

    def test_a_config_of_an_impossible_model_is_refused(self):
        for form, key in (("gpt2", "n_head"), ("llama", "num_attention_heads")):
            self.write_config(form, **{key: 5})
            said = self.import_model(form, expect=2)
            self.assertIn(form + "/config.json: a deck cannot have its model: ", said)
            self.assertIn("model.width = 64 is not a multiple of model.heads = 5", said)

    def test_a_config_that_disagrees_with_the_weights_is_refused(self):
        self.write_config("gpt2", vocab_size=models.VOCABULARY + 1)
        said = self.import_model("gpt2", expect=2)
        self.assertIn("model.safetensors: its embedding has 101 rows, but vocab_size = 102", said)

    def test_no_config_file_is_read_that_is_none(self):
        os.mkfifo(self.path("gpt2/config.json"))
        self.assertIn("is a pipe", self.import_model("gpt2", expect=2))
        os.remove(self.path("gpt2/config.json"))
        os.symlink("none", self.path("gpt2/config.json"))
        self.assertIn("gpt2/config.json: cannot be opened", self.import_model("gpt2", expect=2))


if __name__ == "__main__":
    unittest.main()
