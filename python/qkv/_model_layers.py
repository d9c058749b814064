# SPDX-License-Identifier: Apache-2.0
"""The layers of sequence models other than attention, with PyTorch's names and equations.

Letters: N rows, V classes. The rules for passes in _layers.py apply to these layers: a layer keeps
what `backward` needs of its last forward pass. `Linear` and `CrossEntropy` keep their input array
without a copy.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np
from numpy.typing import DTypeLike

from . import _core
from ._functions import Array, Numbers
from ._layer import Layer

__all__ = [
    "CrossEntropy",
    "Dropout",
    "Embedding",
    "EmbeddingGradients",
    "Linear",
    "LinearGradients",
]


class LinearGradients(NamedTuple):
    """The result of `Linear.backward`: dx, of x's type; parameters: NumPy arrays by name."""

    dx: Array
    parameters: Dict[str, Any]


class EmbeddingGradients(NamedTuple):
    """The result of `Embedding.backward`: NumPy arrays by name. The ids have no gradient."""

    parameters: Dict[str, Any]


class Linear(Layer):
    """A linear map of the last axis, y = x W^T + b: torch.nn.Linear.

    x is [..,in_features] of rank 2 or more. The parameters are weight [out_features,in_features]
    and bias [out_features].

    Args:
        in_features, out_features: channels of x and of the result.
        bias: whether to add a bias.
        dtype: float32 or float64, the dtype of the parameters and of x.
        seed: seed of the initial parameters, see `initialise`.

    >>> import numpy as np
    >>> Linear(3, 2).forward(np.ones((4, 5, 3), np.float32)).shape
    (4, 5, 2)
    """

    _core_class = _core.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        *,
        seed: int = 0,
    ) -> None:
        self._make(seed, in_features=in_features, out_features=out_features, bias=bias, dtype=dtype)

    def forward(self, x: Array, *, threads: Optional[int] = None) -> Any:
        """Computes y = x W^T + b; keeps x for `backward`.

        Args:
            x: [..,in_features] of the layer's dtype.
            threads: as in `attention`.

        Returns:
            y [..,out_features] of x's type.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        return self._layer.forward(x, threads)

    def backward(self, dout: Array, *, threads: Optional[int] = None) -> LinearGradients:
        """Computes the gradients of the last forward pass.

        Args:
            dout: gradient of the loss with respect to y, of its shape and dtype.
            threads: as in `attention`.

        Returns:
            LinearGradients: dx and parameters. Rows whose dout is 0 contribute nothing to the
            parameter gradients, whatever x holds there.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        return LinearGradients(*self._layer.backward(dout, threads))


class Embedding(Layer):
    """A learned vector for each token: torch.nn.Embedding.

    The parameter is weight [num_embeddings,embedding_dim].

    Args:
        num_embeddings: number of tokens.
        embedding_dim: channels of a vector.
        padding_idx: a token whose vector gets no gradient; a negative one counts from the end.
            (Unlike in PyTorch, its vector is initialised like the others.)
        dtype: float32 or float64, the dtype of the parameter.
        seed: seed of the initial parameter, uniform in (-1, 1), see `initialise`.

    >>> Embedding(10, 4, padding_idx=0).forward([[5, 2, 0]]).shape
    (1, 3, 4)
    """

    _core_class = _core.Embedding

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: Optional[int] = None,
        dtype: DTypeLike = "float32",
        *,
        seed: int = 0,
    ) -> None:
        self._make(
            seed,
            num_embeddings=num_embeddings,
            embedding_dim=embedding_dim,
            padding_idx=padding_idx,
            dtype=dtype,
        )

    def forward(self, ids: Numbers, *, threads: Optional[int] = None) -> Any:
        """Looks up the vectors of tokens; keeps a copy of ids for `backward`.

        Args:
            ids: tokens, integers 0..num_embeddings-1, of any shape.
            threads: as in `attention`.

        Returns:
            out [..,embedding_dim], with the shape of ids and one more axis, of the layer's dtype; a
            tensor if ids is one.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        return self._layer.forward(ids, threads)

    def backward(self, dout: Array, *, threads: Optional[int] = None) -> EmbeddingGradients:
        """Computes the gradient of the last forward pass.

        Args:
            dout: gradient of the loss with respect to out, of its shape and dtype.
            threads: as in `attention`.

        Returns:
            EmbeddingGradients: parameters; the rows of tokens that do not occur in ids are 0.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        return EmbeddingGradients(self._layer.backward(dout, threads))


