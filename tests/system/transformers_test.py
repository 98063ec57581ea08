# SPDX-License-Identifier: Apache-2.0
"""Compares language models with Hugging Face's transformers, where that is installed.

Weights that transformers makes are imported, evaluated, exported as a folder, and loaded by
transformers again: the logits are the same, and so is the loss of each text.
"""

import json
import os
import struct
import unittest

import harness

try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig
except ImportError as error:
    harness.skip("Python packages are missing: %s" % error)

CONTEXT, VOCABULARY, TEXTS = 24, 61, 3
# Of logits of order 1 in float32.
TOLERANCE = 1e-4

MODELS = {
    "gpt2": (
        GPT2Config(
            n_layer=2, n_head=2, n_embd=16, n_positions=CONTEXT, vocab_size=VOCABULARY, n_inner=40
        ),
        'positions = "learned"\nnorm = "layer"\nmlp = "gelu"\nheads = 2\nwidth = 16\n'
        "mlp_width = 40\n",
    ),
    "gpt2_untied": (
        GPT2Config(
            n_layer=1,
            n_head=4,
            n_embd=16,
            n_positions=CONTEXT,
            vocab_size=VOCABULARY,
            layer_norm_epsilon=0.01,
            tie_word_embeddings=False,
        ),
        'positions = "learned"\nnorm = "layer"\nmlp = "gelu"\nlayers = 1\nheads = 4\nwidth = 16\n'
        "norm_epsilon = 0.01\ntie_embeddings = false\n",
    ),
    "llama": (
        LlamaConfig(
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            hidden_size=32,
            intermediate_size=48,
            max_position_embeddings=2 * CONTEXT,
            vocab_size=VOCABULARY,
            rms_norm_eps=1e-3,
            rope_theta=500.0,
        ),
        'positions = "rope"\nnorm = "rms"\nmlp = "swiglu"\nheads = 4\nkv_heads = 2\nwidth = 32\n'
        "mlp_width = 48\nrope_base = 500\nnorm_epsilon = 1e-3\ntie_embeddings = false\n",
    ),
    "llama_biased": (
        LlamaConfig(
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_size=32,
            intermediate_size=48,
            max_position_embeddings=CONTEXT,
            vocab_size=VOCABULARY,
            rms_norm_eps=1e-5,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
        'positions = "rope"\nnorm = "rms"\nmlp = "swiglu"\nheads = 2\nwidth = 32\nmlp_width = 48\n'
        "bias = true\ntie_embeddings = true\n",
    ),
}
DECK = """
[run]
name = "model"
device = "cpu"
[model]
kind = "gpt"
context = %d
%s
[data]
train = "text0"
validation = "text0"
[batch]
global = 1
micro = 1
"""


class Transformers(harness.Case):
    samples = 64

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        generator = torch.Generator().manual_seed(3)
        cls.texts = torch.randint(VOCABULARY, (TEXTS, CONTEXT + 1), generator=generator)

    def command(self, *words):
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def load(self, folder):
        model = AutoModelForCausalLM.from_pretrained(
            self.path(folder), torch_dtype=torch.float32, attn_implementation="eager"
        )
        return model.eval()

    def make_texts(self):
        for i, text in enumerate(self.texts.tolist()):
            with open(self.path("text.bin"), "wb") as file:
                file.write(struct.pack("<%dH" % len(text), *text))
            words = ("--type", "uint16", "--vocabulary", VOCABULARY, "--out", "text%d" % i)
            self.command("shard", "tokens", "text.bin", *words)

    def test_logits_and_losses_are_those_of_transformers(self):
        self.make_texts()
        for name, (config, lines) in MODELS.items():
            with self.subTest(model=name):
                torch.manual_seed(1)
                original = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
                original = original.to(torch.float32).eval()
                with torch.no_grad():  # larger than their initial size: every part has an effect
                    for weight in original.parameters():
                        weight.add_(0.2 * torch.randn(weight.shape))
                original.save_pretrained(self.path(name))
                if "layers" not in lines:
                    lines = "layers = 2\n" + lines
                self.write_deck(DECK % (CONTEXT, lines), name + ".toml")

                said = self.command("import", name, name + ".toml", "--out", name + ".h5")
                self.assertIn("describes the model of the deck", said)
                self.command("export", name + ".h5", "--out", name + "_again/")
                again = self.load(name + "_again")
                with torch.no_grad():
                    expected, found = (m(self.texts[:, :-1]).logits for m in (original, again))
                self.assertGreater(float(expected.abs().max()), 0.3)
                self.assertLess(float((found - expected).abs().max()), TOLERANCE)

                for i in range(TEXTS):
                    said = self.command(
                        "evaluate",
                        name + ".toml",
                        "--checkpoint",
                        name + ".h5",
                        "--set",
                        "data.validation=text%d" % i,
                        "--json",
                    )
                    loss = torch.nn.functional.cross_entropy(expected[i], self.texts[i, 1:])
                    self.assertAlmostEqual(json.loads(said)["loss"], float(loss), delta=TOLERANCE)

    def test_several_files_of_transformers_are_read(self):
        config, lines = MODELS["llama"]
        torch.manual_seed(2)
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(self.path("parts"), max_shard_size=20_000)
        self.assertIn("model.safetensors.index.json", os.listdir(self.path("parts")))
        self.write_deck(DECK % (CONTEXT, "layers = 2\n" + lines), "llama.toml")
        self.command("import", "parts", "llama.toml", "--out", "llama.h5")
        self.command("export", "llama.h5", "--out", "again/")
        expected, found = model.state_dict(), self.load("again").state_dict()
        self.assertEqual(set(found), set(expected))
        for name in expected:
            self.assertTrue(torch.equal(found[name], expected[name]), name)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    unittest.main()
