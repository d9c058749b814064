# SPDX-License-Identifier: Apache-2.0
"""Which arrays of a PyTorch state dict are which parameters of a layer."""

from typing import Any, Dict, List, Mapping, NamedTuple, Set, Tuple

import numpy as np

Shape = Tuple[int, ...]


class _Source(NamedTuple):
    """An array of a state dict: its shape, and which part of it is which parameter."""

    shape: Shape
    parts: Dict[str, Any]  # parameter: index into the array; None is the whole


# The arrays of one kind of module by name.
_Form = Dict[str, _Source]


def _own_form(shapes: Dict[str, Shape]) -> _Form:
    return {name: _Source(shape, {name: None}) for name, shape in shapes.items()}


def _multi_head_forms(width: int, bias: bool) -> List[_Form]:
    """torch.nn.MultiheadAttention: with one projection or three; biases as the layer has them."""
    thirds = {
        name: slice(n * width, (n + 1) * width) for n, name in enumerate(("fc_q", "fc_k", "fc_v"))
    }

    def parts(kind: str) -> Dict[str, Any]:
        return {f"{name}.{kind}": third for name, third in thirds.items()}

    square = (width, width)
    together = {"in_proj_weight": _Source((3 * width, width), parts("weight"))}
    apart = {
        f"{name[-1]}_proj_weight": _Source(square, {f"{name}.weight": None}) for name in thirds
    }
    out = {"out_proj.weight": _Source(square, {"fc_o.weight": None})}
    biases = {
        "in_proj_bias": _Source((3 * width,), parts("bias")),
        "out_proj.bias": _Source((width,), {"fc_o.bias": None}),
    }
    return [{**weights, **out, **(biases if bias else {})} for weights in (together, apart)]


def _forms(shapes: Dict[str, Shape], swapped: bool) -> List[_Form]:
    """All forms of the layer that has parameters of these names and shapes."""
    if "W_q" in shapes:
        # Seed 002's PyTorch listing applies the Linear named W_k to queries and W_q to keys.
        query, key = ("W_k", "W_q") if swapped else ("W_q", "W_k")
        of_listing = {query: "W_q", key: "W_k"}
        plain = {name: _Source(shapes[mine], {mine: None}) for name, mine in of_listing.items()}
        linear = {f"{name}.weight": source for name, source in plain.items()}
        return [
            {**linear, "v.weight": _Source((1, *shapes["v"]), {"v": 0})},
            {**plain, "v": _Source(shapes["v"], {"v": None})},
        ]
    forms = [_own_form(shapes)]
    if "fc_q.weight" in shapes:
        forms += _multi_head_forms(shapes["fc_q.weight"][0], "fc_q.bias" in shapes)
    if "W" in shapes:
        forms.append({"weight": _Source((1, *shapes["W"]), {"W": 0})})
    return forms


def _shown(shape: Shape) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"


def _listed(form: _Form) -> str:
    return ", ".join(f"{name} {_shown(source.shape)}" for name, source in form.items()) or "nothing"


def _check_names(function: str, forms: List[_Form], form: _Form, names: List[str]) -> None:
    missing = [name for name in form if name not in names]
    unknown = [name for name in names if name not in form]
    if not missing and not unknown:
        return
    faults = [f"is without {name}" for name in missing] + [f"has an unknown {n}" for n in unknown]
    expected = "; or ".join(_listed(each) for each in forms)
    raise ValueError(f"{function}: state_dict {', '.join(faults)}; expected {expected}")


def _check_biases(function: str, mine: Set[str], names: List[str]) -> None:
    """Biases that the other side has not: they would be lost, or be trained from zero."""
    weights = {"in_proj_weight", "q_proj_weight", "fc_q.weight"} & set(names)
    if "fc_q.weight" not in mine or not weights:
        return
    theirs = bool({"in_proj_bias", "fc_q.bias"} & set(names))
    if theirs == ("fc_q.bias" in mine):
        return
    if theirs:
        raise ValueError(
            f"{function}: state_dict has biases but the layer was made with bias=False"
        )
    raise ValueError(
        f"{function}: state_dict has no biases but the layer has; make it with bias=False"
    )


def values(
    function: str, parameters: Dict[str, Any], state_dict: Mapping[str, Any], swapped: bool
) -> Dict[str, Any]:
    """The arrays of the state dict by the names of the layer's parameters."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"{function}: state_dict must be a mapping of arrays, got {type(state_dict).__name__}"
        )
    if not isinstance(swapped, (bool, np.bool_)):
        raise TypeError(f"{function}: swapped must be True or False, got {type(swapped).__name__}")
    shapes = {name: tuple(array.shape) for name, array in parameters.items()}
    if swapped and "W_q" not in shapes:
        raise ValueError(f"{function}: swapped is for AdditiveAttention only")
    for name in ("bias_k", "bias_v"):
        if state_dict.get(name) is not None:
            raise ValueError(
                f"{function}: {name} cannot be taken: the layer has no learned key and value that "
                "stand beside the given ones (add_bias_kv)"
            )
    forms = _forms(shapes, swapped)
    names = [str(name) for name, value in state_dict.items() if value is not None]
    _check_biases(function, set(shapes), names)
    form = min(forms, key=lambda each: len(set(each) ^ set(names)))
    _check_names(function, forms, form, names)

    result: Dict[str, Any] = {}
    for name, source in form.items():
        array = state_dict[name]
        if not hasattr(array, "shape"):
            raise TypeError(f"{function}: {name} must be an array, got {type(array).__name__}")
        if tuple(array.shape) != source.shape:
            raise ValueError(
                f"{function}: {name} must have the shape {_shown(source.shape)}, "
                f"got {_shown(tuple(array.shape))}"
            )
        if hasattr(array, "detach"):
            array = array.detach()  # a tensor that wants gradients gives its memory to nobody
        for mine, part in source.parts.items():
            result[mine] = array if part is None else array[part]
    return result
