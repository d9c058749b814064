# SPDX-License-Identifier: Apache-2.0
"""Keys and values that grow step by step, in pages."""

import copy
import os
from typing import Any, Dict, Optional, Sequence, Tuple, Union, cast

import numpy as np

from . import _core
from ._files import read_file
from ._functions import DEFAULTS, Array, options_of
from ._results import wanted_of
from ._words import unknown_keyword

# Options that the cache gives, or that have no meaning here.
_FIXED = ("cu_seqlens_q", "cu_seqlens_k", "block_tables", "context_lens", "layout", "heads")
_TAKEN = {name: value for name, value in DEFAULTS.items() if name not in _FIXED}


class KvCache:
    """Keys [B,G,Tk,D] and values [B,G,Tk,E] that grow, each entry by itself, in pages.

    Kwon et al. 2023, section 4. Keys are counted from the first one appended, so results have the
    bits of `attention` over all keys of an entry. Threads may read a cache at once; while a call
    changes it, any other call is an error, and so is a change while others read.

    Args:
        B, G, D, E: entries, key heads, channels of keys and of values; E is D if absent. With q8,
            D and E are multiples of 32.
        dtype: "float32", "float64", "bfloat16", "float16" or "q8".
        page: keys of a page, a multiple of 16.
        window: above 0, a query sees the last `window` keys, itself included, and what no query can
            see any more is dropped, a page at a time.
        queries: with a window, the most queries of one call.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> cache = KvCache(2, 1, 4)
    >>> cache.append(np.ones((2, 1, 3, 4)), np.ones((2, 1, 3, 4)))
    >>> cache.attention(np.zeros((2, 1, 1, 4), np.float32)).shape, cache.lengths
    ((2, 1, 1, 4), (3, 3))
    """

    def __init__(
        self,
        B: int,
        G: int,
        D: int,
        E: Optional[int] = None,
        *,
        dtype: str = "float32",
        page: int = 64,
        window: int = 0,
        queries: int = 16,
    ) -> None:
        self._cache = _core.KvCache((B, G, D, D if E is None else E, dtype, page, window, queries))

    def __copy__(self) -> "KvCache":
        """A cache of its own, as `copy.deepcopy` and `pickle` make: no page is shared."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))  # set by a subclass or the user
        made._cache = copy.copy(self._cache)
        return made

    def append(self, k: Array, v: Array, *, entries: Optional[Sequence[int]] = None) -> None:
        """Adds keys and values after those of each entry; other real types are rounded.

        Args:
            k, v: [B,G,T,D] and [B,G,T,E]; with `entries`, [n,G,T,D] and [n,G,T,E]. A cache of q8
                takes what `quantize_q8` takes, and makes the same blocks of it; or blocks,
                [B,G,T,D/32] and [B,G,T,E/32] of the dtype `qkv.q8`.
            entries: n different entries; all if absent.

        Raises:
            ValueError, TypeError: invalid argument; the cache is as before.
            KeyboardInterrupt: Ctrl-C while it appends; the cache is as before.
            BufferError: the pages would have to move, but there are arrays of `k_pages` or
                `v_pages`; the cache is as before.
        """
        self._cache.append(k, v, entries)

    def truncate(self, entry: int, length: int) -> None:
        """An entry keeps its first `length` keys: those of rejected guesses go.

        Args:
            entry: 0 to B-1.
            length: 0 to the keys it has. With a window that has dropped keys, 0 or at least
                `first_key(entry) + window`, so that the last key that is left has its window; (the
                longest the entry has been) - queries and above is always accepted. Then
                calls may have one query, and one more for each key that is appended.

        Raises:
            ValueError, TypeError: invalid argument, or a query at the last key would see keys that
                the window has dropped; the cache is as before.
        """
        self._cache.truncate(entry, length)

    def reserve(self, pages: int) -> None:
        """Makes room for so many pages in use, none of which then moves.

        Args:
            pages: 0 or more; no effect unless above `used_pages`.

        Raises:
            ValueError, TypeError: invalid argument.
            BufferError: the pages would have to move, as in `append`.
        """
        self._cache.reserve(pages)

    def reset(self) -> None:
        """No entry has a key; memory is kept."""
        self._cache.reset()

    def reorder(self, entries: Sequence[int]) -> None:
        """Entry b becomes what entry entries[b] was: beams. No key is copied.

        Args:
            entries: B of them, each 0 to B-1.

        Raises:
            ValueError, TypeError: not one entry of 0 to B-1 for each of B.
        """
        self._cache.reorder(entries)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the cache to a safetensors file: pages in use, tables, lengths and sizes.

        The file is written atomically. Pages that entries share are written once.

        Args:
            path: of the file; an existing file is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        self._cache.save(os.fsencode(path))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Becomes the cache that `save` wrote, and goes on as that one to the bit.

        Args:
            path: of a file with the same `sizes`; otherwise nothing changes.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: it is not such a file, or has other sizes; the message names file and field.
            BufferError: there are arrays of `k_pages` or `v_pages`.
        """
        read_file(self._cache.load, path)

    @classmethod
    def from_file(cls, path: Union[str, "os.PathLike[str]"]) -> "KvCache":
        """The cache that `save` wrote, which goes on as that one to the bit.

        Args:
            path: of the file.

        Returns:
            A cache with the file's `sizes`.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: it is not such a file; the message names file and field.
        """
        cache = cls.__new__(cls)
        cache._cache = read_file(_core.KvCache, path)
        return cache

    def attention(self, q: Array, *, threads: Optional[int] = None, **options: Any) -> Any:
        """`qkv.attention` of queries over the keys of each entry; the last is at the last key.

        Args:
            q: [B,H,Tq,D].
            threads: as in `attention`.
            options: those of `attention` except cu_seqlens, pages, layout and heads. Not bias,
                mask, padding_mask, k_positions nor results by key; with a window, not
                causal_offset.

        Returns:
            As `attention`.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        """
        for word in options:
            if word not in _TAKEN:
                raise unknown_keyword("KvCache.attention", word, set(_TAKEN))
        given = {**DEFAULTS, **options}
        return self._cache.attention(q, options_of(given), wanted_of(given), threads)

    def first_key(self, entry: int) -> int:
        """The first key of an entry that is still there: 0, or what a window has left.

        Args:
            entry: 0 to B-1.

        Returns:
            Its number, counted from the first key appended.

        Raises:
            ValueError, TypeError: not an entry.
        """
        return self._cache.first_key(entry)

    @property
    def sizes(self) -> Dict[str, Any]:
        """What the cache was made with: `KvCache(**cache.sizes)` is another one like it."""
        return self._cache.sizes

    @property
    def k_pages(self) -> np.ndarray:
        """The keys, [pages,page,G,D] without a copy, for `attention(..., block_tables=)`.

        Of q8, [pages,page,G,D/32] of the dtype `qkv.q8`.

        Read-only, since entries may share pages. Its numbers change with the cache; as long as it,
        or a view of it, exists, the pages do not move: `append` raises BufferError rather than make
        room (`reserve` does so before). bfloat16 needs ml_dtypes. Rows without a key hold any
        numbers.
        """
        return cast(np.ndarray, self._cache.k_pages)

    @property
    def v_pages(self) -> np.ndarray:
        """The values, [pages,page,G,E], of q8 [pages,page,G,E/32], as `k_pages`."""
        return cast(np.ndarray, self._cache.v_pages)

    @property
    def block_tables(self) -> np.ndarray:
        """The page of each `page` keys of each entry, int64 [B,pages of the longest]; a copy.

        -1 after an entry's keys. Before `first_key`, any page.
        """
        return cast(np.ndarray, self._cache.block_tables)

    @property
    def context_lens(self) -> np.ndarray:
        """`lengths` as an int64 array [B]; a copy."""
        return cast(np.ndarray, self._cache.context_lens)

    @property
    def lengths(self) -> Tuple[int, ...]:
        """How many keys each entry has, dropped ones included."""
        return tuple(self._cache.lengths)

    @property
    def used_pages(self) -> int:
        """How many pages hold keys; a shared one counts once."""
        return self._cache.used_pages

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and tables, spare ones included."""
        return self._cache.bytes
