# SPDX-License-Identifier: Apache-2.0
"""Word vectors from the files of GloVe, fastText and word2vec."""

from typing import Iterable, List, NamedTuple, Optional

import numpy as np

from . import _core
from ._files import Path, read_file
from ._words import near_words

__all__ = ["WordVectors", "read_word_vectors"]


class WordVectors(NamedTuple):
    """The result of `read_word_vectors`: words, and float32 [n,d]: vectors[i] is for words[i]."""

    words: List[str]
    vectors: np.ndarray


def _listed(words: Optional[Iterable[str]]) -> Optional[List[str]]:
    if words is None:
        return None
    if isinstance(words, (str, bytes)) or not isinstance(words, Iterable):
        kind = type(words).__name__
        raise TypeError(f"read_word_vectors: words must be an iterable of str, got {kind}")
    return list(words)


@near_words
def read_word_vectors(
    path: Path,
    words: Optional[Iterable[str]] = None,
    *,
    limit: Optional[int] = None,
    width: Optional[int] = None,
    unknown: str = "error",
) -> WordVectors:
    """The vectors in a file of GloVe, fastText (.vec) or word2vec (text or binary).

    The file's content determines its format. If a word has several vectors, the first is returned.
    Bytes of a word that are not UTF-8 become surrogates, as in `os.fsdecode`.

    Args:
        path: path of the uncompressed file.
        words: the words to find, spelled as in the file; the result has their order. None for all
            words of the file.
        limit: how many words to read, from the first; only if `words` is None. None for all.
        width: how many numbers a vector has; None to take it from the header or the first line.
        unknown: what a word without a vector gives: "error", "skip" (no row) or "zero" (zeros).

    Returns:
        WordVectors: the words, and their vectors, float32 [n,d].

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: a malformed file (the message has the line or byte), a word without a vector
            (the message has similar words), or an invalid argument.
        TypeError: invalid argument; the message names it, the rule and the value.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "few.txt")
    ...     with open(path, "w", encoding="utf-8") as file:
    ...         _ = file.write("the 0.5 1\\ncat 2 -3\\n")
    ...     read_word_vectors(path, ["cat", "the"]).vectors
    array([[ 2. , -3. ],
           [ 0.5,  1. ]], dtype=float32)
    """
    listed = _listed(words)
    return WordVectors(
        *read_file(lambda name: _core.read_word_vectors(name, listed, limit, width, unknown), path)
    )
