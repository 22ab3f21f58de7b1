"""Rotary positions of a model: inverse frequencies and the cosine and sine tables, in the config's own scaling.

>>> cosine, sine = rotation(dims, np.arange(2048))     # [2048, head_dim / 2] each
>>> rotated = rotate(queries, cosine, sine)            # [seq, heads, head_dim], half-split

Steps and precision are those of transformers (modeling_rope_utils): frequencies and angles in float32, so that far
positions agree with it to the last digits. The half-split layout pairs element i with i + head_dim / 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions, RopeScaling

Floats = NDArray[np.float32]


def inverse_frequencies(dims: Dimensions) -> Floats:
    """[head_dim / 2]: radians a position, fastest first."""
    exponent = np.arange(0, dims.head_dim, 2, dtype=np.float32) / np.float32(dims.head_dim)
    plain = (np.float32(1) / np.float32(dims.rope_theta) ** exponent).astype(np.float32)
    if dims.scaling is None:
        return plain
    if dims.scaling.kind == "linear":
        return plain / np.float32(dims.scaling.factor)
    return _llama3(plain, dims.scaling)


def _llama3(plain: Floats, scaling: RopeScaling) -> Floats:
    """Long waves slowed by the factor, short ones kept, those between blended by how often they fit in training."""
    turns = np.float32(scaling.trained) * plain / np.float32(2 * np.pi)
    share = np.clip((turns - np.float32(scaling.low)) / np.float32(scaling.high - scaling.low), 0, 1)
    return ((1 - share) * plain / np.float32(scaling.factor) + share * plain).astype(np.float32)


def rotation(dims: Dimensions, positions: NDArray[Any]) -> tuple[Floats, Floats]:
    """Cosine and sine [positions, head_dim / 2]."""
    angles = np.asarray(positions, np.float32)[:, None] * inverse_frequencies(dims)[None, :]
    return np.cos(angles), np.sin(angles)


def rotate(heads: NDArray[Any], cosine: Floats, sine: Floats) -> NDArray[Any]:
    """Queries or keys [seq, heads, head_dim] turned by their positions' angles."""
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    c, s = cosine[:, None, :], sine[:, None, :]
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)
