# SPDX-License-Identifier: Apache-2.0
"""The gated recurrent unit over sequences (GRU), and a single step of it (GRUCell).

Letters: B batch, T steps. The rules for passes in _layers.py apply to these layers, except that
they copy their inputs. `GRUCell` can also return what the backward pass of a step needs, so that
many steps can be differentiated.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np
from numpy.typing import DTypeLike

from . import _core
from ._functions import Array, Numbers
from ._layer import Layer

__all__ = ["GRU", "GRUCell", "GRUCellGradients", "GRUGradients"]


class GRUGradients(NamedTuple):
    """The result of `GRU.backward`: dx and dstate are of x's type, parameters NumPy arrays."""

    dx: Array
    dstate: Array
    parameters: Dict[str, Any]


class GRUCellGradients(NamedTuple):
    """The result of `GRUCell.backward`: dx and dstate are of x's type, parameters NumPy arrays."""

    dx: Array
    dstate: Array
    parameters: Dict[str, Any]


class GRU(Layer):
    """Gated recurrent units in one or both directions, one or more layers: torch.nn.GRU.

    Cho et al. 2014, section 2.3, in PyTorch's form:
    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z = sigmoid(W_iz x + b_iz + W_hz h + b_hz),
    n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h' = (1 - z) n + z h.

    x is [B,T,input_size] (PyTorch's batch_first=True). The parameters are weight_ih_l0
    [3 hidden,input] and weight_hh_l0 [3 hidden,hidden], with the rows of r, z and n stacked in that
    order, and bias_ih_l0 and bias_hh_l0 [3 hidden]. Names for the second direction end in _reverse.

    Args:
        input_size, hidden_size: channels of x and of the state.
        bias: whether to have the two biases.
        bidirectional: whether to add a second direction, from the last step to the first.
        num_layers: number of stacked layers, each reading the output of the one below; the names
            of their parameters have l0, l1, ... There is no dropout between layers.
        dtype: float32 or float64, the dtype of the parameters and of x.
        seed: seed of the initial parameters, see `initialise`: all are drawn from (-b, b), where b
            is 1/sqrt(hidden_size).

    >>> import numpy as np
    >>> layer = GRU(3, 4, bidirectional=True)
    >>> out, state = layer.forward(np.ones((2, 5, 3), np.float32), [5, 2])
    >>> out.shape, state.shape, out[1, 2:].any()
    ((2, 5, 8), (2, 2, 4), np.False_)
    """

    _core_class = _core.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        bidirectional: bool = False,
        dtype: DTypeLike = "float32",
        *,
        num_layers: int = 1,
        seed: int = 0,
    ) -> None:
        self._make(
            seed,
            input_size=input_size,
            hidden_size=hidden_size,
            bias=bias,
            bidirectional=bidirectional,
            dtype=dtype,
            num_layers=num_layers,
        )

    def forward(
        self,
        x: Array,
        valid_len: Optional[Numbers] = None,
        state: Optional[Array] = None,
        *,
        threads: Optional[int] = None,
    ) -> Tuple[Any, Any]:
        """Runs over the sequences; keeps copies of the arrays that `backward` needs.

        Args:
            x: [B,T,input_size] of the layer's dtype; or [T,input_size], and then states and
                results have no batch axis.
            valid_len: integers [B], the lengths of the sequences, as PyTorch's
                pack_padded_sequence takes them; steps past the end are never read. None means T.
            state: [num_layers*directions,B,hidden_size], the initial state of each layer and
                direction; None for zeros.
            threads: as in `attention`.

        Returns:
            (out, state), both of x's type: out [B,T,directions*hidden_size] is the top layer's
            state after each step, 0 past a sequence's end; state [num_layers*directions,B,
            hidden_size] is the state after the last step of each layer and direction.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        out, last = self._layer.forward(x, valid_len, state, threads)
        return out, last

    def backward(
        self,
        dout: Optional[Array],
        dstate: Optional[Array] = None,
        *,
        threads: Optional[int] = None,
    ) -> GRUGradients:
        """The gradients of the last forward pass.

        Args:
            dout, dstate: gradients of the loss with respect to out and the last state, in their
                shapes; None for zero. One of them must be given.
            threads: as in `attention`.

        Returns:
            GRUGradients: dx (0 past a sequence's end), dstate (with respect to the initial state)
            and the gradients of the parameters.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        return GRUGradients(*self._layer.backward(dout, dstate, threads))


class GRUCell(Layer):
    """One step of a gated recurrent unit, for decoders: torch.nn.GRUCell.

    The equations are those of `GRU`. x is [B,input_size] or [input_size]. The parameters are
    weight_ih [3 hidden,input] and weight_hh [3 hidden,hidden], with the rows of r, z and n stacked
    in that order, and bias_ih and bias_hh [3 hidden].

    Args:
        input_size, hidden_size: channels of x and of the state.
        bias: whether to have the two biases.
        dtype: float32 or float64, the dtype of the parameters, x and the state.
        seed: seed of the initial parameters, see `initialise`: all are drawn from (-b, b), where b
            is 1/sqrt(hidden_size).

    >>> import numpy as np
    >>> cell, state, steps = GRUCell(3, 4), None, []
    >>> for x in np.ones((5, 2, 3), np.float32):
    ...     state, step = cell.forward(x, state, return_step=True)
    ...     steps.append(step)
    >>> dstate = np.ones_like(state)
    >>> for step in reversed(steps):
    ...     dx, dstate, parameters = cell.backward(dstate, step)
    >>> dx.shape, parameters["weight_hh"].shape
    ((2, 3), (12, 4))
    """

    _core_class = _core.GRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        *,
        seed: int = 0,
    ) -> None:
        self._make(seed, input_size=input_size, hidden_size=hidden_size, bias=bias, dtype=dtype)
        self._last: Any = None

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__()
        state["others"]["_last"] = None
        return state

    def forward(
        self,
        x: Array,
        state: Optional[Array] = None,
        *,
        return_step: bool = False,
        threads: Optional[int] = None,
    ) -> Any:
        """Computes the state after one step; keeps copies of the arrays that `backward` needs.

        Args:
            x: [B,input_size] or [input_size] of the layer's dtype.
            state: [B,hidden_size] or [hidden_size]; None for zeros.
            return_step: whether to also return an object that `backward` takes as its `step`.
            threads: as in `attention`.

        Returns:
            The next state, of x's type, or (state, step).

        Raises:
            ValueError, TypeError: invalid argument. `backward` then needs an explicit step, since
                there is no last one.
        """
        self._last = None
        if not isinstance(return_step, (bool, np.bool_)):
            kind = type(return_step).__name__
            raise TypeError(f"GRUCell.forward: return_step must be True or False, got {kind}")
        after, self._last = self._layer.forward(x, state, threads)
        return (after, self._last) if return_step else after

    def backward(
        self, dstate: Array, step: Any = None, *, threads: Optional[int] = None
    ) -> GRUCellGradients:
        """Computes the gradients of one step.

        Args:
            dstate: gradient of the loss with respect to the state after the step, in its shape.
            step: the step that `forward` returned with return_step=True; None for the last one.
            threads: as in `attention`.

        Returns:
            GRUCellGradients: dx, dstate (with respect to the state before the step) and the
            gradients of the parameters, which are of this step only: sum them over the steps.

        Raises:
            ValueError, TypeError: invalid argument, or there was no forward pass.
        """
        step = self._last if step is None else step
        if not isinstance(step, _core.GRUCellStep):
            if step is None:
                raise ValueError("GRUCell.backward: forward must have been called before it")
            raise TypeError(
                "GRUCell.backward: step must be what forward gives with return_step=True, "
                f"got {type(step).__name__}"
            )
        return GRUCellGradients(*self._layer.backward(dstate, step, threads))
