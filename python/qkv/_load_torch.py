# SPDX-License-Identifier: Apache-2.0
"""Maps the arrays of a PyTorch state dict to the parameters of a layer."""

from typing import Any, Dict, List, Mapping, NamedTuple, Set, Tuple

import numpy as np

from ._words import on_one_line

Shape = Tuple[int, ...]


class _Source(NamedTuple):
    """An array of a state dict: its shape, and the parts of it that are parameters of the layer."""

    shape: Shape
    parts: Dict[str, Any]  # {parameter's name: index into the array; None for the whole array}


# The arrays, by name, of the state dict of one kind of module.
_Form = Dict[str, _Source]


def _own_form(shapes: Dict[str, Shape]) -> _Form:
    return {name: _Source(shape, {name: None}) for name, shape in shapes.items()}


def _renamed(shapes: Dict[str, Shape], names: Dict[str, str]) -> _Form:
    """The form with our names' prefixes replaced by theirs; `names` is {theirs: ours}."""
    return {
        theirs + name[len(ours) :]: _Source(shape, {name: None})
        for name, shape in shapes.items()
        for theirs, ours in names.items()
        if name.startswith(ours)
    }


_MULTI_HEAD = {"W_q.": "fc_q.", "W_k.": "fc_k.", "W_v.": "fc_v.", "W_o.": "fc_o."}


def _multi_head_forms(shapes: Dict[str, Shape]) -> Dict[str, _Form]:
    """The forms of torch.nn.MultiheadAttention and d2l's MultiHeadAttention that fit the layer.

    PyTorch's module has its input projections in one array (together) or in three (apart).
    """
    projections = ("fc_q", "fc_k", "fc_v")
    forms = {}
    if set(shapes) <= {f"{x}.{kind}" for x in (*projections, "fc_o") for kind in _KINDS}:
        forms["d2l"] = _renamed(shapes, _MULTI_HEAD)
    width = shapes["fc_q.weight"][0]
    if "sinks" in shapes or any(shapes[f"{x}.weight"][0] != width for x in projections):
        return forms  # torch's module has neither sinks nor grouped heads
    thirds = {name: slice(n * width, (n + 1) * width) for n, name in enumerate(projections)}

    def parts(kind: str) -> Dict[str, Any]:
        return {f"{name}.{kind}": third for name, third in thirds.items()}

    rest = {"out_proj.weight": _Source(shapes["fc_o.weight"], {"fc_o.weight": None})}
    if "fc_q.bias" in shapes:
        rest["in_proj_bias"] = _Source((3 * width,), parts("bias"))
        rest["out_proj.bias"] = _Source((width,), {"fc_o.bias": None})
    if "bias_k" in shapes:
        rest.update((name, _Source((1, 1, width), {name: (0, 0)})) for name in ("bias_k", "bias_v"))
    apart = {
        f"{x[-1]}_proj_weight": _Source(shapes[f"{x}.weight"], {f"{x}.weight": None})
        for x in projections
    }
    if all(shapes[f"{x}.weight"] == (width, width) for x in projections):
        together = {"in_proj_weight": _Source((3 * width, width), parts("weight"))}
        forms["torch"] = {**together, **rest}
        forms["torch, apart"] = {**apart, **rest}
    else:
        forms["torch"] = {**apart, **rest}
    return forms


_KINDS = ("weight", "bias")


def _forms(shapes: Dict[str, Shape], swapped: bool) -> Dict[str, _Form]:
    """All forms, by name, for the layer whose parameters have these names and shapes."""
    if "W_q" in shapes:
        # `swapped` is for d2l's PyTorch listing (section 10.1), which applies W_k to the queries.
        query, key = ("W_k", "W_q") if swapped else ("W_q", "W_k")
        of_listing = {query: "W_q", key: "W_k"}
        plain = {name: _Source(shapes[mine], {mine: None}) for name, mine in of_listing.items()}
        linear = {f"{name}.weight": source for name, source in plain.items()}
        v = _Source((1, *shapes["v"]), {"v": 0})
        return {
            "torch": {**linear, "v.weight": v},
            "d2l": {**linear, "w_v.weight": v},
            "own": {**plain, "v": _Source(shapes["v"], {"v": None})},
        }
    forms = {"own": _own_form(shapes)}
    if "fc_q.weight" in shapes:
        forms.update(_multi_head_forms(shapes))
    elif "W" in shapes:
        forms["torch"] = {"weight": _Source((1, *shapes["W"]), {"W": 0})}
    elif any(name.startswith("weight") for name in shapes):
        forms["torch"] = forms["own"]  # the layer's names are PyTorch's
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
    faults = [f"is without {name}" for name in missing]
    faults += [f"has an unknown {on_one_line(name)}" for name in unknown]
    expected = "; or ".join(_listed(each) for each in forms)
    raise ValueError(f"{function}: state_dict {', '.join(faults)}; expected {expected}")


