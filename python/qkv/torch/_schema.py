# SPDX-License-Identifier: Apache-2.0
"""The arguments and results of the operator qkv::attention: all its other code uses this list.

Letters as in `qkv.attention`: B batch, H query heads, Tq queries, Tk keys, D and E widths.
"""

from typing import Any, Dict, Iterable, List, Optional, Tuple

import numpy as np
import torch

from .._functions import DEFAULTS, Shard, attention
from .._results import AXES, FLAGS, REQUESTED, REQUESTS, results
from ._kinds import FLAG, check_kinds
from ._questions import is_compiling
from ._recorded import CAPTURED, recorded, replay

# Tensors that may have gradients, in the order of the gradients. "params.W" is params["W"].
DIFFERENTIABLE = (
    "q", "k", "v", "bias", "alibi_slopes", "sinks",
    "params.W", "params.Wq", "params.Wk", "params.v", "params.b", "params.norm_q", "params.norm_k",
    *CAPTURED,
)  # fmt: skip

# Other tensors. Numbers that a graph may compute (the seed, an offset) are tensors of rank 0.
_INDICES = (
    "mask", "padding_mask", "key_lengths", "causal_offset", "q_positions", "k_positions",
    "rotary_frequencies", "cu_seqlens_q", "cu_seqlens_k", "seed", "rows",
)  # fmt: skip

# Tensors whose values the host needs, so that they stay on the CPU.
ON_HOST = ("seed", "rows")

TENSORS = DIFFERENTIABLE + _INDICES

# Everything else that determines the result: {argument: (type in a schema, default there)}.
_PLAIN: Dict[str, Tuple[str, str]] = {
    "score": ("str", "'scaled_dot'"),
    "qk_norm": ("float?", "None"),
    "rotary": ("str?", "None"),
    "rotary_base": ("float?", "None"),
    "rotary_width": ("SymInt?", "None"),
    "scale": ("float?", "None"),
    "softcap": ("float", "0.0"),
    "causal": ("str?", "None"),
    "window": ("SymInt[]?", "None"),
    "dropout": ("float", "0.0"),
    "layout": ("str", "'bhtd'"),
    "heads": ("SymInt[]?", "None"),
    "shard": ("SymInt[]?", "None"),
    "threads": ("SymInt?", "None"),
    "score_mod": ("str?", "None"),  # the text of a function, and the numbers that it takes
    "mask_mod": ("str?", "None"),
    "mod_integers": ("SymInt[]?", "None"),
    "mod_numbers": ("float[]?", "None"),
}
PLAIN = tuple(_PLAIN)
_NUMBERS = {name for name, (kind, _) in _PLAIN.items() if kind.startswith("float")} - {"qk_norm"}

# The results, all returned by the operator; those not requested are empty.
SLOTS = (
    "out",
    "lse",
    *(name for name, axes in AXES.items() if axes == "matrix"),
    *(
        slot
        for name in REQUESTED
        if name != "lse"
        for slot in (("top_weights", "top_keys") if name == "top" else (name,))
    ),
)
WITH_GRADIENT = ("out", "lse", "weights")

_SCORES = {"raw": "raw_scores", "capped": "capped_scores", "masked": "masked_scores"}


def _given(names: Iterable[str], required: int) -> str:
    """Tensor arguments of a schema; the first `required` must be given."""
    shown = [name.replace(".", "_") for name in names]
    parts = [f"Tensor {name}" for name in shown[:required]]
    return ", ".join(parts + [f"Tensor? {name}=None" for name in shown[required:]])


def _plain() -> str:
    return ", ".join(f"{kind} {name}={default}" for name, (kind, default) in _PLAIN.items())


def forward_schema() -> str:
    """q, k, v and the options; `returned` lists results other than out and lse, with commas.

    The last arguments are the number of largest weights, the queries of the column sums and the
    numbers of cells of pooled.
    """
    asked = (
        "str returned='', SymInt return_top=0, Tensor? sum_rows=None, SymInt[]? return_pooled=None"
    )
    slots = ", ".join(f"Tensor {name}" for name in SLOTS)
    tensors = _given(TENSORS, 2).replace("Tensor? v=None", "Tensor? v")
    return f"({tensors}, {_plain()}, {asked}) -> ({slots})"


