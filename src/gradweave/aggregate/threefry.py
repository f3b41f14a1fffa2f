"""The random numbers of JAX's keys for PyTorch's tensors, bit for bit.

A key is two words of 32 bits; a random number is its index, encrypted with the key.

Source: Salmon, Moraes, Dror and Shaw 2011 (Threefry-2x32, 20 rounds); what is encrypted follows
JAX's `jax.random` with `jax_threefry_partitionable`, its default.
"""

import math

import torch

Key = tuple[int, int]
"""Words below 2³²."""
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF
_AT_ONCE = 1 << 16
"""Numbers that a processor encrypts at once, so that three tables of them stay in its cache. A
million numbers then take half the time; that is as long as in JAX, and five times `torch.rand`."""


def key_of(seed: "int | torch.Tensor") -> Key:
    """The key of `jax.random.key(seed)`, or of two words that were received."""
    if isinstance(seed, torch.Tensor):
        first, second = (word & _WORD for word in seed.tolist())
        return first, second
    return 0, seed & _WORD


def fold_in(key: Key, number: int) -> Key:
    """Like `jax.random.fold_in`."""
    return _encrypted(key, 0, number)


def split(key: Key, count: int = 2) -> list[Key]:
    """Like `jax.random.split`."""
    return [_encrypted(key, 0, number) for number in range(count)]


def bits(key: Key, count: int, device: "torch.device | str" = "cpu") -> torch.Tensor:
    """Like `jax.random.bits`: [count], fewer than 2³¹, the bits as int32."""
    whole = torch.empty(count, dtype=torch.int32, device=device)
    at_once = _AT_ONCE if whole.device.type == "cpu" else max(1, count)
    for start in range(0, count, at_once):
        some = whole[start : start + at_once].zero_()
        place = torch.arange(start, start + len(some), dtype=torch.int32, device=device)
        _encrypt(key, some, place)
        some.bitwise_xor_(place)
    return whole


def uniform(key: Key, count: int, device: "torch.device | str" = "cpu") -> torch.Tensor:
    """Like `jax.random.uniform`: [count] float32 in [0, 1), in steps of 2⁻²³."""
    mantissas = (bits(key, count, device) >> 9) & 0x7FFFFF
    return mantissas.to(torch.float32).mul_(2.0**-23)


def permutation(key: Key, size: int, device: "torch.device | str" = "cpu") -> torch.Tensor:
    """Like `jax.random.permutation`: [size] int64."""
    order = torch.arange(size, device=device)
    for _ in range(math.ceil(3 * math.log(max(1, size)) / math.log(_WORD))):
        key, drawn = split(key)
        order = order[(bits(drawn, size, device).to(torch.int64) & _WORD).argsort(stable=True)]
    return order


def _encrypted(key: Key, first: int, second: int) -> Key:
    """Encrypts one pair of words."""
    pair = [torch.tensor([_signed(word)], dtype=torch.int32) for word in (first, second)]
    _encrypt(key, *pair)
    first, second = (int(word) & _WORD for word in pair)
    return first, second


def _encrypt(key: Key, first: torch.Tensor, second: torch.Tensor) -> None:
    """Threefry-2x32 of pairs of words, in place; int32 sums wrap around like those of words."""
    injected = (*key, key[0] ^ key[1] ^ _PARITY)
    moved = torch.empty_like(second)
    first.add_(_signed(injected[0]))
    second.add_(_signed(injected[1]))
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first.add_(second)
            torch.bitwise_right_shift(second, 32 - rotation, out=moved)  # extends the sign
            moved.bitwise_and_((1 << rotation) - 1)
            second.bitwise_left_shift_(rotation).bitwise_or_(moved).bitwise_xor_(first)
        first.add_(_signed(injected[(group + 1) % 3]))
        second.add_(_signed((injected[(group + 2) % 3] + group + 1) & _WORD))


def _signed(word: int) -> int:
    """The int32 number with the bits of a word."""
    return word - (1 << 32) if word >> 31 else word
