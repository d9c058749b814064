# SPDX-License-Identifier: Apache-2.0
"""Compares "qkv" with "eager" in models of every class of Hugging Face Transformers.

Two equal models are made, with "qkv" and with "eager", in float64, or in float32 if float64 fails.
Their outputs, gradients, weights and generated text are compared, with padding and without. Then
the model of "eager" is changed to "qkv" and compared once more.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import transformers
from model_inputs import BATCH, F64, LENGTH, attended, candidates
from small_configs import ways
from small_models import _Widened
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

NEW = 4  # tokens to generate
NO_WEIGHTS = "no attentions"  # the class returns no weights, even if requested
LARGEST = 40_000_000  # the largest number of parameters that is tried
# The largest differences allowed, as difference() gives them. For float64, widen_all() makes the
# softmax float64, but some norms stay float32.
CLOSE = {torch.float64: 1e-5, torch.float32: 2e-4}


class Result(NamedTuple):
    name: str  # the name of the configuration
    model: str  # the name of the model class
    state: str  # "equal", "refused", "no attention", "not tried", "as sdpa", "different"
    text: str  # the comparisons made, or the reason why there is none
    worst: float = 0.0


# ---- the classes --------------------------------------------------------------------------------


def classes_of(name: str) -> List[type]:
    """The model class of a configuration, and one that generates tokens."""
    kind = CONFIG_MAPPING[name]
    package = importlib.import_module(kind.__module__.rpartition(".")[0])
    found = []
    for file in sorted(Path(package.__path__[0]).glob("modeling_*.py")):
        module = importlib.import_module(f"{package.__name__}.{file.stem}")
        found += [
            cls
            for cls in vars(module).values()
            if inspect.isclass(cls)
            and issubclass(cls, PreTrainedModel)
            and cls.__module__ == module.__name__
            and cls.config_class is kind
            and not cls.__name__.endswith("PreTrainedModel")
        ]
    base = MODEL_MAPPING_NAMES.get(name, ())
    base = (base,) if isinstance(base, str) else base
    first = [cls for cls in found if cls.__name__ in base][:1] or found[:1]
    writing = [cls for cls in found if cls.can_generate() and cls not in first]
    return first + writing[:1]


# ---- making models ------------------------------------------------------------------------------


def widen_all(dtype: torch.dtype) -> None:
    """Replaces float32 by float64 in the files of all models that are imported, or undoes it."""
    for place, module in list(sys.modules.items()):
        is_model = ".modeling_" in place and place.startswith("transformers.models.")
        if is_model and hasattr(module, "torch"):
            module.torch = _Widened() if dtype == F64 else torch


def _fill(model: torch.nn.Module) -> None:
    """Draws parameters large enough for attention to affect the results."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        fan = parameter[0].numel() if parameter.dim() > 1 else 1
        std = min(0.4, 2 / math.sqrt(fan)) if parameter.dim() > 1 else 0.1
        noise = torch.randn(parameter.shape, generator=generator, dtype=F64) * std
        is_scale = parameter.dim() == 1 and "weight" in name
        with torch.no_grad():
            parameter.copy_(noise + (1 if is_scale else 0))


def make(
    cls: type, arguments: Dict[str, Any], name: str, implementation: str, dtype: torch.dtype = F64
) -> PreTrainedModel:
    config = CONFIG_MAPPING[name](**arguments)
    with torch.device("meta"):
        sized = cls(type(config)(**arguments))
    if sum(p.numel() for p in sized.parameters()) > LARGEST:
        raise MemoryError("too large")
    torch.manual_seed(0)
    config._experts_implementation = "eager"  # the default works in float32 only
    config._attn_implementation = implementation
    model = cls(config)
    widen_all(dtype)
    model = model.to(dtype).eval()
    _fill(model)
    return model


# ---- their results ------------------------------------------------------------------------------


def tensors_in(thing: Any, name: str = "") -> Iterator[Tuple[str, torch.Tensor]]:
    if isinstance(thing, torch.Tensor):
        if thing.is_floating_point():
            yield name, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            if key not in ("past_key_values", "cache"):
                yield from tensors_in(value, f"{name}.{key}")
    elif isinstance(thing, (list, tuple)):
        for n, value in enumerate(thing):
            yield from tensors_in(value, f"{name}.{n}")


