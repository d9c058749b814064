# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011)
and the dropout pattern made from it."""
import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)

# counter, key, result: the published known answers of Random123 (kat_vectors, philox4x32 10).
KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0),
     (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2,
     (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)


def philox(counter, key):
    """Four random words for each counter.

    counter: four arrays (or ints) of 32-bit words that broadcast; key: two ints.
    Returns four uint64 arrays holding 32-bit words.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    for step in range(10):
        k0, k1 = (np.uint64((key[n] + step * KEY_STEPS[n]) & 0xFFFFFFFF) for n in (0, 1))
        product0, product1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = ((product1 >> HALF) ^ c1 ^ k0, product1 & WORD,
                          (product0 >> HALF) ^ c3 ^ k1, product0 & WORD)
    return c0, c1, c2, c3


def dropout_factors(probability, seed, batches, heads, queries, keys):
    """The factor of each weight: 0 (dropped) or 1 / (1 - p).

    batches, heads, queries, keys: index vectors b, h, i, j. Returns [B,H,Tq,Tk].
    Key = (low, high) word of the seed, counter = (floor(j / 4), i, h, b), word j mod 4.
    """
    b, h, i, j = np.ix_(batches, heads, queries, keys)
    words = philox((j // 4, i, h, b), (seed & 0xFFFFFFFF, seed >> 32))
    word = np.choose(np.broadcast_to(j % 4, words[0].shape), words)
    dropped = word < np.uint64(int(probability * 2.0**32))
    return np.where(dropped, 0.0, 1.0 / (1.0 - probability))


def known_answers_hold():
    """Whether the published vectors are reproduced."""
    return all(tuple(int(word) for word in philox(counter, key)) == answer
               for counter, key, answer in KNOWN_ANSWERS)
