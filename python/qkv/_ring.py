# SPDX-License-Identifier: Apache-2.0
"""What `qkv.torch.ring_attention` and `qkv.mpi.ring_attention` share."""

from typing import Any, Optional

from ._mods import MaskMod, ScoreMod
from ._mods import mask_mod as make_mask_mod
from ._mods import score_mod as make_score_mod

WORD = "ring_attention"  # the function in errors
BLOCK = 512  # parts of a sequence begin at multiples of this number of rows
_ZIGZAGS = {"contiguous": 0, "zigzag": 1}


def zigzags_of(sharding: Any, word: str = WORD) -> int:
    """The number of zigzags, 0 for "contiguous". Raises ValueError for an invalid `sharding`."""
    if isinstance(sharding, str) and sharding in _ZIGZAGS:
        return _ZIGZAGS[sharding]
    if isinstance(sharding, int) and not isinstance(sharding, bool) and 0 < sharding < 2**31:
        return sharding
    raise ValueError(
        f'{word}: sharding must be "contiguous", "zigzag" or a number of zigzags, got {sharding!r}'
    )


def score_mod_of(function: Any) -> Optional[ScoreMod]:
    made: Optional[ScoreMod] = (
        function if function is None or isinstance(function, ScoreMod) else make_score_mod(function)
    )
    return made


def mask_mod_of(function: Any) -> Optional[MaskMod]:
    made: Optional[MaskMod] = (
        function if function is None or isinstance(function, MaskMod) else make_mask_mod(function)
    )
    return made
