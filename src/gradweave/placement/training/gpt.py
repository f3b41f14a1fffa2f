"""A small GPT, cut into stages with the parameters that `Transformer` estimates."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from gradweave.placement.workload import Transformer

HEAD_WIDTH = 32
"""Width of an attention head; there is a single head if the model's width is not a multiple."""
_EMBEDDING, _HEAD = -1, -2
"""Part numbers of the embedding and the head, which are not layers, for their seeds."""


def stage_of(model: Transformer, stages: int, stage: int, seed: int) -> nn.Sequential:
    """One stage: tokens or activations [B, T, W] in, activations or logits [B, T, V] out.

    Each layer's weights depend only on the seed and the layer, so the model is the same however it
    is cut.

    Args:
        model: sizes of the model.
        stages: S; 1 for the whole model.
        stage: from 0.
        seed: seed of the weights.
    """
    layers = model.layers_of_stages(stages)
    first = sum(layers[:stage])
    parts: list[nn.Module] = []
    if stage == 0:
        parts.append(Embedding(model, _seed(seed, _EMBEDDING)))
    parts += [Block(model, _seed(seed, layer)) for layer in range(first, first + layers[stage])]
    if stage == stages - 1:
        parts.append(Head(model, _seed(seed, _HEAD)))
    return nn.Sequential(*parts)


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats per token, for logits [B, T, V] and tokens [B, T]."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class Embedding(nn.Module):
    """Tokens [B, T] as vectors [B, T, W], with sinusoidal position encodings."""

    def __init__(self, model: Transformer, seed: int) -> None:
        super().__init__()
        self.table = _matrices(seed, [(model.vocabulary, model.width, 1.0)])[0]
        self.register_buffer("places", _sines(model.sequence, model.width), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The vectors."""
        return self.table[tokens] + self.get_buffer("places")[: tokens.shape[1]]


class Block(nn.Module):
    """A layer: causal attention, then a perceptron four times as wide, both on normalised input."""

    def __init__(self, model: Transformer, seed: int) -> None:
        super().__init__()
        width = model.width
        self.heads = width // HEAD_WIDTH if width % HEAD_WIDTH == 0 else 1
        small = 1 / math.sqrt(2 * model.layers)
        self.qkv, self.out, self.up, self.down = _matrices(
            seed,
            [
                (width, 3 * width, 1.0),
                (width, width, small),
                (width, 4 * width, 1.0),
                (4 * width, width, small),
            ],
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, W] → [B, T, W]."""
        x = x + self._attended(_normed(x)) @ self.out
        return x + functional.gelu(_normed(x) @ self.up) @ self.down

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (x @ self.qkv).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


class Head(nn.Module):
    """Logits [B, T, V] of activations [B, T, W]."""

    def __init__(self, model: Transformer, seed: int) -> None:
        super().__init__()
        self.matrix = _matrices(seed, [(model.width, model.vocabulary, 0.5)])[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return _normed(x) @ self.matrix


def _seed(seed: int, part: int) -> int:
    return seed * 100_003 + part + 2


def _matrices(seed: int, shapes: Sequence[tuple[int, int, float]]) -> list[nn.Parameter]:
    """Random matrices, given rows, columns and a scale, whose products keep the variance."""
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(rows, columns, generator=generator) * scale / math.sqrt(rows))
        for rows, columns, scale in shapes
    ]


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def _sines(length: int, width: int) -> torch.Tensor:
    """[T, W] sinusoidal encodings of positions, scaled by a tenth (Vaswani et al. 2017)."""
    pair = torch.arange((width + 1) // 2)
    angle = torch.arange(length)[:, None] * torch.exp(-2 * math.log(1e4) / width * pair)
    return 0.1 * torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width]
