# SPDX-License-Identifier: Apache-2.0
"""The gated recurrent unit over sequences, and one step of it.

Letters: B batch, T steps. What _layers.py says about passes applies here too; the cell can return
what the backward pass of a step needs, so that many steps can be differentiated.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from numpy.typing import DTypeLike

from . import _core
from ._functions import Array, Numbers
from ._layer import Layer

__all__ = ["GRU", "GRUCell", "GRUCellGradients", "GRUGradients"]


class GRUGradients(NamedTuple):
    """The result of `GRU.backward`: dx and dstate of x's type, and NumPy arrays by name."""

    dx: Array
    dstate: Array
    parameters: Dict[str, Any]


class GRUCellGradients(NamedTuple):
    """The result of `GRUCell.backward`: dx and dstate of x's type, and NumPy arrays by name."""

    dx: Array
    dstate: Array
    parameters: Dict[str, Any]


class GRU(Layer):
    """Gated recurrent units in one or both directions, one or more layers: torch.nn.GRU.

    Cho et al. 2014, section 2.3, in PyTorch's form:
    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z = sigmoid(W_iz x + b_iz + W_hz h + b_hz),
    n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h' = (1 - z) n + z h.

    x [B,T,input_size] (PyTorch's batch_first=True). Parameters: weight_ih_l0 [3 hidden,input],
    weight_hh_l0 [3 hidden,hidden], the rows of r, z, n stacked in that order, bias_ih_l0 and
    bias_hh_l0 [3 hidden]; the same with _reverse for the other direction.

    Args:
        input_size, hidden_size: channels of x and of the state.
        bias: whether to have the two biases.
        bidirectional: whether to add a second direction, from the last step to the first.
        num_layers: number of stacked layers, each reading the output of the one below; names end
            in l0, l1, ... There is no dropout between them.
        dtype: float32 or float64, of the parameters and x.
        seed: of the parameters, see `initialise`; all bounds depend on hidden_size only.

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
        """Runs over the sequences; keeps a copy of what `backward` needs.

        Args:
            x: [B,T,input_size] of the layer's dtype, or [T,input_size], and then states and
                results have no batch axis either.
            valid_len: integers [B]: the lengths of the sequences, as PyTorch's
                pack_padded_sequence takes them; steps past the end are never read. None: T.
            state: [num_layers*directions,B,hidden_size], the initial state of each direction; None
                for zeros.
            threads: as in `attention`.

        Returns:
            out [B,T,directions*hidden_size], the state after each step, 0 past a sequence's end,
            and state [num_layers*directions,B,hidden_size] after each direction's last step, both
            of x's type.

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
            GRUGradients: dx (0 past a sequence's end), dstate of the initial state, parameters.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        return GRUGradients(*self._layer.backward(dout, dstate, threads))


class GRUCell(Layer):
    """One step of a gated recurrent unit: torch.nn.GRUCell. For decoders.

    The equations are those of `GRU`. x [B,input_size] or [input_size]. Parameters: weight_ih
    [3 hidden,input], weight_hh [3 hidden,hidden], the rows of r, z, n stacked in that order,
    bias_ih and bias_hh [3 hidden].

    Args:
        input_size, hidden_size: channels of x and of the state.
        bias: whether to have the two biases.
        dtype: float32 or float64, of the parameters, x and the state.
        seed: of the parameters, see `initialise`; all bounds depend on hidden_size only.

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
        """The state after one step; keeps a copy of what `backward` needs.

        Args:
            x: [B,input_size] or [input_size] of the layer's dtype.
            state: [B,hidden_size] or [hidden_size]; None for zeros.
            return_step: whether to return what `backward` needs of this step as well.
            threads: as in `attention`.

        Returns:
            The next state, of x's type, or (state, step).

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        self._last = None
        after, self._last = self._layer.forward(x, state, threads)
        return (after, self._last) if return_step else after

    def backward(
        self, dstate: Array, step: Any = None, *, threads: Optional[int] = None
    ) -> GRUCellGradients:
        """The gradients of a step.

        Args:
            dstate: gradient of the loss with respect to the state after the step, in its shape.
            step: what `forward` returned with return_step=True; None for the last step.
            threads: as in `attention`.

        Returns:
            GRUCellGradients: dx, dstate of the state before the step, parameters. The parameter
            gradients are of this step only: sum them over the steps.

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
