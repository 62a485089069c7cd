"""The rotation of kvedge.plugins.reference.rotation in Triton, operation by operation in the same order.

Compiled without fused multiply-add, so that codes are those of the reference.
"""

import triton
import triton.language as tl


@triton.jit
def sums_and_differences(x, HALF: tl.constexpr, SIZE: tl.constexpr):
    """x, SIZE elements, with those HALF apart taken together."""
    pairs = tl.permute(tl.reshape(x, (SIZE // (2 * HALF), 2, HALF)), (0, 2, 1))
    low, high = tl.split(pairs)
    return tl.permute(tl.join(low + high, low - high), (0, 2, 1))


@triton.jit
def butterfly(x, ROWS: tl.constexpr, POWER: tl.constexpr, ODD_P: tl.constexpr, NORM: tl.constexpr):
    """NORM times the Hadamard transform of x [ROWS, POWER * ODD_P] over POWER."""
    STEPS: tl.constexpr = POWER.bit_length() - 1
    for n in tl.static_range(STEPS):
        x = tl.reshape(sums_and_differences(x, (1 << n) * ODD_P, ROWS * POWER * ODD_P), (ROWS, POWER * ODD_P))
    return x * NORM


@triton.jit
def mix(x, dct, ROWS: tl.constexpr, POWER: tl.constexpr, ODD: tl.constexpr, ODD_P: tl.constexpr, BACK: tl.constexpr):
    """x [ROWS, POWER * ODD_P] with each ODD of it multiplied by the matrix dct [ODD, ODD], summed in order."""
    parts = tl.reshape(x, (ROWS * POWER, ODD_P))
    column = tl.arange(0, ODD_P)[None, :]
    total = tl.zeros((ROWS * POWER, ODD_P), tl.float32)
    for c in tl.static_range(ODD):
        one = tl.sum(tl.where(column == c, parts, 0.0), 1)[:, None]
        at = c * ODD + column if BACK else column * ODD + c
        weight = tl.load(dct + at, mask=column < ODD, other=0.0)
        total = total + one * weight
    return tl.reshape(total, (ROWS, POWER * ODD_P))


@triton.jit
def rotate(
    x,
    dct,
    ROWS: tl.constexpr,
    POWER: tl.constexpr,
    ODD: tl.constexpr,
    ODD_P: tl.constexpr,
    NORM: tl.constexpr,
    BACK: tl.constexpr,
):
    """x [ROWS, POWER * ODD_P] rotated, or with BACK un-rotated; channel i stands at i // ODD * ODD_P + i % ODD."""
    if ODD > 1:
        x = mix(x, dct, ROWS, POWER, ODD, ODD_P, BACK)
    return butterfly(x, ROWS, POWER, ODD_P, NORM)


@triton.jit
def channel_of(place, ODD: tl.constexpr, ODD_P: tl.constexpr):
    """Channel at a place of a rotated vector's layout; meaningful where place % ODD_P < ODD."""
    return place // ODD_P * ODD + place % ODD_P