class Dropout(Layer):
    """Dropout of the elements of an array in training: torch.nn.Dropout (Srivastava et al. 2014).

    With probability p an element becomes 0; otherwise it is multiplied by 1/(1-p). In evaluation
    the array is unchanged. The layer has no parameters.

    Args:
        dropout: p, the probability of dropping an element in training, in [0,1).

    >>> import numpy as np
    >>> layer = Dropout(0.5)
    >>> layer.forward(np.ones(8), train=True, seed=1)
    array([0., 2., 2., 2., 0., 2., 2., 0.])
    >>> layer.forward(np.ones(2))
    array([1., 1.])
    """

    _core_class = _core.Dropout

    def __init__(self, dropout: float) -> None:
        self._make(None, draws=False, dropout=dropout)

    def forward(self, x: Array, *, train: bool = False, seed: Optional[int] = None) -> Any:
        """Drops elements; keeps for `backward` which ones were dropped, not x.

        Args:
            x: any shape; float32 or float64.
            train: whether to drop elements, drawn from (seed, step). Each successful pass with
                train=True adds 1 to step.
            seed: 0 to 2^64-1; sets the seed, and step to 0. None keeps seed and step. Required in
                the first pass with train=True.

        Returns:
            An array with the shape, dtype and type of x.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        return self._layer.forward(x, (train, seed))

    def backward(self, dout: Array) -> Any:
        """Computes the gradient of the last forward pass with respect to x.

        Args:
            dout: gradient of the loss with respect to the result, of its shape and dtype.

        Returns:
            dx, of x's type.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        return self._layer.backward(dout)


