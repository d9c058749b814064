# SPDX-License-Identifier: Apache-2.0
"""The translator of Bahdanau, Cho and Bengio (2015): models that `qkv train` wrote."""

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Union, overload

import numpy as np

from . import _core
from ._files import Path, read_file
from ._show import show
from ._words import near_words

__all__ = ["Translation", "Translator"]


@dataclass(frozen=True, eq=False, repr=False)
class Translation:
    """A translation of one text, with what each of its tokens attends to; str() gives its text.

    Attributes:
        line: the text that was translated.
        text: its translation, in the spelling of the target language.
        source, target: the tokens that the model read and wrote, with the end tokens; "<unk>" is a
            token that the model does not know.
        weights: attention weights [target tokens, source tokens], float32: row i is the attention
            of the step that chose token i, as the mean over heads if there are several. None for a
            blank line, with return_weights=False, and for a model without attention.
        log_probability: natural log-probability of the target tokens.
        is_whole: False if most_tokens cut the translation off.
    """

    line: str
    text: str
    source: List[str]
    target: List[str]
    weights: Optional[np.ndarray]
    log_probability: float
    is_whole: bool

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<qkv.Translation {self.text!r}>"

    def _attention_arrays_(self, queries: Any = None, keys: Any = None) -> Dict[str, Any]:
        """The arrays of an attention file of `qkv translate -o`, which `qkv.show` draws."""
        if queries is not None or keys is not None:
            name = "keys" if queries is None else "queries"
            raise ValueError(f"show: {name} are for arrays; a Translation has its own tokens")
        if self.weights is None:
            raise ValueError("show: the Translation has no weights, so there is nothing to draw")
        return {
            "attn": self.weights,
            "src": np.array(self.source),
            "tgt": np.array(self.target),
            "line": np.array([self.line]),
            "translation": np.array([self.text]),
            "axes": np.array(["target", "source"]),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        """The forms that a notebook may show: the picture of the weights, and the text."""
        forms = {"text/plain": repr(self)}
        if self.weights is not None:
            forms["image/svg+xml"] = show(self).svg
        return forms


def _texts(texts: Any) -> Union[str, List[str]]:
    if isinstance(texts, str):
        return texts
    if isinstance(texts, (bytes, dict)) or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise TypeError(f"Translator.translate: texts must be a str or a list of str, got {kind}")
    return list(texts)


class Translator:
    """A translator of texts, made by `load`, `demo` or `dates`. Its model never changes.

    Several threads may use a translator at the same time.

    >>> print(Translator.demo().translate("I am hungry."))
    J'ai faim.
    """

    _translator: Any

    def __init__(self) -> None:
        raise TypeError("Translator: made by Translator.load(path), demo() or dates()")

    @classmethod
    def _of(cls, translator: Any) -> "Translator":
        made = cls.__new__(cls)
        made._translator = translator
        return made

    @classmethod
    def load(cls, path: Path) -> "Translator":
        """Reads a model that `qkv train` wrote.

        Args:
            path: the folder of a run, which means its best model; or a file, such as
                best.safetensors, model.safetensors (the run's last model) or the output of
                `qkv average`.

        Returns:
            The translator.

        Raises:
            OSError: the path is missing or cannot be read.
            ValueError: the folder holds no run, the run has no model yet, or the file is no model;
                the message says what it is.
        """
        return cls._of(read_file(_core.read_translator, path, folder=True))

    @classmethod
    def demo(cls) -> "Translator":
        """Returns the model of English to French that is linked into the package.

        It knows short everyday sentences: trained on pairs of tatoeba.org (CC BY 2.0 FR, collected
        by manythings.org/anki).
        """
        return cls._of(_core.linked_translator("demo"))

    @classmethod
    def dates(cls) -> "Translator":
        """Returns the linked model of English dates to ISO 8601: "3 may 1987" -> "1987-05-03"."""
        return cls._of(_core.linked_translator("dates"))

    # A str is also an iterable of str; for a str, type checkers take the first signature.
    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        texts: str,
        beam: int = ...,
        *,
        length_penalty: float = ...,
        most_tokens: Optional[int] = ...,
        unknown: Optional[str] = ...,
        return_weights: bool = ...,
        threads: Optional[int] = ...,
    ) -> Translation: ...
    @overload
    def translate(
        self,
        texts: Iterable[str],
        beam: int = ...,
        *,
        length_penalty: float = ...,
        most_tokens: Optional[int] = ...,
        unknown: Optional[str] = ...,
        return_weights: bool = ...,
        threads: Optional[int] = ...,
    ) -> List[Translation]: ...
    @near_words
    def translate(
        self,
        texts: Union[str, Iterable[str]],
        beam: int = 1,
        *,
        length_penalty: float = 1.0,
        most_tokens: Optional[int] = None,
        unknown: Optional[str] = None,
        return_weights: bool = True,
        threads: Optional[int] = None,
    ) -> Union[Translation, List[Translation]]:
        """Translates a text, or each of several texts independently of the others.

        The options are those of `qkv translate`, and so are the results.

        Args:
            texts: a text, or texts; each of at most 4,096 tokens.
            beam: width of the beam search (Sutskever et al. 2014), 1 (greedy) to 1,000.
            length_penalty: with a beam, translations are compared by their log-probability /
                tokens^length_penalty; 0 favours short ones.
            most_tokens: the largest number of tokens of a translation, its end token included, 1 to
                65,536; None for 2 x source tokens + 10.
            unknown: what replaces "<unk>" in a translation: with "copy", the source token with the
                largest attention weight; with "keep", nothing. None means "copy" if the model has
                attention, else "keep".
            return_weights: whether each translation has its attention weights, which take memory.
            threads: as in `attention`.

        Returns:
            A Translation for a text, a list of them for several.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
            KeyboardInterrupt: Ctrl-C, which stops the search.
        """
        given = _texts(texts)
        options = (beam, length_penalty, most_tokens, unknown, return_weights)
        found = self._translator.translate(given, options, threads)
        lines = [given] if isinstance(given, str) else given
        made = [Translation(line, *fields) for line, fields in zip(lines, found)]
        return made[0] if isinstance(given, str) else made

    def __repr__(self) -> str:
        source, target = self._translator.sizes
        return f"<qkv.Translator of {source} source and {target} target tokens>"
