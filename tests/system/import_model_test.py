"""Tests the import of language models of other programs: config.json beside the weights."""

import json
import os
import unittest

import harness
import pytorch_gpt_parity as models

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

    def test_a_config_of_the_decks_model_is_accepted(self):
        for form in CONFIGS:
            self.assertIn("no config.json", self.import_model(form))
            self.write_config(form, architectures=["Any"], initializer_range=0.5, use_cache=None)
            said = self.import_model(form)
            self.assertIn("config.json beside the weights describes the model of the deck", said)
            self.write_config(form, model_type="left out", n_head=77)
            self.assertIn("no config.json of transformers", self.import_model(form))

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
                self.assertIn("\n%s\n" % line, said)

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
