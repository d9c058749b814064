# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers: parameters, copies, files. See _layers.py for the layers."""

import inspect
import os
from operator import index
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

import numpy as np

from . import _load_torch
from ._files import read_file
from ._functions import DEFAULTS, Numbers, Window, options_of
from ._mods import MaskFunction, ScoreFunction
from ._words import near_words


def mask_options(
    key_lengths: Optional[Numbers],
    mask: Optional[Numbers],
    padding_mask: Optional[Numbers],
    causal: Union[bool, str],
    window: Optional[Window],
    bias: Optional[Numbers] = None,
    causal_offset: Any = None,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
) -> Tuple[Any, ...]:
    """All options of `attention`, in the order of options_of(), from those that layers take."""
    given = {
        "score_mod": score_mod,
        "mask_mod": mask_mod,
        "mask": mask,
        "padding_mask": padding_mask,
        "bias": bias,
        "key_lengths": key_lengths,
        "causal": causal,
        "causal_offset": causal_offset,
        "window": window,
    }
    return options_of({**DEFAULTS, **given})


class Layer:
    """The base class of all layers. The constructor's keywords are the keys of `config`."""

    _core_class: Any
    _config: Dict[str, Any]
    _layer: Any
    forward: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        """Makes the methods' errors for an unknown keyword suggest the closest known one."""
        super().__init_subclass__()
        if cls.__module__.split(".")[0] != __name__.split(".")[0]:
            return  # a subclass that a user defined
        for name in ("__init__", "forward", "backward"):
            if name in vars(cls):
                setattr(cls, name, near_words(vars(cls)[name]))

    def _make(self, seed: Optional[int], *, draws: bool = True, **config: Any) -> None:
        """Makes _core's layer; `config` has its arguments in order. Draws parameters if `draws`."""
        dtype = config.get("dtype")
        if isinstance(dtype, (type, np.dtype)):  # not None, which NumPy reads as float64
            config["dtype"] = np.dtype(dtype).name
        self._layer = self._core_class(*config.values())
        if config.get("dropout", 0) is None:
            config["dropout"] = self._layer.dropout()
        # Values are stored as Python's own types, because an argument may be an array that changes.
        plain = {"dtype": str, "form": str, "dropout": float}
        flags = ("bias", "bidirectional", "sinks", "bias_kv", "zero_attn")
        plain.update((name, bool) for name in flags)
        self._config = {
            name: None if value is None else plain.get(name, index)(value)
            for name, value in config.items()
        }
        if draws:
            self._layer.initialise(self._core_class.__name__, seed)

    @property
    def config(self) -> Dict[str, Any]:
        """A copy of the constructor's arguments except seed, by name."""
        return dict(self._config)

    def __repr__(self) -> str:
        # Keyword-only arguments that have their default value are omitted.
        parameters = inspect.signature(type(self)).parameters
        keyword_only = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        words = (
            f"{name}={value!r}"
            for name, value in self._config.items()
            if name not in keyword_only or value != parameters[name].default
        )
        return f"{type(self).__name__}({', '.join(words)})"

    def parameters(self) -> Dict[str, Any]:
        """Returns the parameters by name.

        Returns:
            NumPy arrays over the layer's own memory: writing to them changes the layer. The arrays
            stay valid after the layer is deleted.
        """
        parameters: Dict[str, Any] = self._layer.parameters()
        return parameters

    def initialise(self, seed: int) -> None:
        """Redraws all parameters, uniformly from (-b, b); by default b = 1/sqrt(fan-in).

        torch.nn.Linear has this distribution (He et al. 2015, eq. 15 with a negative slope of
        sqrt(5)).

        Args:
            seed: 0 to 2^64-1; equal seeds give equal parameters on every machine.

        Raises:
            ValueError, TypeError: seed is not an integer from 0 to 2^64-1.
        """
        self._layer.initialise(f"{self._core_class.__name__}.initialise", seed)

    # ---- copies and files ------------------------------------------------------------------------

    def _run(self) -> Any:
        """Seed and step of the dropout; None before a training pass, or for layers without them."""
        return self._layer.run() if hasattr(self._layer, "run") else None

    def __getstate__(self) -> Dict[str, Any]:
        return {
            "config": self._config,
            "parameters": {name: array.copy() for name, array in self.parameters().items()},
            "run": self._run(),
            "others": {n: x for n, x in vars(self).items() if n not in ("_config", "_layer")},
        }

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self._make(None, draws=False, **state["config"])
        self._layer.assign(f"{type(self).__name__}.__setstate__", state["parameters"])
        if state["run"] is not None:
            self._layer.set_run(state["run"])
        vars(self).update(state["others"])  # attributes that a subclass or the user has set

    def _check_parameters(self, method: str) -> None:
        if not self.parameters():
            name = self._core_class.__name__
            raise ValueError(f"{name}.{method}: the layer has no parameters to {method}")

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the parameters, under their names, to a safetensors file.

        The file is written atomically.

        Args:
            path: path of the file; an existing file is replaced.

        Raises:
            OSError: the file cannot be written.
            ValueError: the layer has no parameters.
        """
        self._check_parameters("save")
        self._layer.save(os.fsencode(path))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads the parameters from a safetensors file that `save` or another program wrote.

        Args:
            path: path of a file with exactly the layer's names, shapes and dtypes.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: the file is malformed, or its tensors are not those of this layer (the
                message names file and tensor), or the layer has no parameters. The layer is then
                unchanged.
        """
        self._check_parameters("load")
        read_file(self._layer.load, path)

    def load_torch(
        self, state_dict: Mapping[str, Any], swapped: bool = False, *, prefix: str = ""
    ) -> None:
        """Copies the parameters from a PyTorch state dict; on failure the layer is unchanged.

        Args:
            state_dict: PyTorch tensors or NumPy arrays of real numbers, by name; they are converted
                to the layer's dtype. The names are the layer's own, or those in the table below.
            swapped: whether W_q and W_k are exchanged, see AdditiveAttention.
            prefix: prefix of the layer's names, such as "encoder.attention."; names that do not
                begin with it are ignored.

        Returns:
            None. Every parameter was then found, and every name with the prefix was used.

        Raises:
            ValueError, TypeError: an array is missing, unknown or wrongly shaped; the message lists
                the expected names and shapes.

        | layer | "torch" | "d2l": Zhang et al., Dive into Deep Learning |
        | --- | --- | --- |
        | MultiHeadAttention, split | torch.nn.MultiheadAttention's | W_q.weight .. W_o.bias |
        | AdditiveAttention | W_q, W_k, v.weight of three Linear | W_q, W_k, w_v.weight |
        | BilinearAttention | torch.nn.Bilinear's (out_features=1, bias=False) | |
        | Linear, Embedding, GRU, GRUCell | their own | |
        """
        function = f"{type(self).__name__}.load_torch"
        values = _load_torch.values(function, self.parameters(), state_dict, swapped, prefix)
        self._layer.assign(function, values)

    def to_torch(self, names: str = "torch", *, prefix: str = "") -> Dict[str, Any]:
        """Returns the parameters as a PyTorch state dict, for `load_state_dict`. Imports torch.

        Args:
            names: "torch" or "d2l", the forms of the table of `load_torch`; or "own", the layer's.
            prefix: text prepended to each name.

        Returns:
            Tensors by name: copies, of the layer's dtype.

        Raises:
            ValueError: the layer has no form of that name.
        """
        function = f"{type(self).__name__}.to_torch"
        arrays = _load_torch.state_dict(function, self.parameters(), names)
        import torch

        return {prefix + name: torch.from_numpy(array) for name, array in arrays.items()}

    # ---- passes ----------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        """Calls `forward`."""
        return self.forward(*arrays, **options)

    def _forward(
        self,
        arrays: Tuple[Any, Any, Any],
        masks: Tuple[Any, ...],
        wanted: Tuple[Any, ...],
        mode: Tuple[bool, Optional[int]],
        threads: Optional[int],
    ) -> Any:
        return self._layer.forward(arrays, masks, wanted, mode, threads)