def difference(
    got: Any, want: Any, real: Optional[torch.Tensor] = None, all_of: bool = True
) -> float:
    """The largest difference, relative to the largest number of its tensor.

    A difference of up to 100 units in the last place of the largest of all numbers, or of 1, counts
    as 0: where numbers cancel, as in gradients of keys' biases or of a constant loss, it is only
    rounding.
    `real` is true for the positions that are compared, false for padding; None compares all.
    Without `all_of`, `got` may lack weights: in a few models eager returns them without request.
    """
    worst = 0.0
    left, right = dict(tensors_in(got)), dict(tensors_in(want))
    if not all_of:
        right = {n: x for n, x in right.items() if n in left or "attentions" not in n}
    finite = [x[x.isfinite()] for x in right.values()]
    largest = max([x.abs().max().item() for x in finite if x.numel()] + [1.0])
    if left.keys() != right.keys():
        return math.inf
    for name, a in left.items():
        b = right[name]
        if a.shape != b.shape:
            return math.inf
        if real is not None and a.dim() > 1 and len(a) == len(real):
            # Some results lack the first position.
            rows = real[:, 1:] if a.shape[1] == real.shape[1] - 1 else real
            if a.shape[:2] == rows.shape:
                a, b = a[rows], b[rows]
        if not a.numel():
            continue
        finite = b.isfinite()  # eager gives NaN in rows without keys in a few models
        if not a[finite].isfinite().all():
            return math.inf
        rounding = 100 * torch.finfo(b.dtype).eps * largest
        a, b = a[finite].double(), b[finite].double()
        gap = (a - b).abs().max().item() if a.numel() else 0.0
        if gap > rounding:
            worst = max(worst, gap / b.abs().max().item() if b.any() else math.inf)
    return worst


# ---- the comparison -----------------------------------------------------------------------------


class Calls:
    """A context that records the modules from which "qkv" is called."""

    def __init__(self) -> None:
        self.modules: Dict[int, str] = {}
        self.options: set = set()

    def __enter__(self) -> Calls:
        mapping = transformers.AttentionInterface._global_mapping
        self._called = mapping["qkv"]

        def counted(module: Any, *arguments: Any, **options: Any) -> Any:
            self.modules[id(module)] = type(module).__name__
            self.options |= {key for key, value in options.items() if value is not None}
            return self._called(module, *arguments, **options)

        mapping["qkv"] = counted
        return self

    def __exit__(self, *_: Any) -> None:
        transformers.AttentionInterface._global_mapping["qkv"] = self._called


def _run(model: Any, inputs: Dict[str, Any], **more: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**inputs, **more)


def _is_refusal(error: BaseException) -> bool:
    return 'attn_implementation="qkv"' in str(error)


def _works(model: Any) -> Tuple[Optional[Dict[str, Any]], str]:
    """The first inputs that a model runs with, or the reason why there are none."""
    why = ""
    for inputs in candidates(model):
        try:
            outputs = list(tensors_in(_run(model, inputs)))
        except Exception as error:
            why = why or f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
            continue
        if outputs:
            return inputs, ""
        why = why or "no output is a tensor of numbers"
    return None, why or "no argument that is known"


