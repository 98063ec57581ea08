# SPDX-License-Identifier: Apache-2.0
"""A decoder-only transformer in plain PyTorch, in the forms of GPT-2 and Llama, to compare with
Trireme's.

docs/reference/numerics.md describes it. Parameters have Trireme's names and shapes (GPT-2's
matrices [in, out], Llama's [out, in]).
"""

import math
import time

import torch
from torch import nn
from torch.nn import functional

EPSILON, BASE = 1e-5, 10000.0  # the defaults of Trireme


def normal(*shape, deviation=0.02):
    return nn.Parameter(torch.randn(*shape) * deviation)


class Conv1D(nn.Module):
    """GPT-2's linear layer: weight [in, out]."""

    def __init__(self, inputs, outputs, deviation=0.02):
        super().__init__()
        self.weight = normal(inputs, outputs, deviation=deviation)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return functional.linear(x, self.weight.t(), self.bias)


class Linear(nn.Module):
    """Llama's linear layer: weight [out, in], no bias."""

    def __init__(self, inputs, outputs, deviation=0.02):
        super().__init__()
        self.weight = normal(outputs, inputs, deviation=deviation)

    def forward(self, x):
        return functional.linear(x, self.weight)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), EPSILON

    def forward(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def attend(q, k, v):
    """Causal attention: q [B, T, H, D], k and v [B, T, G, D]; each key head serves H / G query
    heads."""
    grouped = q.shape[2] // k.shape[2]
    if grouped > 1:
        k, v = k.repeat_interleave(grouped, dim=2), v.repeat_interleave(grouped, dim=2)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    )
    return out.transpose(1, 2).flatten(2)


def rotation(length, head, base):
    """Returns cosine and sine of the angles of Llama's half rotation: float64 [length, 1, D/2]."""
    half = head // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, turn):
    """Rotates x [B, T, H, D] by rotation(T, D)."""
    cosine, sine = (table.to(x.dtype) for table in turn)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


class Gpt2Attention(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width, 0.02 / math.sqrt(2 * layers))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(attend(q, k, v))


class Gpt2Mlp(nn.Module):
    def __init__(self, width, inner, layers):
        super().__init__()
        self.c_fc = Conv1D(width, inner)
        self.c_proj = Conv1D(inner, width, 0.02 / math.sqrt(2 * layers))

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Block(nn.Module):
    def __init__(self, width, heads, inner, layers):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width, EPSILON), Gpt2Attention(width, heads, layers)
        self.ln_2, self.mlp = nn.LayerNorm(width, EPSILON), Gpt2Mlp(width, inner, layers)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Table(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.weight = normal(rows, width)


class Gpt2(nn.Module):
    def __init__(
        self, layers, heads, width, context, vocabulary, mlp_width=None, kv_heads=None, tied=True
    ):
        super().__init__()
        assert kv_heads in (None, heads)
        self.wte, self.wpe = Table(vocabulary, width), Table(context, width)
        self.h = nn.ModuleList(
            Gpt2Block(width, heads, mlp_width or 4 * width, layers) for _ in range(layers)
        )
        self.ln_f = nn.LayerNorm(width, EPSILON)
        if not tied:
            self.lm_head = Table(vocabulary, width)

    def forward(self, tokens):
        x = functional.embedding(tokens, self.wte.weight) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        head = self.lm_head if hasattr(self, "lm_head") else self.wte
        return functional.linear(self.ln_f(x), head.weight)


class LlamaAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, layers):
        super().__init__()
        self.head = width // heads
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, kv_heads * self.head)
        self.v_proj = Linear(width, kv_heads * self.head)
        self.o_proj = Linear(width, width, 0.02 / math.sqrt(2 * layers))

    def forward(self, x, turn):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(x).unflatten(-1, (-1, self.head)) for layer in layers)
        return self.o_proj(attend(rotate(q, turn), rotate(k, turn), v))


