# SPDX-License-Identifier: Apache-2.0
"""Tests copies and pickles of qkv.KvCache."""

import copy
import pickle

import numpy as np
import pytest

import qkv
from qkv import _core

RANDOM = np.random.default_rng(6)
H, G = 4, 2


def draw(*shape):
    return RANDOM.standard_normal(shape, dtype=np.float32)


COPIES = [copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))]
TYPES = ["float32", "float64", "bfloat16", "float16", "q8"]


def filled(dtype, window):
    """A cache whose entries share pages and, with a window, have dropped keys."""
    cache = qkv.KvCache(3, G, 32, 64, page=16, dtype=dtype, window=window, queries=2)
    cache.append(draw(3, G, 90, 32), draw(3, G, 90, 64))
    cache.reorder([1, 1, 0])
    cache.append(draw(1, G, 5, 32), draw(1, G, 5, 64), entries=[2])
    cache.truncate(1, 87)
    return cache


def state(cache):
    """The visible state of a cache, and the bytes of attention over its keys."""
    random = np.random.default_rng(3)
    kind = "float32" if cache.sizes["dtype"] in ("bfloat16", "q8") else cache.sizes["dtype"]
    q = random.standard_normal((3, H, 1, 32)).astype(kind)
    firsts = tuple(cache.first_key(b) for b in range(3))
    seen = (cache.sizes, cache.lengths, firsts, cache.used_pages)
    return (*seen, cache.attention(q).tobytes())


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("dtype", TYPES)
def test_copies_are_equal_and_independent(dtype, window, copied):
    cache = filled(dtype, window)
    other, twin = copied(cache), copied(cache)
    before = state(cache)
    assert state(other) == before
    k, v = draw(3, G, 20, 32), draw(3, G, 20, 64)
    other.append(k, v)
    other.truncate(0, other.lengths[0] - 1)
    other.reorder([2, 0, 0])
    assert state(cache) == state(twin) == before
    cache.append(k, v)
    cache.truncate(0, cache.lengths[0] - 1)
    cache.reorder([2, 0, 0])
    assert state(cache) == state(other) and state(twin) == before


class Mine(qkv.KvCache):
    """A user's subclass with an attribute of its own."""

    def __init__(self):
        super().__init__(1, 1, 4)
        self.names = [5]


@pytest.mark.parametrize("copied", COPIES)
def test_copies_have_what_a_subclass_added(copied):
    cache = Mine()
    cache.append(np.ones((1, 1, 3, 4)), np.ones((1, 1, 3, 4)))
    cache.itself = cache
    other = copied(cache)
    assert type(other) is Mine and other.names == [5] and other.lengths == (3,)
    assert (other.names is cache.names) == (copied is copy.copy)
    assert other.itself is (cache if copied is copy.copy else other)
    other.reset()
    assert cache.lengths == (3,)


def test_copies_may_be_made_while_pages_are_held():
    cache = filled("float32", 0)
    pages = cache.k_pages
    for copied in COPIES:
        other = copied(cache)
        other.reserve(1000)  # no array holds the copy's pages
        assert not np.shares_memory(pages, other.k_pages)


def test_a_damaged_pickle_is_an_error():
    make, (fields,) = filled("q8", 40)._cache.__reduce__()
    assert make(fields).lengths == filled("q8", 40).lengths
    shape, data = fields["k_pages"]
    rows = tuple(map(int, shape))
    for changed, text in [
        ({"format": "qkv KvCache 2"}, "KvCache: the field format of the pickle is invalid"),
        ({"sizes": (1,)}, "qkv: the package and its extension are of different versions (sizes)"),
        ({"sizes": None}, "KvCache: the field sizes of the pickle is invalid"),
        ({"k_pages": None}, "KvCache: the field k_pages of the pickle is invalid"),
        ({"k_pages": (rows, data[:-1])}, "KvCache: the field k_pages of the pickle is invalid"),
        (
            {"k_pages": ((1 << 40, *rows), data)},
            "KvCache: the field k_pages of the pickle is invalid",
        ),
        ({"k_pages": ((-1, *rows), data)}, "KvCache: the field k_pages of the pickle is invalid"),
        ({"k_pages": ((1,) * 9, b"")}, "KvCache: the field k_pages of the pickle is invalid"),
        ({"k_pages": ((rows[0] * 16, 1, *rows[2:]), data)}, "KvCache: k_pages must be q8"),
        ({"lengths": ((3,), bytes(24))}, "KvCache: first_keys must be"),
        ({"lengths": ((3,), b"\xff" * 24)}, "KvCache: lengths must be 0 or more, got -1"),
    ]:
        with pytest.raises((ValueError, TypeError)) as raised:
            make({**fields, **changed})
        assert str(raised.value).startswith(text)
    with pytest.raises(ValueError, match="KvCache: the field lengths of the pickle"):
        make({name: value for name, value in fields.items() if name != "lengths"})


@pytest.mark.parametrize("sizes", [(), (1,), (1, 1, 4, 4, "float32", 64, 0), (1,) * 9])
def test_sizes_of_another_version(sizes):
    with pytest.raises(TypeError, match="are of different versions .sizes."):
        _core.KvCache(sizes)