def _kinds_of_runs(
    model: Any, inputs: Dict[str, Any], close: float
) -> Iterator[Tuple[str, Callable[[Any], Any], Any]]:
    """The comparisons: name, function of a model, and which rows are not padding."""
    names = inspect.signature(model.forward).parameters
    yield "forward", lambda m: _run(m, inputs), None
    masked = "attention_mask" in names and any(
        n in inputs and inputs[n].dim() >= 2 and inputs[n].shape[:2] == (BATCH, LENGTH)
        for n in ("input_ids", "inputs_embeds")
    )
    if masked:
        mask = attended(False)
        yield "padding", lambda m: _run(m, inputs, attention_mask=mask), mask.bool()
        left = attended(True)
        if model.can_generate() and "decoder_attention_mask" not in names:
            yield "left padding", lambda m: _run(m, inputs, attention_mask=left), left.bool()

    def gradients(m: Any) -> Any:
        torch.manual_seed(0)
        m.zero_grad()
        with torch.enable_grad():
            outputs = [t for n, t in tensors_in(m(**inputs)) if "attentions" not in n]
            total = sum(t.square().sum() for t in outputs if t.requires_grad)
            total.backward()
        return {n: p.grad for n, p in m.named_parameters() if p.grad is not None}

    yield "gradients", gradients, None
    yield "attentions", lambda m: _run(m, inputs, output_attentions=True), None
    if "logits_to_keep" in names:
        yield "last logits", lambda m: _run(m, inputs, logits_to_keep=2), None
    if "input_ids" in inputs and hasattr(model, "generate") and model.can_generate():
        words = inputs["input_ids"]
        rest = {n: v for n, v in inputs.items() if n != "input_ids" and n != "decoder_input_ids"}

        def in_two(m: Any) -> Any:
            start = _run(m, {**rest, "input_ids": words[:, :6]}, use_cache=True)
            cache = "cache" if "cache" in names else "past_key_values"
            return _run(m, {**rest, "input_ids": words[:, 6:], cache: start[cache]}).logits

        if "decoder_input_ids" not in names:
            yield "in two parts", in_two, None

        def written(m: Any, cache: str, left: bool) -> Any:
            mask = attended(True) if left else torch.ones_like(attended(True))
            torch.manual_seed(0)
            out = m.generate(
                **rest,
                input_ids=words,
                attention_mask=mask,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
                cache_implementation=cache,
            )
            return [*out.logits, out.sequences.double()]

        yield "dynamic cache", lambda m: written(m, "dynamic", True), None
        try:  # bidirectional models attend to unused slots of a static cache, also with eager
            static = difference(written(model, "static", False), written(model, "dynamic", False))
        except Exception:
            return
        if static <= close:
            yield "static cache", lambda m: written(m, "static", False), None