def backward_schema() -> str:
    """Gradients of results, then the call's arguments; `wanted` lists gradients, with commas."""
    gradients = "Tensor? dout, Tensor? dlse, Tensor? dweights, Tensor? out, Tensor lse"
    tensors = _given(TENSORS, 2).replace("Tensor? v=None", "Tensor? v")
    results = ", ".join(f"Tensor d{name.replace('.', '_')}" for name in DIFFERENTIABLE)
    return f"({gradients}, {tensors}, {_plain()}, str wanted='q,k,v') -> ({results})"


# ---- from the arguments of qkv.attention to those of the operator -------------------------------


def _as_tensor(name: str, value: Any, q: torch.Tensor) -> Optional[torch.Tensor]:
    """A list, an array or an integer as a tensor."""
    if value is None or isinstance(value, torch.Tensor):
        return value
    if name == "seed" and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        value = int(value)
        if not 0 <= value < 2**64:
            raise ValueError(f"attention: seed must be in 0 to 2^64-1, got int {value}")
        if value >= 2**63:
            value -= 2**64  # an int64 of the same 64 bits
    if name == "rotary_frequencies" and isinstance(value, (list, tuple)):  # as in a plain call
        if any(isinstance(x, (bool, np.bool_)) for x in value):
            raise TypeError(f"attention: {name} must be float32 or float64, got bool")
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        return _stacked(value, q.device if q.is_cuda else "cpu", wide)
    if name in ("bias", "alibi_slopes", "sinks"):  # lists of numbers take the type of the scores
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        return _stacked(value, q.device, wide)
    if name in ("seed", "causal_offset") and not isinstance(value, (list, tuple, np.ndarray)):
        if isinstance(value, (bool, float, np.floating, torch.SymFloat)):
            raise TypeError(f"attention: {name} must be an integer, got {type(value).__name__}")
        # torch.full also takes an integer whose value is known only later.
        return torch.full((), value, dtype=torch.int64, device="cpu")
    device = q.device if q.is_cuda and name not in ON_HOST else "cpu"
    return _stacked(value, device, torch.int64 if _is_empty(value) else None)


def _is_empty(x: Any) -> bool:
    """Whether x is a list or a tuple without numbers, which has no type of its own."""
    return isinstance(x, (list, tuple)) and len(x) == 0


def has_tensors(x: Any) -> bool:
    """Whether x is a list of numbers, or of lists, of which some are tensors."""
    return isinstance(x, (list, tuple)) and any(
        isinstance(number, torch.Tensor) or has_tensors(number) for number in x
    )


