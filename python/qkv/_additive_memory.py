# SPDX-License-Identifier: Apache-2.0
"""Additive attention over keys projected once, for queries that arrive step by step."""

from typing import Any, Dict, Optional, Tuple

from . import _core
from ._functions import DEFAULTS, Array, Gradients, by_name, options_of
from ._results import REQUESTS, of_call, wanted_of
from ._words import unknown_keyword

# Options of attention() that the memory fixes, or that have no meaning for it.
_EXCLUDED = (
    "score", "params", "qk_norm", "rotary", "rotary_base", "rotary_width", "rotary_frequencies",
    "q_positions", "k_positions", "cu_seqlens_q", "cu_seqlens_k", "block_tables", "context_lens",
    "shard", "layout", "heads", "threads",
)  # fmt: skip
_ACCEPTED = {name: value for name, value in DEFAULTS.items() if name not in _EXCLUDED}


def _checked(function: str, options: Dict[str, Any], known: Any) -> Dict[str, Any]:
    """The options with defaults for the other names in `known`; TypeError for an unknown one."""
    for word in options:
        if word not in known:
            raise unknown_keyword(function, word, set(known))
    return {**{name: DEFAULTS.get(name) for name in known}, **options}


class AdditiveMemory:
    """Keys that are projected once, so that every decoding step uses the same Wk k.

    Bahdanau et al. 2015, appendix A.1.2: "U_a h_j does not depend on i". Results, and gradients
    except dk and dWk, are bit-identical to those of `attention` with score="additive". The memory
    holds 2 U numbers per key and query head, and U more after the first backward pass. Only one
    Python thread at a time may call it.

    Args:
        k: keys [B,G,Tk,Dk], [B,Tk,Dk] or [Tk,Dk]. k and the parameters are not copied and must not
            change until the last call of `key_gradients`.
        params: {"Wq": [U,Dq], "Wk": [U,Dk], "v": [U], "b": [U]}, b optional; each also per head,
            [H,...].
        threads: number of threads of every call, as in `attention`.

    >>> import numpy as np
    >>> params = {"Wq": np.ones((8, 3)), "Wk": np.ones((8, 4)), "v": np.ones(8)}
    >>> memory = AdditiveMemory(np.ones((2, 5, 4)), params)
    >>> memory.attention(np.zeros((2, 1, 3)), np.ones((2, 5, 6)), key_lengths=[5, 3]).shape
    (2, 1, 6)
    """

    def __init__(
        self, k: Array, params: Dict[str, Array], *, threads: Optional[int] = None
    ) -> None:
        options = options_of({**DEFAULTS, "score": "additive", "params": params})
        self._memory = _core.AdditiveMemory(k, options, threads)

    @property
    def path(self) -> str:
        """The path, such as "additive/avx512"; "reference" projects k in every call."""
        return str(self._memory.path)

    def attention(self, q: Array, v: Optional[Array], **options: Any) -> Any:
        """Calls `qkv.attention` with the queries q and the keys of the memory.

        Args:
            q, v: as in `attention`.
            options: the options of `attention` except score, params, qk_norm, rotary and positions,
                packed sequences, pages, shard, layout, heads and threads.

        Returns:
            The result of `attention`.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        """
        given = _checked("AdditiveMemory.attention", options, _ACCEPTED)
        found = self._memory.attention(
            q, v, options_of({**DEFAULTS, **given, "score": "additive"}), wanted_of(given)
        )
        return of_call(found, (q, v), given)

    def attention_backward(
        self,
        dout: Optional[Array],
        q: Array,
        v: Optional[Array],
        out: Optional[Array],
        lse: Array,
        **options: Any,
    ) -> Gradients:
        """Calls `qkv.attention_backward`; sums the gradients of k and Wk for `key_gradients`.

        Args:
            dout, q, v, out, lse: as in `attention_backward`.
            options: the options of the call of `attention` except those that request results, and
                dlse, dweights, rows, wanted and add_to of `attention_backward`.

        Returns:
            Gradients, in which dk is None and dparams has no Wk.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        """
        function = "AdditiveMemory.attention_backward"
        more = ("dlse", "dweights", "rows", "wanted", "add_to")
        without_requests = tuple(name for name in _ACCEPTED if name not in REQUESTS)
        given = _checked(function, options, (*without_requests, *more))
        outputs: Tuple[Any, ...] = (
            dout, out, lse, given["dlse"], given["dweights"], given["rows"], given["wanted"],
            by_name(function, given["add_to"]),
        )  # fmt: skip
        return Gradients(
            *self._memory.attention_backward(
                q, v, outputs, options_of({**DEFAULTS, **given, "score": "additive"})
            )
        )

    def key_gradients(self) -> Tuple[Array, Array]:
        """Returns dk and dWk, summed over the backward passes since its last call.

        Returns:
            (dk, dWk), each with the shape and dtype of its source, as arrays of k's type.
        """
        dk, dwk = self._memory.key_gradients()
        return dk, dwk
