# SPDX-License-Identifier: Apache-2.0
"""A vision transformer in plain PyTorch, to compare with Trireme's.

docs/reference/numerics.md describes it. Parameters have timm's names and shapes.
"""

import torch
from torch import nn
from torch.nn import functional

EPSILON = 1e-6


class Attention(nn.Module):
    def __init__(self, width, heads, qkv_bias):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, rows, width))


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    def __init__(self, width, start):
        super().__init__()
        self.gamma = nn.Parameter(start * torch.ones(width))

    def forward(self, x):
        return self.gamma * x


class Block(nn.Module):
    def __init__(self, width, heads, inner, qkv_bias, layer_scale):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attn = Attention(width, heads, qkv_bias)
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = Mlp(width, inner)
        self.ls1 = LayerScale(width, layer_scale) if layer_scale else nn.Identity()
        self.ls2 = LayerScale(width, layer_scale) if layer_scale else nn.Identity()

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbedding(nn.Module):
    def __init__(self, channels, width, patch):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """`image`: height and width. `pool`: "token" or "mean"."""

    def __init__(
        self,
        image,
        channels,
        classes,
        patch,
        layers,
        heads,
        width,
        mlp_ratio=4.0,
        pool="token",
        qkv_bias=True,
        layer_scale=0.0,
    ):
        super().__init__()
        self.pool = pool
        patches = image[0] // patch * (image[1] // patch)
        if pool == "token":
            self.cls_token = nn.Parameter(1e-6 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, patches + (pool == "token"), width))
        self.patch_embed = PatchEmbedding(channels, width, patch)
        self.blocks = nn.Sequential(
            *(
                Block(width, heads, int(mlp_ratio * width), qkv_bias, layer_scale)
                for _ in range(layers)
            )
        )
        norm = nn.LayerNorm(width, eps=EPSILON)
        if pool == "token":
            self.norm = norm
        else:
            self.fc_norm = norm
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch_embed(x)
        if self.pool == "token":
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        x = self.blocks(x + self.pos_embed)
        return self.head(self.norm(x[:, 0]) if self.pool == "token" else self.fc_norm(x.mean(1)))