def _stacked(x: Any, device: Any, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """torch.as_tensor, also for a list with tensors, which it cannot read in a graph."""
    if has_tensors(x):
        return torch.stack([_stacked(number, device, dtype) for number in x])
    return torch.as_tensor(x, dtype=dtype, device=device)


def _plain_value(name: str, value: Any) -> Any:
    """An option in the form of the schema."""
    if value is None and name in ("softcap", "dropout"):
        return 0.0
    if name in _NUMBERS and isinstance(value, bool):
        raise TypeError(f"attention: {name} must be a number, got bool {value}")
    if name == "causal" and isinstance(value, (bool, np.bool_)):
        return "diagonal" if value else None
    if name == "qk_norm":
        if isinstance(value, (bool, np.bool_)):
            return 1e-6 if value else None
        if isinstance(value, (int, np.integer)):
            kind = type(value).__name__
            raise TypeError(
                f"attention: qk_norm must be None, a bool or the eps, a float; got {kind} {value}"
            )
    if name == "window" and value is not None:
        return [-1 if side is None else side for side in _integers(name, value)]
    if name == "heads" and value is not None:
        both = isinstance(value, (list, tuple))
        return _integers(name, value) if both else [_integer(name, value)]
    if name == "shard" and value is not None:
        if not isinstance(value, (tuple, list)) or len(value) != 4:
            raise TypeError(
                "attention: shard must be None or (first_query, queries, first_key, keys), got "
                f"{type(value).__name__}"
            )
        return [_integer("shard." + field, x) for field, x in zip(Shard._fields, value)]
    if name in ("rotary_width", "threads"):
        return _integer(name, value)
    if is_compiling() and isinstance(value, torch.Tensor):
        raise TypeError(f"attention: {name} must be a number in a graph, got a tensor; {_FIXED}")
    return value


_FIXED = "the graph keeps it as it is when recorded"


def _integers(name: str, values: Any) -> List[Any]:
    """The integers of an array, list or tuple, as a list; an array must have two."""
    if isinstance(values, (torch.Tensor, np.ndarray)):
        if values.ndim != 1 or values.shape[0] != 2:
            raise TypeError(
                f"attention: {name} must be a pair, got an array of shape {list(values.shape)}"
            )
        if not isinstance(values, torch.Tensor) or not values.is_meta:
            values = values.tolist()
    elif not isinstance(values, (list, tuple)):
        raise TypeError(f"attention: {name} must be a pair, got {type(values).__name__}")
    return [_integer(f"{name}[{n}]", x) for n, x in enumerate(values)]


def _integer(name: str, x: Any) -> Any:
    """The value of a tensor of one integer, in a graph its symbol; anything else as it is."""
    if isinstance(x, (bool, np.bool_)):
        raise TypeError(f"attention: {name} must be an integer, got bool {x}")
    if not isinstance(x, torch.Tensor):
        return x.item() if isinstance(x, np.integer) else x
    if x.numel() != 1 or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(
            f"attention: {name} must be an integer, got a tensor {list(x.shape)} of {x.dtype}"
        )
    if is_compiling():
        return x.item()
    try:
        return x.item()
    except RuntimeError as error:  # a meta or fake tensor, or one of a batch
        raise TypeError(
            f"attention: {name} must be an integer whose value is known here, got a tensor that "
            f"does not have one ({str(error).strip().splitlines()[0]})"
        ) from error


def _tensor_of(arguments: Dict[str, Any], params: Dict[str, Any], name: str) -> Any:
    """The argument of this name in TENSORS."""
    group, _, key = name.partition(".")
    return params.get(key) if key else arguments.get(group)


def operands(arguments: Dict[str, Any]) -> Tuple[List[Any], List[Any]]:
    """The tensors, in the order of TENSORS, and the plain options, in the order of PLAIN.

    `arguments` has arguments of `qkv.attention` by name; missing ones have their default.
    """
    params = arguments.get("params") or {}
    unknown = [name for name in params if f"params.{name}" not in TENSORS]
    if unknown:
        known = ", ".join(name[len("params.") :] for name in TENSORS if "." in name)
        raise ValueError(f"attention: params may have the keys {known}, got {unknown[0]!r}")
    arguments = {**arguments, **recorded(arguments)}
    q = arguments["q"]
    tensors = [_as_tensor(name, _tensor_of(arguments, params, name), q) for name in TENSORS]
    plain = [_plain_value(name, arguments.get(name, DEFAULTS.get(name))) for name in PLAIN]
    return tensors, plain


def check_devices(tensors: Iterable[Any]) -> None:
    """Raises if tensors are on different devices, or if some have values and others have none."""
    named = dict(zip(TENSORS, tensors))
    q = named["q"].device
    of_q = q.type
    for name, x in named.items():
        if x is None or x.device == q:
            continue
        on_gpus = "cuda" in (of_q, x.device.type) and not _may_be_on_host(name, x)
        if on_gpus:
            of_q = str(q)
        elif x.device.type == of_q:
            continue
        is_read = name in CAPTURED
        is_of_q = name in DIFFERENTIABLE and not is_read
        if on_gpus or x.device.type == "meta" or (of_q == "meta" and is_of_q):
            group, _, key = name.partition(".")
            shown = f'{group}["{key}"]' if key else name
            if is_read:
                shown = "what score_mod and mask_mod read"
            raise ValueError(
                f"attention: {shown} must be on the device of q, {of_q}, got "
                f"{x.device if on_gpus else x.device.type}"
            )


def _may_be_on_host(name: str, x: torch.Tensor) -> bool:
    """Whether a call on a GPU takes this tensor of the CPU."""
    single = name == "causal_offset" and x.dim() == 0
    return x.device.type == "cpu" and (single or name in ON_HOST)


# Options that someone might want to learn, but which get no gradient.
_WITHOUT_GRADIENT = ("scale", "softcap", "rotary_base", "rotary_frequencies", "dropout")


def lists_gradients(x: Any) -> bool:
    """Whether x is a list of numbers, or of lists, of which some require a gradient."""
    return isinstance(x, (list, tuple)) and any(
        number.requires_grad if isinstance(number, torch.Tensor) else lists_gradients(number)
        for number in x
    )


def refuse_gradients(options: Dict[str, Any]) -> None:
    """Raises for options that require a gradient and would not get one."""
    for name, x in options.items():
        if lists_gradients(x):
            raise ValueError(
                f"attention: {name} must be a tensor to have a gradient, got a list of tensors "
                "that require one; torch.stack makes it a tensor"
            )
        if name in _WITHOUT_GRADIENT and isinstance(x, torch.Tensor) and x.requires_grad:
            instead = "; pass q * scale as q, with scale=1.0" if name == "scale" else ""
            raise ValueError(
                f"attention: {name} must not require a gradient: it gets none{instead}"
            )


_MANY = (list, tuple, range, np.ndarray)


def refuse_kinds(arguments: Dict[str, Any]) -> None:
    """Raises the error of a plain call for the first option of a type that no call takes.

    The operator's own error would be about its schema.
    """
    one = torch.ones(1, 1, 1, 2)
    for name, value in arguments.items():
        if name not in DEFAULTS or isinstance(value, torch.Tensor):
            continue
        more = {"params": {"score": "bilinear"}, "rotary": {}}.get(name)
        if more is None:
            more = {"rotary": "halves"} if "rotary" in name or "positions" in name else {}
        try:
            attention(one, one, one, **{**more, name: value})
        except (TypeError, ValueError) as error:
            is_of_shape = isinstance(error, ValueError) and isinstance(value, _MANY)
            if not is_of_shape and str(error).startswith(f"attention: {name}"):
                raise error from None


def arguments_of(tensors: Iterable[Any], plain: Iterable[Any]) -> Dict[str, Any]:
    """The arguments for the functions of `qkv`, from what operands() returned; tensors detached."""
    arguments: Dict[str, Any] = {"params": None}
    for name, tensor in zip(TENSORS, tensors):
        if name in ("q", "k", "v") or tensor is not None:
            x = None if tensor is None else tensor.detach()
            group, _, key = name.partition(".")
            if key:
                arguments["params"] = {**(arguments["params"] or {}), key: x}
            else:
                arguments[group] = x
    if "seed" in arguments:
        arguments["seed"] = int(arguments["seed"]) % 2**64
    offset = arguments.get("causal_offset")
    if offset is not None and offset.dim() == 0 and not offset.is_cuda:
        arguments["causal_offset"] = int(arguments["causal_offset"])
    for name, value in zip(PLAIN, plain):
        arguments[name] = value
    if arguments["causal"] in (None, "diagonal"):  # the default corner, or that of causal_offset
        arguments["causal"] = arguments["causal"] is not None
    if arguments["heads"] is not None:
        heads = arguments["heads"]
        arguments["heads"] = heads[0] if len(heads) == 1 else tuple(heads)
    replay(arguments)
    return arguments


# ---- which results ------------------------------------------------------------------------------


# Requests that determine which results there are, and so must not be tensors where the operator is
# called.
_DETERMINE = tuple(name for name in REQUESTS if name not in ("return_column_sums", "rows"))
_WHERE = "in graphs, under torch.func and autocast, and of fake and meta tensors"


def refuse_tensors(options: Dict[str, Any]) -> None:
    """Raises for tensors that determine which results there are."""
    for name in _DETERMINE:
        if isinstance(options.get(name), torch.Tensor):
            raise TypeError(
                f"attention: {name} must not be a tensor {_WHERE}: it determines which results "
                "there are"
            )


def _sum_rows(value: Any) -> Optional[torch.Tensor]:
    """return_column_sums as the operator takes it: the queries, or None for all or for no sums."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if not isinstance(value, (list, tuple, range, np.ndarray, torch.Tensor)):
        raise TypeError(
            "attention: return_column_sums must be False, True or integers [R], got "
            f"{type(value).__name__}"
        )
    return torch.as_tensor(value, device="cpu", dtype=torch.int64 if _is_empty(value) else None)


def _cells(value: Any) -> Optional[List[Any]]:
    """return_pooled as the operator takes it."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError(
            f"attention: return_pooled must be None or (m, n), got {type(value).__name__}"
        )
    if any(isinstance(x, torch.Tensor) for x in value):
        raise TypeError(f"attention: return_pooled must be integers (m, n) {_WHERE}, got a tensor")
    return list(value)


