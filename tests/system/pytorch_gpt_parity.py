#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Trireme's language models with PyTorch's.

Losses and gradient norms of twenty steps, from the same weights on the same tokens:

  pytorch_gpt_parity.py --trireme build/release/bin/trireme
      against the stored numbers (needs no PyTorch)
  pytorch_gpt_parity.py --trireme ... --torch
      against PyTorch, started now in float32
      and Muon in bfloat16 against two forms of PyTorch's own in bfloat16
  pytorch_gpt_parity.py --make-reference tests/system/reference/gpt_parity.json
      runs PyTorch in float32 and float64 and stores the float64 numbers

Weights and tokens come from Python's own generator, so every side makes the same numbers (as in
pytorch_parity.py). Exit status: 0 equal, 1 different, 77 a package is missing.
"""

import array
import functools
import inspect
import json
import math
import random
import struct
import sys
import zlib

from pytorch_parity import make_parser, make_reference, report, run, run_program, write_safetensors

STEPS, GLOBAL, MICRO = 20, 8, 4
LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 3, 4, 64, 48, 101
# --make-reference refuses cases in which float32 differs from float64 by more than half of this.
TOLERANCE = 2e-4
FORMS = {
    "gpt2": {
        "deck": 'positions = "learned"\nnorm = "layer"\nmlp = "gelu"\ntie_embeddings = true',
        "tied": True,
        "kv_heads": None,
        "mlp_width": 4 * WIDTH,
    },
    "llama": {
        "deck": (
            'positions = "rope"\nnorm = "rms"\nmlp = "swiglu"\nkv_heads = 2\ntie_embeddings = false'
        ),
        "tied": False,
        "kv_heads": 2,
        "mlp_width": 192,
    },
}
OPTIMIZERS = {
    "sgd": {"rate": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
    "adamw": {"rate": 1e-3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95},
    "lars": {"rate": 1.0, "momentum": 0.9, "weight_decay": 1e-3, "trust_coefficient": 0.01},
    "lamb": {"rate": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6},
    "muon": {"rate": 0.003, "weight_decay": 0.1, "newton_schulz": '"float32"'},
}
# Both forms with another epsilon of norms and another base of rotary positions.
EPSILON, BASE = 1e-2, 30.0
for form, numbers in (
    ("gpt2", f"norm_epsilon = {EPSILON}"),
    ("llama", f"norm_epsilon = {EPSILON}\nrope_base = {BASE}"),
):
    FORMS[f"{form}_numbers"] = {**FORMS[form], "deck": f"{FORMS[form]['deck']}\n{numbers}"}
CASES = [(form, optimizer) for form in ("gpt2", "llama") for optimizer in OPTIMIZERS] + [
    (form, "adamw") for form in ("gpt2_numbers", "llama_numbers")
]
CLIP = 1.0


def tensor_shapes(form):
    inner = FORMS[form]["mlp_width"]
    shapes = {}
    if form.startswith("gpt2"):
        shapes["wte.weight"], shapes["wpe.weight"] = (VOCABULARY, WIDTH), (CONTEXT, WIDTH)
        for i in range(LAYERS):
            for norm in ("ln_1", "ln_2"):
                shapes[f"h.{i}.{norm}.weight"] = shapes[f"h.{i}.{norm}.bias"] = (WIDTH,)
            for name, inputs, outputs in (
                ("attn.c_attn", WIDTH, 3 * WIDTH),
                ("attn.c_proj", WIDTH, WIDTH),
                ("mlp.c_fc", WIDTH, inner),
                ("mlp.c_proj", inner, WIDTH),
            ):
                shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = (inputs, outputs), (
                    outputs,
                )
        shapes["ln_f.weight"] = shapes["ln_f.bias"] = (WIDTH,)
        return shapes
    groups = FORMS[form]["kv_heads"] * WIDTH // HEADS
    shapes["model.embed_tokens.weight"] = (VOCABULARY, WIDTH)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = shapes[
            f"{layer}.post_attention_layernorm.weight"
        ] = (WIDTH,)
        for name, outputs, inputs in (
            ("self_attn.q_proj", WIDTH, WIDTH),
            ("self_attn.k_proj", groups, WIDTH),
            ("self_attn.v_proj", groups, WIDTH),
            ("self_attn.o_proj", WIDTH, WIDTH),
            ("mlp.gate_proj", inner, WIDTH),
            ("mlp.up_proj", inner, WIDTH),
            ("mlp.down_proj", WIDTH, inner),
        ):
            shapes[f"{layer}.{name}.weight"] = (outputs, inputs)
    shapes["model.norm.weight"] = (WIDTH,)
    shapes["lm_head.weight"] = (VOCABULARY, WIDTH)
    return shapes


def initial_tensors(form):
    """Returns {name: (shape, float32 values)}.

    Matrices are uniform with a standard deviation of 0.05, vectors are near their usual initial
    values. So every tensor contributes.
    """
    tensors = {}
    for name, shape in tensor_shapes(form).items():
        draw = random.Random(zlib.crc32(name.encode())).random
        norm = len(shape) == 1 and name.endswith("weight")
        scale = 0.05 * math.sqrt(3) if len(shape) > 1 else 0.02
        tensors[name] = (
            shape,
            array.array(
                "f", [float(norm) + scale * (2 * draw() - 1) for _ in range(math.prod(shape))]
            ),
        )
    return tensors


def tokens():
    """Returns STEPS * GLOBAL samples of one shard: a random walk over the vocabulary, which can be
    learned."""
    draw = random.Random(20260302).random
    walk, at = [], 0
    for _ in range(STEPS * GLOBAL * CONTEXT + 1):
        at = (at + 1 + int(3 * draw())) % VOCABULARY
        walk.append(at)
    return walk


# --- Trireme's side -----------------------------------------------------------------------------


def deck(folder, name, form, optimizer):
    rule = OPTIMIZERS[optimizer]
    keys = "\n".join(f"{key} = {value}" for key, value in rule.items() if key != "rate")
    return f"""