def _uses_interface(module: torch.nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def compare(
    by_qkv: Any, by_eager: Any, inputs: Dict[str, Any], close: float
) -> Tuple[List[str], List[str], float]:
    """Returns what is equal, what is not, and the largest difference in what is equal."""
    equal, different, worst, exact = [], [], 0.0, True
    for what, function, real in _kinds_of_runs(by_eager, inputs, close):
        try:
            want = function(by_eager)
        except Exception:
            continue  # the comparison does not apply to this model
        numbers = [x for _, x in tensors_in(want)]
        exact = exact and all(x.isfinite().all() for x in numbers)
        if what == "gradients" and not exact or not any(x.isfinite().any() for x in numbers):
            continue
        try:
            got = function(by_qkv)
        except Exception as error:
            text = str(error) if _is_refusal(error) else f"{type(error).__name__}: {error}"
            different.append(f"{what}: {text[:200]}")
            continue
        far = difference(got, want, real, all_of=what == "attentions")
        if what == "attentions" and far == math.inf:
            far, what = difference(got, want, real, all_of=False), NO_WEIGHTS
        if far <= close:
            equal.append(what)
            worst = max(worst, far)
        elif difference(function(by_eager), want, real) <= close:  # eager repeats its result
            different.append(f"{what}: {far:.1g}")
    return equal, different, worst


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


def judge(name: str, cls: type) -> Result:
    """Judges one class, made small in the first way in which it runs."""
    why: List[str] = []
    try:
        tried = list(ways(name))
    except Exception as error:  # the class fails with its own defaults
        return Result(name, cls.__name__, "not tried", _brief(error))
    for way, arguments in tried:
        for dtype in CLOSE:
            result = _judge_made(name, cls, arguments, dtype)
            if result.state != "not tried":
                return result
            why.append(f"{way}: {result.text}")
            if not re.search("dtype|Double|double", result.text):
                break  # float32 is tried only if the model fails because of float64
    return Result(name, cls.__name__, "not tried", " | ".join(dict.fromkeys(why)))


def _judge_made(name: str, cls: type, arguments: Dict[str, Any], dtype: torch.dtype) -> Result:
    def result(state: str, text: str, worst: float = 0.0) -> Result:
        return Result(name, cls.__name__, state, text, worst)

    close = CLOSE[dtype]
    try:
        by_eager = make(cls, arguments, name, "eager", dtype)
    except Exception as error:
        refusal = _refusal(cls, arguments, name)
        return result("refused", refusal) if refusal else result("not tried", _brief(error))
    try:
        by_qkv = make(cls, arguments, name, "qkv", dtype)
    except Exception as error:
        if not _is_refusal(error):
            return result("different", f"made: {_brief(error)}")
        try:
            by_eager.set_attn_implementation("qkv")
        except ValueError as changing:
            if str(changing) == str(error):
                return result("refused", str(error))
        return result("different", "refused when it is made, not when it is changed")
    inputs, reason = _works(by_eager)
    equal, different, worst, run = [], [], 0.0, set()
    with Calls() as calls:
        if inputs is not None:
            run = _modules_run(by_eager, inputs)
            equal, different, worst = compare(by_qkv, by_eager, inputs, close)
            if not different:
                different = _changed(by_eager, by_qkv, inputs, close)
        others = dict(by_qkv.named_modules())
        for path, part in by_eager.named_modules():
            if not isinstance(part, PreTrainedModel) or not path or id(part) in run:
                continue
            if (given := _works(part)[0]) is not None:
                run |= _modules_run(part, given)
                more = compare(others[path], part, given, close)
                equal += [f"{path}: {x}" for x in more[0]]
                different += [f"{path}: {x}" for x in more[1]]
                worst = max(worst, more[2])
    refused = [text for text in different if 'attn_implementation="qkv"' in text]
    if refused and len(refused) == len(different):
        return result("refused", refused[0], worst)
    if different and _is_as_sdpa(name, cls, arguments, by_qkv, inputs):
        return result("as sdpa", "; ".join(different), worst)
    if different:
        return result("different", "; ".join(different), worst)
    attends = {type(m).__name__ for m in by_qkv.modules() if _uses_interface(m)}
    if not equal:
        return result("not tried", reason or "eager itself gives NaN")
    if not attends:
        return result("no attention", "; ".join(equal), worst)
    missed = sorted(attends - set(calls.modules.values()))
    if not calls.modules:
        return result("not tried", f"not reached: {', '.join(missed)}")
    more = f" (not reached: {', '.join(missed)})" if missed else ""
    return result("equal", "; ".join(equal) + more, worst)


def _changed(by_eager: Any, by_qkv: Any, inputs: Dict[str, Any], close: float) -> List[str]:
    """The differences of a model changed to "qkv" from one that was made with it."""
    try:
        by_eager.set_attn_implementation("qkv")
    except ValueError as error:  # a part made with eager, which "qkv" was never requested for
        return [f"changed: {error}"]
    far = difference(_run(by_eager, inputs), _run(by_qkv, inputs))
    by_eager.set_attn_implementation("eager")
    return [f"changed: {far:.1g}"] if far > close else []


def _refusal(cls: type, arguments: Dict[str, Any], name: str) -> str:
    """The refusal of "qkv" by a class that cannot be made with "eager"; "" if there is none."""
    try:
        config = CONFIG_MAPPING[name](**arguments)
        config._attn_implementation = "qkv"
        with torch.device("meta"):
            cls(config)
    except Exception as error:
        return str(error) if _is_refusal(error) else ""
    return ""


def _is_as_sdpa(
    name: str, cls: type, arguments: Dict[str, Any], by_qkv: Any, inputs: Optional[Dict[str, Any]]
) -> bool:
    """Whether this is a part of a model in which "qkv" equals "sdpa", while eager differs."""
    if name in MODEL_MAPPING_NAMES or inputs is None:
        return False
    dtype = next(by_qkv.parameters()).dtype
    try:
        by_sdpa = make(cls, arguments, name, "sdpa", dtype)
    except ValueError:
        return False
    equal, different, _ = compare(by_qkv, by_sdpa, inputs, CLOSE[dtype])
    return len(equal) > 1 and all(text.startswith("attentions: ") for text in different)


def _modules_run(model: Any, inputs: Dict[str, Any]) -> set:
    run: set = set()
    hooks = [m.register_forward_pre_hook(lambda m, _: run.add(id(m))) for m in model.modules()]
    try:
        _run(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return run