def requests_of(options: Dict[str, Any], fields: Tuple[Tuple[str, str], ...]) -> Tuple[Any, ...]:
    """The operator's last arguments; `fields` is what returned_of() gives for `options`."""
    always = ("lse", "top_weights")
    return (
        ",".join([slot for _, slot in fields if slot not in always]),
        options.get("return_top", 0),
        _sum_rows(options.get("return_column_sums", False)),
        _cells(options.get("return_pooled")),
    )


def _is_asked(name: str, options: Dict[str, Any]) -> bool:
    """Whether the argument return_NAME requests the result of this name."""
    request = f"return_{name}"
    value = options.get(request, DEFAULTS[request])
    if name in FLAGS:
        check_kinds("attention", FLAG, **{request: value})
    if name == "column_sums" and not isinstance(value, (bool, np.bool_)):
        return True  # the queries
    return value is not None if name == "pooled" else bool(value)


def check_stages(scores: Any) -> None:
    """Raises unless `return_scores` is a stage or several different ones."""
    several = list(scores) if isinstance(scores, (list, tuple)) else [scores]
    for n, one in enumerate(several):
        got = f"got {type(one).__name__} {one!r}"
        if not isinstance(one, str) or one not in _SCORES:
            kind = ValueError if isinstance(one, str) else TypeError
            rule = 'must be None, "raw", "capped" or "masked"'
            raise kind(f"attention: return_scores {rule}, {got}")
        if one in several[:n]:
            raise ValueError(f"attention: return_scores must name a stage once, {got} twice")