class LlamaMlp(nn.Module):
    def __init__(self, width, inner, layers):
        super().__init__()
        self.gate_proj, self.up_proj = Linear(width, inner), Linear(width, inner)
        self.down_proj = Linear(inner, width, 0.02 / math.sqrt(2 * layers))

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, inner, layers):
        super().__init__()
        self.input_layernorm = RmsNorm(width)
        self.self_attn = LlamaAttention(width, heads, kv_heads, layers)
        self.post_attention_layernorm, self.mlp = RmsNorm(width), LlamaMlp(width, inner, layers)

    def forward(self, x, turn):
        x = x + self.self_attn(self.input_layernorm(x), turn)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, layers, heads, kv_heads, width, inner, vocabulary):
        super().__init__()
        self.head, self.base = width // heads, BASE
        self.embed_tokens = Table(vocabulary, width)
        self.layers = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, inner, layers) for _ in range(layers)
        )
        self.norm = RmsNorm(width)

    def forward(self, tokens):
        x = functional.embedding(tokens, self.embed_tokens.weight)
        turn = rotation(tokens.shape[1], self.head, self.base)
        for block in self.layers:
            x = block(x, turn)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(
        self, layers, heads, width, context, vocabulary, mlp_width=None, kv_heads=None, tied=False
    ):
        super().__init__()
        inner = mlp_width or (8 * width // 3 + 63) // 64 * 64
        self.model = LlamaModel(layers, heads, kv_heads or heads, width, inner, vocabulary)
        if not tied:
            self.lm_head = Table(vocabulary, width)

    def forward(self, tokens):
        head = self.lm_head if hasattr(self, "lm_head") else self.model.embed_tokens
        return functional.linear(self.model(tokens), head.weight)


def set_numbers(network, epsilon, base):
    """Sets the epsilon of all norms and the base of rotary positions."""
    for module in network.modules():
        if isinstance(module, (nn.LayerNorm, RmsNorm)):
            module.eps = epsilon
        if isinstance(module, LlamaModel):
            module.base = base


class CachedGpt2:
    """Greedy generation by a Gpt2 with cached keys and values, among the first classes."""

    def __init__(self, model, heads, context, classes):
        self.model, self.heads, self.classes = model, heads, classes
        width = model.wte.weight.shape[1]
        shape = (2, 1, heads, context, width // heads)
        self.cache = [torch.zeros(shape, dtype=model.wte.weight.dtype) for _ in model.h]

    def attend(self, attention, x, first, cache):
        end = first + x.shape[1]
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in attention.c_attn(x).chunk(3, dim=-1)
        )
        cache[0, :, :, first:end], cache[1, :, :, first:end] = k, v
        out = functional.scaled_dot_product_attention(
            q, cache[0, :, :, :end], cache[1, :, :, :end], is_causal=first == 0
        )
        return attention.c_proj(out.transpose(1, 2).flatten(2))

    def next_token(self, tokens, first):
        model = self.model
        x = functional.embedding(tokens, model.wte.weight)
        x = x + model.wpe.weight[first : first + tokens.shape[1]]
        for block, cache in zip(model.h, self.cache):
            x = x + self.attend(block.attn, block.ln_1(x), first, cache)
            x = x + block.mlp(block.ln_2(x))
        logits = functional.linear(model.ln_f(x[:, -1]), model.wte.weight)
        return logits[0, : self.classes].argmax().item()

    def generate(self, prompt, count):
        """Returns the tokens, and the tokens per second behind the first one."""
        with torch.inference_mode():
            made = [self.next_token(torch.tensor([prompt]), 0)]
            begin = time.perf_counter()
            while len(made) < count:
                first = len(prompt) + len(made) - 1
                made.append(self.next_token(torch.tensor([made[-1:]]), first))
        return made, (count - 1) / (time.perf_counter() - begin)


FORMS = {"gpt2": Gpt2, "llama": Llama}