class CrossEntropy:
    """The cross-entropy loss of softmax(logits) against labels: torch.nn.CrossEntropyLoss.

    With p = softmax(logits), the loss of a row with target t is
    -(1 - e) w_t log p_t - (e/V) sum_v w_v log p_v, where e smooths the labels (Szegedy et al. 2016,
    section 7) and w are class weights. A row with NaN or +inf has loss NaN, unless w_t and e are 0.

    Args:
        label_smoothing: e, in [0,1).
        ignore_index: rows with this target have loss, log-probability and gradient 0; it need not
            be a class. With None no row is ignored.
        weight: [V], the class weights; None for 1.
        reduction: "none", "sum", or "mean", the sum divided by the total weight of the targets
            that are not ignored (NaN if every target is ignored).

    >>> import numpy as np
    >>> loss = CrossEntropy(ignore_index=-1)
    >>> loss.forward(np.zeros((3, 4)), [0, 3, -1]).round(4)
    array([1.3863, 1.3863, 0.    ])
    >>> loss.backward(1.0)[0]
    array([-0.75,  0.25,  0.25,  0.25])
    >>> mean = CrossEntropy(weight=[1.0, 3.0], reduction="mean")
    >>> float(mean.forward(np.array([[0.0, 0.0], [0.0, 1.0]]), [0, 1]).round(4))
    0.4082
    >>> mean.backward().round(4)
    array([[-0.125 ,  0.125 ],
           [ 0.2017, -0.2017]])
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: Optional[int] = None,
        *,
        weight: Optional[Numbers] = None,
        reduction: str = "none",
    ) -> None:
        self._loss = _core.CrossEntropy(label_smoothing, ignore_index, weight)
        if not isinstance(reduction, str) or reduction not in ("none", "sum", "mean"):
            raise ValueError(
                f'CrossEntropy: reduction must be "none", "sum" or "mean", got {reduction!r}'
            )
        # Values are stored as Python's own types, because an argument may be an array that changes.
        ignored = None if ignore_index is None else int(ignore_index)
        weights = None if weight is None else np.array(weight, np.float64).tolist()
        self._config = (float(label_smoothing), ignored, weights, reduction)
        self._divisor: Optional[float] = None

    def __repr__(self) -> str:
        smoothing, ignored, weights, reduction = self._config
        more = "" if weights is None else f", weight={weights!r}"
        more += "" if reduction == "none" else f", reduction={reduction!r}"
        return f"CrossEntropy(label_smoothing={smoothing!r}, ignore_index={ignored!r}{more})"

    def __reduce__(self) -> Tuple[Any, ...]:
        return _cross_entropy, self._config

    def parameters(self) -> Dict[str, Any]:
        """Returns the parameters by name, as the layers do.

        Returns:
            An empty dictionary: the loss has no parameters.
        """
        return {}

    def _weight_of(self, targets: Numbers) -> float:
        """The sum of the weights of the targets that are not ignored."""
        _, ignored, weights, _ = self._config
        if not hasattr(targets, "__array__") and hasattr(targets, "__dlpack__"):
            targets = np.from_dlpack(targets)
        classes = np.asarray(targets).reshape(-1)
        kept = classes if ignored is None else classes[classes != ignored]
        return float(kept.size if weights is None else np.asarray(weights)[kept.astype(int)].sum())

    def forward(
        self,
        logits: Array,
        targets: Numbers,
        *,
        return_log_probabilities: bool = False,
        threads: Optional[int] = None,
    ) -> Any:
        """Computes the losses; keeps logits for `backward`.

        Args:
            logits: [N,V], float32 or float64.
            targets: integers [N], 0..V-1 or ignore_index.
            return_log_probabilities: whether to return also log p_t, without smoothing, [N].
            threads: as in `attention`.

        Returns:
            losses [N] of the type and dtype of logits, or one loss with reduction="sum" or
            "mean"; with return_log_probabilities, (losses, log_probabilities).

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        self._divisor = None
        got: Any = self._loss.forward(logits, targets, return_log_probabilities, threads)
        reduction = self._config[3]
        if reduction == "none":
            return got
        losses: Any = got[0] if return_log_probabilities else got
        self._divisor = 1.0 if reduction == "sum" else self._weight_of(targets)
        # If every row is ignored, the mean is 0 / 0 = NaN, as in PyTorch.
        loss = losses.sum() / (self._divisor if self._divisor else losses.sum() * 0)
        return (loss, got[1]) if return_log_probabilities else loss

    __call__ = forward

    def backward(self, dlosses: Union[float, Array] = 1.0, *, threads: Optional[int] = None) -> Any:
        """Computes the gradient of the last forward pass.

        Args:
            dlosses: gradients with respect to the losses, [N] of their dtype, or one number for all
                rows, such as 1/N for their mean. With reduction="sum" or "mean", one number, the
                gradient with respect to the reduced loss.
            threads: as in `attention`.

        Returns:
            dlogits [N,V] of the type of logits.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        if self._config[3] != "none" and self._divisor is not None:
            name = "CrossEntropy.backward: dlosses"
            if getattr(dlosses, "ndim", 0) != 0:
                raise ValueError(f"{name} must be one number with reduction={self._config[3]!r}")
            is_number = hasattr(dlosses, "__float__") and not isinstance(dlosses, (bool, np.bool_))
            if not is_number:
                raise TypeError(f"{name} must be a number, got {type(dlosses).__name__}")
            dlosses = float(dlosses) / self._divisor if self._divisor else float("nan")
        return self._loss.backward(dlosses, threads)


def _cross_entropy(
    label_smoothing: float, ignore_index: Optional[int], weight: Any, reduction: str
) -> CrossEntropy:
    return CrossEntropy(label_smoothing, ignore_index, weight=weight, reduction=reduction)