def returned_of(options: Dict[str, Any]) -> Tuple[Tuple[str, str], ...]:
    """The requested results except out, in order: (field of the named tuple, slot)."""
    weights = options.get("return_weights", False)
    fields: Tuple[Tuple[str, str], ...] = {
        False: (),
        True: (("weights", "weights"),),
        "dropped": (("weights", "dropped_weights"),),
        "both": (("weights", "weights"), ("dropped_weights", "dropped_weights")),
    }[weights]
    scores = options.get("return_scores")
    if isinstance(scores, str):
        fields += (("scores", _SCORES[scores]),)
    elif scores is not None:
        check_stages(scores)
        fields += tuple((slot, slot) for kind, slot in _SCORES.items() if kind in scores)
    fields += tuple(
        (name, "top_weights" if name == "top" else name)
        for name in REQUESTED
        if _is_asked(name, options)
    )
    return fields


def packaged(fields: Tuple[Tuple[str, str], ...], has_out: bool, slots: Any) -> Any:
    """The operator's results as `qkv.attention` returns them."""
    by_name = dict(zip(SLOTS, slots))
    if has_out and not fields:
        return by_name["out"]
    names: Tuple[str, ...] = ("out",) if has_out else ()
    values: Tuple[Any, ...] = (by_name["out"],) if has_out else ()
    for field, slot in fields:
        names += (field,)
        pair = (by_name["top_weights"], by_name["top_keys"])
        values += (pair if field == "top" else by_name[slot],)
    return results(names, values)
