# SPDX-License-Identifier: Apache-2.0
"""A paged cache of keys and values, to which every decoding step appends."""

import copy
import os
from typing import Any, Dict, Optional, Sequence, Tuple, Union, cast

import numpy as np

from . import _core
from ._files import read_file
from ._functions import DEFAULTS, Array, attention, options_of
from ._results import wanted_of
from ._words import unknown_keyword

# Options of attention() that the cache fixes, or that have no meaning for it.
_EXCLUDED = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_tables",
    "context_lens",
    "shard",
    "layout",
    "heads",
)
_ACCEPTED = {name: value for name, value in DEFAULTS.items() if name not in _EXCLUDED}


def _keys_of(pages: np.ndarray, table: np.ndarray, first: int, length: int) -> np.ndarray:
    """A copy of an entry's keys or values, [1,G,length,D]; dropped rows, 0 .. first - 1, are 0."""
    page, G, D = pages.shape[1:]
    rows = np.zeros((length, G, D), pages.dtype)
    kept = np.arange(first, length)
    rows[kept] = pages[table[kept // page], kept % page]
    return np.ascontiguousarray(rows.transpose(1, 0, 2)[None])


class KvCache:
    """Keys [B,G,Tk,D] and values [B,G,Tk,E] in pages; Tk grows for each of B entries separately.

    Kwon et al. 2023, section 4. Keys are counted from the first one appended, so results are
    bit-identical to those of `attention` over all keys of an entry. Several threads may read a
    cache at the same time. A call that changes it must be the only call; if two overlap, the later
    one raises ValueError.

    Args:
        B, G, D, E: entries, key heads, channels of keys and of values; E is D if absent. With q8,
            D and E are multiples of 32.
        dtype: "float32", "float64", "bfloat16", "float16" or "q8".
        page: number of keys in a page, a multiple of 16.
        window: if above 0, a query attends to the last `window` keys, its own included, and keys
            that no query can attend to any more are dropped, a page at a time.
        queries: with a window, calls of up to this many queries have all keys they attend to.

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
        """Copies all pages, as `copy.deepcopy` and `pickle` do: the two caches share no page."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))  # attributes that a subclass or the user has set
        made._cache = copy.copy(self._cache)
        return made

    def append(self, k: Array, v: Array, *, entries: Optional[Sequence[int]] = None) -> None:
        """Appends T keys and values to each entry, rounded to the cache's dtype.

        Args:
            k, v: [B,G,T,D] and [B,G,T,E] of any real dtype; with `entries`, [n,G,T,D] and
                [n,G,T,E]. A cache of q8 quantizes arrays as `quantize_q8` does; it also takes
                blocks, [B,G,T,D/32] and [B,G,T,E/32] of the dtype `qkv.q8`.
            entries: the indices of n different entries; None for all B.

        Raises:
            ValueError, TypeError: invalid argument; the cache is unchanged.
            KeyboardInterrupt: Ctrl-C while the keys are appended; the cache has all of them, or is
                unchanged.
            BufferError: the pages would have to move, but an array from `k_pages` or `v_pages`
                still exists; the cache is unchanged.
        """
        self._cache.append(k, v, entries)

    def truncate(self, entry: int, length: int) -> None:
        """Shortens an entry to its first `length` keys, such as after rejected draft tokens.

        Args:
            entry: 0 to B-1.
            length: 0 to the entry's number of keys. With a window that has dropped keys, 0 or at
                least `first_key(entry) + window`, so that the last key left has its whole window.
                A length of at least L - queries is always accepted, where L is the longest length
                that the entry has had. After a truncation to `first_key(entry) + window`, a call
                may have one query, and one more for each key appended since.

        Raises:
            ValueError, TypeError: invalid argument, or a query at the last key would attend to keys
                that the window has dropped; the cache is unchanged.
        """
        self._cache.truncate(entry, length)

    def reserve(self, pages: int) -> None:
        """Allocates memory for `pages` pages; no page moves until more than these are used.

        Args:
            pages: 0 or more; no effect unless above `used_pages`.

        Raises:
            ValueError, TypeError: invalid argument.
            BufferError: the pages would have to move, as in `append`.
        """
        self._cache.reserve(pages)

    def reset(self) -> None:
        """Removes the keys of all entries; the memory is kept for reuse."""
        self._cache.reset()

    def reorder(self, entries: Sequence[int]) -> None:
        """Replaces entry b by entry entries[b], for all b, as beam search does. Copies no key.

        Args:
            entries: B indices of entries, each 0 to B-1; an index may occur several times.

        Raises:
            ValueError, TypeError: entries is not a list of B integers from 0 to B-1.
        """
        self._cache.reorder(entries)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the cache to a safetensors file: pages in use, tables, lengths and sizes.

        The file is written atomically. Pages that entries share are written once.

        Args:
            path: path of the file; an existing file is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        self._cache.save(os.fsencode(path))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Replaces the contents by a saved cache; later results are bit-identical to that cache's.

        Args:
            path: path of a file with the same `sizes`; on any error the cache is unchanged.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: the file is malformed or has other sizes; the message names file and field.
            BufferError: an array from `k_pages` or `v_pages` still exists.
        """
        read_file(self._cache.load, path)

    @classmethod
    def from_file(cls, path: Union[str, "os.PathLike[str]"]) -> "KvCache":
        """Makes the cache that `save` wrote; results of both are bit-identical.

        Args:
            path: path of the file.

        Returns:
            A cache with the file's `sizes`.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: the file is malformed; the message names file and field.
        """
        cache = cls.__new__(cls)
        cache._cache = read_file(_core.KvCache, path)
        return cache

    def attention(self, q: Array, *, threads: Optional[int] = None, **options: Any) -> Any:
        """Calls `qkv.attention` of q with each entry's keys; the last query is at the last key.

        Args:
            q: queries [B,H,Tq,D].
            threads: as in `attention`.
            options: the options of `attention` except packed sequences, pages, shard, layout and
                heads; bias, mask, padding_mask, k_positions and all results but out, lse and
                row_max are rejected, and with a window so is causal_offset.

        Returns:
            The result of `attention`.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        """
        for word in options:
            if word not in _ACCEPTED:
                raise unknown_keyword("KvCache.attention", word, set(_ACCEPTED))
        given = {**DEFAULTS, **options}
        return self._cache.attention(q, options_of(given), wanted_of(given), threads)

    def attention_of(
        self, entry: int, q: Array, *, threads: Optional[int] = None, **options: Any
    ) -> Any:
        """Computes a step of one entry over a copy of its keys, with every result of `attention`.

        out, lse and row_max are bit-identical to those of the entry in `attention`, except that
        dropout and functions see the entry as number 0. A picture of a step's weights is
        `qkv.show(cache.attention_of(0, q, return_weights=True), keys=tokens)`. The copy has room
        for all keys of the entry; those that a window has dropped are masked.

        Args:
            entry: 0 to B-1.
            q: the queries of all entries, as in `attention`, [B,H,Tq,D].
            threads: as in `attention`.
            options: the options of `qkv.attention` except packed sequences, pages, shard, layout
                and heads; in a cache with a window also except window and causal_offset.

        Returns:
            The result of `qkv.attention` with B = 1.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.

        >>> cache = KvCache(1, 1, 2)
        >>> cache.append(np.ones((1, 1, 3, 2)), np.ones((1, 1, 3, 2)))
        >>> q = np.ones((1, 1, 1, 2), np.float32)
        >>> cache.attention_of(0, q, return_weights=True).weights.round(4)
        array([[[[0.3333, 0.3333, 0.3333]]]], dtype=float32)
        """
        name = "KvCache.attention_of"
        try:
            first, length = self.first_key(entry), self.lengths[entry]
        except (ValueError, TypeError) as error:
            raise type(error)(str(error).replace("KvCache.first_key", name)) from None
        window = self.sizes["window"]
        known = set(_ACCEPTED) - ({"window", "causal_offset"} if window else set())
        for word in options:
            if word not in known:
                raise unknown_keyword(name, word, known)
        if len(getattr(q, "shape", ())) != 4 or q.shape[0] != self.sizes["B"]:
            got = list(getattr(q, "shape", ())) or type(q).__name__
            raise ValueError(
                f"{name}: q must be an array [B,H,Tq,D] with B = {self.sizes['B']}, got {got}"
            )
        if window:
            options["window"] = (window - 1, None)
        table = self.block_tables[entry]
        k, v = (_keys_of(pages, table, first, length) for pages in (self.k_pages, self.v_pages))
        return attention(q[entry : entry + 1], k, v, threads=threads, **options)

    def first_key(self, entry: int) -> int:
        """Returns the index of the first key that the window has not dropped from an entry.

        Args:
            entry: 0 to B-1.

        Returns:
            The index of that key, where the first key ever appended has index 0.

        Raises:
            ValueError, TypeError: entry is not an integer from 0 to B-1.
        """
        return self._cache.first_key(entry)

    @property
    def sizes(self) -> Dict[str, Any]:
        """The constructor's arguments by name: `KvCache(**cache.sizes)` makes an empty copy."""
        return self._cache.sizes

    @property
    def k_pages(self) -> np.ndarray:
        """The keys, [pages,page,G,D] without a copy, for `attention(..., block_tables=)`.

        With q8 the shape is [pages,page,G,D/32] and the dtype `qkv.q8`; bfloat16 needs ml_dtypes.

        The array is read-only, since entries may share pages, and its numbers change with the
        cache. While the array or a view of it exists, the pages cannot move, so that an `append`
        that needs more room raises BufferError; `reserve` makes the room beforehand. Rows that hold
        no key have arbitrary values.
        """
        return cast(np.ndarray, self._cache.k_pages)

    @property
    def v_pages(self) -> np.ndarray:
        """The values, [pages,page,G,E], with q8 [pages,page,G,E/32]; as described for `k_pages`."""
        return cast(np.ndarray, self._cache.v_pages)

    @property
    def block_tables(self) -> np.ndarray:
        """The page index of each block of `page` keys, int64 [B,pages of longest entry]; a copy.

        It is -1 after an entry's last page, and arbitrary for pages wholly before `first_key`.
        """
        return cast(np.ndarray, self._cache.block_tables)

    @property
    def context_lens(self) -> np.ndarray:
        """The `lengths`, as an int64 array [B]; a copy."""
        return cast(np.ndarray, self._cache.context_lens)

    @property
    def lengths(self) -> Tuple[int, ...]:
        """The number of keys of each entry, including those that a window has dropped."""
        return tuple(self._cache.lengths)

    @property
    def used_pages(self) -> int:
        """The number of pages that hold keys; a page that entries share counts once."""
        return self._cache.used_pages

    @property
    def nbytes(self) -> int:
        """The bytes allocated for keys, values and tables, unused pages included."""
        return self._cache.bytes