[run]
name = "{name}"
folder = "{folder}/runs/{name}"
device = "cpu"
stop = "{STEPS} steps"
[model]
kind = "gpt"
layers = {LAYERS}
heads = {HEADS}
width = {WIDTH}
context = {CONTEXT}
vocabulary = {VOCABULARY}
mlp_width = {FORMS[form]["mlp_width"]}
{FORMS[form]["deck"]}
[data]
train = "{folder}/train"
shuffle = "none"
[batch]
global = {GLOBAL}
micro = {MICRO}
[optimizer]
kind = "{optimizer}"
clip_norm = {CLIP}
{keys}
[schedule]
kind = "constant"
rate = {rule["rate"]}
[monitor]
every = "1 step"
tensorboard = false
"""


def make_shards(trireme, folder):
    with open(f"{folder}/tokens.bin", "wb") as file:
        file.write(struct.pack(f"<{STEPS * GLOBAL * CONTEXT + 1}H", *tokens()))
    run_program(
        trireme,
        "shard",
        "tokens",
        f"{folder}/tokens.bin",
        "--type",
        "uint16",
        "--vocabulary",
        str(VOCABULARY),
        "--out",
        f"{folder}/train",
    )


def train_deck(trireme, folder, name, tensors, deck):
    """Trains from the tensors. Returns the losses and gradient norms by step. `deck`: the text,
    whose run folder is runs/NAME."""
    write_safetensors(f"{folder}/{name}.safetensors", tensors)
    with open(f"{folder}/{name}.toml", "w") as file:
        file.write(deck)
    run_program(
        trireme,
        "import",
        f"{folder}/{name}.safetensors",
        f"{folder}/{name}.toml",
        "--out",
        f"{folder}/{name}.h5",
    )
    run_program(trireme, "train", f"{folder}/{name}.toml", "--restart", f"{folder}/{name}.h5")
    with open(f"{folder}/runs/{name}/metrics.jsonl") as file:
        rows = {row["step"]: row for row in map(json.loads, file) if row["kind"] == "train"}
    return {
        "losses": [rows[step]["loss"] for step in sorted(rows)],
        "norms": [rows[step]["grad_norm"] for step in sorted(rows)],
    }


# --- PyTorch's side -----------------------------------------------------------------------------


def update(torch, optimizer, rule, step, weight, gradient, slots, matrix):
    """Updates one tensor by the rules of docs/reference/numerics.md. `matrix`: it has weight decay
    and a trust ratio."""
    decay = rule["weight_decay"] if matrix else 0.0
    if optimizer in ("sgd", "lars"):
        local = 1.0
        if optimizer == "lars" and matrix and weight.norm() > 0 and gradient.norm() > 0:
            local = (
                rule["trust_coefficient"]
                * weight.norm()
                / (gradient.norm() + decay * weight.norm())
            )
        rate_in = rule["rate"] * local if optimizer == "lars" else 1.0
        slots[0].mul_(rule["momentum"]).add_(rate_in * (gradient + decay * weight))
        weight -= slots[0] if optimizer == "lars" else rule["rate"] * slots[0]
        return
    slots[0].mul_(rule["beta1"]).add_((1 - rule["beta1"]) * gradient)
    slots[1].mul_(rule["beta2"]).add_((1 - rule["beta2"]) * gradient * gradient)
    first, second = slots[0] / (1 - rule["beta1"] ** step), slots[1] / (1 - rule["beta2"] ** step)
    if optimizer == "adamw":
        weight *= 1 - rule["rate"] * decay
        weight -= rule["rate"] * first / (second.sqrt() + rule.get("epsilon", 1e-8))
        return
    direction = first / (second.sqrt() + rule["epsilon"]) + decay * weight
    trust = 1.0
    if matrix and weight.norm() > 0 and direction.norm() > 0:
        trust = min(max(float(weight.norm() / direction.norm()), 0.0), 10.0)
    weight -= rule["rate"] * trust * direction


@functools.cache
def newton_schulz_source():
    import torch.optim._muon as muon

    return inspect.getsource(muon._zeropower_via_newtonschulz)


def newton_schulz_in(torch, dtype, reverses=False):
    """Returns torch.optim.Muon's own function with products in `dtype` instead of bfloat16.
    `reverses`: of the matrix with its shorter dimension in the opposite order, which is the same
    but for rounding."""
    import torch.optim._muon as muon

    source = newton_schulz_source()
    assert "torch.bfloat16" in source
    names = {}
    exec(source.replace("torch.bfloat16", f"torch.{dtype}"), vars(muon), names)
    function = names["_zeropower_via_newtonschulz"]
    if not reverses:
        return function

    def of_reversed(gradient, *numbers):
        order = torch.arange(min(gradient.shape) - 1, -1, -1)
        dimension = 0 if gradient.shape[0] <= gradient.shape[1] else 1
        reversed_form = function(gradient.index_select(dimension, order), *numbers)
        return reversed_form.index_select(dimension, order)

    return of_reversed


class TorchMuon:
    """torch.optim.Muon for the matrices of hidden layers, torch.optim.AdamW for all others.
    `is_hidden` and `decays` take the name of a weight and the weight."""

    def __init__(self, torch, network, rule, newton_schulz, is_hidden, decays):
        import torch.optim._muon as muon

        muon._zeropower_via_newtonschulz = newton_schulz
        rate, decay = rule["rate"], rule["weight_decay"]
        named = list(network.named_parameters())
        hidden = [w for name, w in named if is_hidden(name, w)]
        others = [(name, w) for name, w in named if not is_hidden(name, w)]
        tables = [w for name, w in others if decays(name, w)]
        vectors = [w for name, w in others if not decays(name, w)]
        self.parts = [
            torch.optim.Muon(
                hidden, rate, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(
                [{"params": tables}, {"params": vectors, "weight_decay": 0.0}],
                rate,
                weight_decay=decay,
            ),
        ]

    def step(self, factor):
        """Updates the weights by their gradients times `factor`."""
        for part in self.parts:
            for group in part.param_groups:
                for weight in group["params"]:
                    weight.grad *= factor
            part.step()


def train_torch(form, optimizer, dtype_name="float32", newton_schulz=None):
    import torch

    from compare import torch_gpt

    dtype, shape, rule = getattr(torch, dtype_name), FORMS[form], OPTIMIZERS[optimizer]
    network = torch_gpt.FORMS[form.removesuffix("_numbers")](
        LAYERS,
        HEADS,
        WIDTH,
        CONTEXT,
        VOCABULARY,
        shape["mlp_width"],
        shape["kv_heads"],
        shape["tied"],
    ).to(dtype)
    if form.endswith("_numbers"):
        torch_gpt.set_numbers(network, EPSILON, BASE)
    initial = initial_tensors(form)
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == {
        name: extents for name, (extents, _) in initial.items()
    }
    for name, value in network.state_dict().items():
        value.copy_(
            torch.frombuffer(bytearray(initial[name][1].tobytes()), dtype=torch.float32).reshape(
                value.shape
            )
        )
    walk = torch.tensor(tokens())
    slots = {
        name: [torch.zeros_like(weight), torch.zeros_like(weight)]
        for name, weight in network.named_parameters()
    }
    muon = None
    if optimizer == "muon":
        function = newton_schulz or newton_schulz_in(torch, dtype_name)
        muon = TorchMuon(
            torch,
            network,
            rule,
            function,
            lambda name, w: w.dim() == 2 and name.startswith(("h.", "model.layers.")),
            lambda name, w: w.dim() > 1,
        )
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        network.zero_grad()
        total = 0.0
        for begin in range((step - 1) * GLOBAL, step * GLOBAL, MICRO):
            inputs = torch.stack(
                [walk[i * CONTEXT : (i + 1) * CONTEXT] for i in range(begin, begin + MICRO)]
            )
            targets = torch.stack(
                [walk[i * CONTEXT + 1 : (i + 1) * CONTEXT + 1] for i in range(begin, begin + MICRO)]
            )
            loss = torch.nn.functional.cross_entropy(
                network(inputs).flatten(0, 1), targets.flatten(), reduction="sum"
            ) / (GLOBAL * CONTEXT)
            loss.backward()
            total += loss.item()
        losses.append(total)
        with torch.no_grad():
            norm = math.sqrt(
                sum(float(weight.grad.double().square().sum()) for weight in network.parameters())
            )
            norms.append(norm)
            factor = min(1.0, CLIP / (norm + 1e-6))
            if muon:
                muon.step(factor)
                continue
            for name, weight in network.named_parameters():
                gradient = factor * weight.grad
                update(
                    torch, optimizer, rule, step, weight, gradient, slots[name], weight.dim() > 1
                )
    return {"losses": losses, "norms": norms}


# --- the comparison -----------------------------------------------------------------------------


def largest_difference(a, b):
    return max(
        abs(p - q) / abs(q)
        for key in ("losses", "norms")
        for p, q in zip(a[key], b[key], strict=True)
    )


def agrees(case, found, expected, tolerance):
    """Returns whether a case agrees, and prints its steps if it does not."""
    if report(case, largest_difference(found, expected), tolerance):
        return True
    for step, numbers in enumerate(
        zip(found["losses"], expected["losses"], found["norms"], expected["norms"]), 1
    ):
        print("  step {}: loss {} and {}, norm {} and {}".format(step, *numbers))
    return False


def compare(arguments, cases, kept, folder):
    """Returns whether all cases agree."""
    agree = True
    make_shards(arguments.trireme, folder)
    for form, optimizer in cases:
        name = f"{form}-{optimizer}"
        expected = train_torch(form, optimizer) if arguments.torch else kept[name]
        found = train_deck(
            arguments.trireme,
            folder,
            name,
            initial_tensors(form),
            deck(folder, name, form, optimizer),
        )
        agree &= agrees((form, optimizer), found, expected, TOLERANCE)
    if arguments.torch:
        agree &= compare_in_bfloat16(arguments.trireme, folder)
    return agree


def compare_in_bfloat16(trireme, folder):
    """Returns whether Muon in bfloat16 differs from PyTorch's by at most twice as much as PyTorch's
    differs from itself with the rows of matrices in the opposite order."""
    import torch

    agree = True
    for form in ("gpt2", "llama"):
        usual = train_torch(form, "muon", "float32", newton_schulz_in(torch, "bfloat16"))
        other = train_torch(form, "muon", "float32", newton_schulz_in(torch, "bfloat16", True))
        name = f"{form}-muon-bfloat16"
        text = deck(folder, name, form, "muon").replace('schulz = "float32"', 'schulz = "bfloat16"')
        found = train_deck(trireme, folder, name, initial_tensors(form), text)
        spread = largest_difference(other, usual)
        agree &= agrees((form, "muon in bfloat16"), found, usual, 2 * spread)
    return agree


def main():
    arguments = make_parser(__doc__, "gpt_parity.json").parse_args()
    return run(
        arguments,
        lambda path: make_reference(path, CASES, train_torch, largest_difference, TOLERANCE / 2),
        lambda kept, folder: compare(arguments, CASES, kept, folder),
    )


if __name__ == "__main__":
    sys.exit(main())