def _check_biases(function: str, mine: Set[str], names: List[str]) -> None:
    """Raises a clearer error than _check_names() if only one of state dict and layer has biases."""
    of_query = {"in_proj_weight", "q_proj_weight", "fc_q.weight", "W_q.weight"}
    if "fc_q.weight" not in mine or not of_query & set(names):
        return
    theirs = bool({"in_proj_bias", "fc_q.bias", "W_q.bias"} & set(names))
    if theirs == ("fc_q.bias" in mine):
        return
    if theirs:
        raise ValueError(
            f"{function}: state_dict has biases but the layer was made with bias=False"
        )
    raise ValueError(
        f"{function}: state_dict has no biases but the layer has; make it with bias=False"
    )


def _without_prefix(function: str, state_dict: Mapping[str, Any], prefix: str) -> Dict[str, Any]:
    """The arrays whose names begin with the prefix, by the rest of the name; without Nones."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"{function}: state_dict must be a mapping of arrays, got {type(state_dict).__name__}"
        )
    if not isinstance(prefix, str):
        raise TypeError(f"{function}: prefix must be a str, got {type(prefix).__name__}")
    given = {str(name): value for name, value in state_dict.items() if value is not None}
    found = {name[len(prefix) :]: x for name, x in given.items() if name.startswith(prefix)}
    if prefix and not found:
        tops = sorted({name.rsplit(".", 1)[0] + "." for name in given if "." in name})
        shown = ", ".join(map(on_one_line, tops[:8])) + (", ..." if len(tops) > 8 else "")
        there_are = f"there are {shown}" if shown else "no name has a dot"
        raise ValueError(f"{function}: no name begins with prefix {prefix!r}; {there_are}")
    return found


def values(
    function: str,
    parameters: Dict[str, Any],
    state_dict: Mapping[str, Any],
    swapped: bool,
    prefix: str,
) -> Dict[str, Any]:
    """The arrays of the state dict, or parts of them, by the names of the layer's parameters."""
    given = _without_prefix(function, state_dict, prefix)
    if not isinstance(swapped, (bool, np.bool_)):
        raise TypeError(f"{function}: swapped must be True or False, got {type(swapped).__name__}")
    shapes = {name: tuple(array.shape) for name, array in parameters.items()}
    if swapped and "W_q" not in shapes:
        raise ValueError(f"{function}: swapped is for AdditiveAttention only")
    if {"bias_k", "bias_v"} & set(given) and "bias_k" not in shapes:
        raise ValueError(
            f"{function}: bias_k cannot be loaded: the layer has no learned key and value; "
            "make it with bias_kv=True"
        )
    forms = list(_forms(shapes, swapped).values())
    names = list(given)
    _check_biases(function, set(shapes), names)
    form = min(forms, key=lambda each: len(set(each) ^ set(names)))
    _check_names(function, forms, form, names)

    result: Dict[str, Any] = {}
    for name, source in form.items():
        array = given[name]
        if not hasattr(array, "shape"):
            raise TypeError(f"{function}: {name} must be an array, got {type(array).__name__}")
        if tuple(array.shape) != source.shape:
            raise ValueError(
                f"{function}: {name} must have the shape {_shown(source.shape)}, "
                f"got {_shown(tuple(array.shape))}"
            )
        if hasattr(array, "detach"):
            array = array.detach()  # a tensor that requires gradients cannot be exported
        for mine, part in source.parts.items():
            result[mine] = array if part is None else array[part]
    return result


def state_dict(function: str, parameters: Dict[str, Any], names: str) -> Dict[str, Any]:
    """Copies of the parameters, as the arrays of the form called `names`."""
    shapes = {name: tuple(array.shape) for name, array in parameters.items()}
    forms = _forms(shapes, False)
    if names not in forms:
        known = ", ".join(f'"{name}"' for name in forms)
        raise ValueError(f"{function}: names must be {known} for this layer, got {names!r}")
    result = {}
    for name, source in forms[names].items():
        array = np.empty(source.shape, next(iter(parameters.values())).dtype)
        for mine, part in source.parts.items():
            array[... if part is None else part] = parameters[mine]
        result[name] = array
    return result
