# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face Transformers whose sequence is divided among the processes of a group."""

import inspect
from importlib import import_module
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .._ring import BLOCK, zigzags_of
from .._words import near_words
from ._kinds import SIZE, check_kinds
from ._ring import ring_attention
from ._ring_group import check_all, size_of_group
from ._transformers import is_causal, refuse_unknown, register, wants_weights

__all__ = ["ring_model", "ring_positions"]

RING = "qkv_ring"
_WORD = "ring_model"

# Types of configurations whose models mix the tokens of a sequence by causal attention alone, and
# count positions only by position_ids. Tests compare each type with a run on one process.
TYPES = (
    "cohere",
    "cohere2",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm4",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "starcoder2",
)

# Arguments of models that mean the same for a part of the rows as for all rows.
_ALLOWED = frozenset(
    (
        "input_ids",
        "inputs_embeds",
        "position_ids",
        "attention_mask",
        "labels",
        "shift_labels",
        "num_items_in_batch",
        "use_cache",
        "output_hidden_states",
        "return_dict",
    )
)


class _Divided(NamedTuple):
    group: Any
    sharding: Union[str, int]


# The modules of models that ring_model() has changed; modules of a copied model are not added.
_divided: "WeakKeyDictionary[torch.nn.Module, _Divided]" = WeakKeyDictionary()


def _positions(lengths: List[int], rank: int, zigzags: int) -> torch.Tensor:
    """The positions of a rank's rows in the whole sequence; `lengths`: how many each rank has."""
    if zigzags == 0:
        begin = sum(lengths[:rank])
        return torch.arange(begin, begin + lengths[rank], device="cpu")
    parts = 2 * len(lengths)
    size = lengths[rank] // (2 * zigzags)
    firsts = [(n * parts + p) * size for n in range(zigzags) for p in (rank, parts - 1 - rank)]
    return torch.cat([torch.arange(x, x + size, device="cpu") for x in firsts])


@near_words
def ring_positions(
    length: int, *, group: Any = None, sharding: Union[str, int] = "contiguous"
) -> torch.Tensor:
    """The rows that this process has of a sequence that is divided among the processes of a group.

    Args:
        length: number of rows of the whole sequence. For zigzags, a multiple of 1024 n P with P
            processes and n zigzags.
        group: the process group; None for the default one.
        sharding: as in `ring_attention`.

    Returns:
        Positions [t], int64, in the order in which `ring_attention` takes the rows.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ring_positions(3)
    tensor([0, 1, 2])
    >>> dist.destroy_process_group()
    """
    word = "ring_positions"
    check_kinds(word, SIZE, length=length)
    zigzags = zigzags_of(sharding, word)
    count = size_of_group(word, group)
    if zigzags == 0:
        blocks = -(-int(length) // BLOCK)
        if blocks < count:
            raise ValueError(
                f"{word}: length must be at least {BLOCK * (count - 1) + 1}, so that each of the "
                f"{count} processes has rows, got {length}"
            )
        ends = [min(int(length), (r + 1) * blocks // count * BLOCK) for r in range(count)]
        lengths = [end - begin for begin, end in zip([0, *ends], ends)]
    else:
        unit = 2 * zigzags * count * BLOCK
        if length < 1 or length % unit != 0:
            raise ValueError(
                f"{word}: length must be a multiple of {unit} for {count} processes and {zigzags} "
                f"zigzags, got {length}"
            )
        lengths = [int(length) // count] * count
    return _positions(lengths, dist.get_rank(group), zigzags)


@near_words
def ring_model(
    model: torch.nn.Module, *, group: Any = None, sharding: Union[str, int] = "contiguous"
) -> None:
    """Divides the sequences of a Transformers model among the processes of a group.

    Sets attn_implementation="qkv_ring": attention is then `ring_attention`, and every process calls
    the model with its own rows, `model(input_ids=ids[:, own], position_ids=own[None])`, where
    `own = ring_positions(length, ...)`. Everything else in the model works on each row alone.
    Gradients of parameters are to be added over processes; `DistributedDataParallel` averages them.
    With dropout, the first process draws the seed.

    The call takes no attention_mask with zeros (padding on the right needs none), no cache, no
    packed sequences, and labels only with shift_labels. `model.set_attn_implementation` changes the
    model back.

    Args:
        model: a causal language model, or its base model, on the CPU, of a tested type: the
            ValueError for another type lists them.
        group: the process group; None for the default one. gloo sends tensors of the CPU.
        sharding: as in `ring_attention`.

    Returns:
        None.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        ImportError: as `register`.
    """
    register()
    zigzags_of(sharding, _WORD)
    size_of_group(_WORD, group)
    _check_class(model)
    transformers: Any = import_module("transformers")
    transformers.AttentionInterface.register(RING, _forward)
    transformers.AttentionMaskInterface.register(RING, _no_mask)
    model.set_attn_implementation(RING)
    for module in model.modules():
        is_new = module not in _divided
        _divided[module] = _Divided(group, sharding)
        if is_new and isinstance(module, transformers.PreTrainedModel):
            module.register_forward_pre_hook(_prepare, with_kwargs=True)


def _check_class(model: Any) -> None:
    from transformers import PreTrainedModel
    from transformers.models.auto import modeling_auto

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"{_WORD}: model must be a transformers.PreTrainedModel, got {type(model).__name__}"
        )
    kind, name = model.config.model_type, type(model).__name__
    if kind not in TYPES:
        raise ValueError(
            f"{_WORD}: model must be of a type that is tested ({', '.join(TYPES)}), got {kind}"
        )
    known = (modeling_auto.MODEL_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if name not in [names.get(kind) for names in known]:
        raise ValueError(
            f"{_WORD}: model must be a causal language model or its base model, got {name}"
        )


# ---- calls of the model -------------------------------------------------------------------------


def _prepare(
    module: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]
) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
    """Checks the arguments of a call and its positions. Raises on every process if one is wrong."""
    if module.config._attn_implementation != RING:
        return None
    group, sharding = _of(module)
    word = f'attn_implementation="{RING}"'
    error: Optional[Exception] = None
    given: Dict[str, Any] = {}
    try:
        given = _given(module, arguments, named)
    except Exception as raised:
        error = raised
    check_all(group, error, word)
    rows = torch.tensor([_tokens(given).shape[1]], device="cpu")
    of_all = [torch.zeros_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(of_all, rows, group=group)
    lengths = [int(x) for x in of_all]
    try:
        wanted = _positions(lengths, dist.get_rank(group), zigzags_of(sharding, _WORD))
        if not torch.equal(given["position_ids"], wanted.expand(given["position_ids"].shape)):
            raise ValueError(
                f"{word}: position_ids must be those of this process's rows, "
                f"ring_positions({sum(lengths)}, sharding={sharding!r})[None]"
            )
    except Exception as raised:
        error = raised
    check_all(group, error, word)
    # With a mask of ones, Transformers does not take gaps of positions for borders of sequences.
    shape = _tokens(given).shape[:2]
    given.update(attention_mask=torch.ones(shape, dtype=torch.bool, device="cpu"), use_cache=False)
    return (), given


def _of(module: torch.nn.Module) -> _Divided:
    divided = _divided.get(module)
    if divided is None:
        raise ValueError(
            f'attn_implementation="{RING}": {type(module).__name__} is of a model that '
            "qkv.torch.ring_model() has not prepared"
        )
    return divided


def _tokens(given: Dict[str, Any]) -> torch.Tensor:
    ids = given.get("input_ids")
    tokens: torch.Tensor = given["inputs_embeds"] if ids is None else ids
    return tokens


def _given(module: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments by name, without None, and without False outside _ALLOWED. Raises for arguments
    that have no meaning for a part of the rows.
    """
    word = f'attn_implementation="{RING}"'
    names = list(inspect.signature(module.forward).parameters)
    twice = [name for name in names[: len(arguments)] if name in named]
    if twice or len(arguments) > len(names):
        raise TypeError(f"{word}: {type(module).__name__} got too many arguments, or one twice")
    named = {**dict(zip(names, arguments)), **named}
    given = {n: x for n, x in named.items() if x is not None and (x is not False or n in _ALLOWED)}
    kept = given.pop("logits_to_keep", 0)
    if isinstance(kept, torch.Tensor) or kept != 0:
        given["logits_to_keep"] = kept
    for name in given:
        if name not in _ALLOWED:
            raise ValueError(f"{word}: {type(module).__name__} must be called without {name}")
    if given.get("use_cache"):
        raise ValueError(f"{word}: use_cache must be False: a part of the rows has no cache")
    mask = given.get("attention_mask")
    if mask is not None and not (isinstance(mask, torch.Tensor) and bool((mask == 1).all())):
        raise ValueError(f"{word}: attention_mask must be None or all ones; pad on the right")
    if "labels" in given and "shift_labels" not in given:
        raise ValueError(
            f"{word}: labels must come with shift_labels, the next token of each of this process's "
            "rows, since that of the last one may be another process's"
        )
    if "input_ids" not in given and "inputs_embeds" not in given:
        raise ValueError(f"{word}: input_ids or inputs_embeds must be given")
    if _tokens(given).dim() < 2:
        raise ValueError(f"{word}: input_ids must be [B,t], got {list(_tokens(given).shape)}")
    positions = given.get("position_ids")
    shape, rows = list(getattr(positions, "shape", [])), list(_tokens(given).shape[:2])
    if shape not in (rows, [1, rows[1]]):
        raise ValueError(
            f"{word}: position_ids must be ring_positions(length)[None], the positions of this "
            f"process's {rows[1]} rows, got {'None' if positions is None else shape}"
        )
    return given


# ---- attention ----------------------------------------------------------------------------------


def _no_mask(*arguments: Any, **options: Any) -> None:
    """Makes no mask: is_causal and sliding_window say what a mask would."""
    if not options.get("allow_is_causal_skip", True):
        raise ValueError(
            f'attn_implementation="{RING}": {type(options.get("config")).__name__} has a mask '
            "that is not causal"
        )


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    **options: Any,
) -> Tuple[torch.Tensor, None]:
    """The function that models call for this process's rows; takes what `_transformers._forward`
    takes, but no mask, and returns no weights.
    """
    group, sharding = _of(module)
    refuse_unknown(module, attention_mask, options, RING)
    given = {"attention_mask": attention_mask, **options}
    for name in ("attention_mask", "position_bias", "sinks"):
        if given.get(name) is not None:
            raise ValueError(f'attn_implementation="{RING}": {type(module).__name__} passes {name}')
    if wants_weights(module, options):
        raise ValueError(f'attn_implementation="{RING}": output_attentions must be False')
    seed = None
    if dropout > 0:
        drawn = torch.randint(0, 2**63 - 1, (1,), device="cpu")
        dist.broadcast(drawn, 0 if group is None else dist.get_global_rank(group, 0), group)
        seed = int(drawn)
    causal = is_causal(module, options)
    window = options.get("sliding_window")
    out: Any = ring_attention(
        query,
        key,
        value,
        group=group,
        sharding=sharding,
        scale=scaling,
        softcap=options.get("softcap") or 0.0,
        causal=causal,
        window=(window - 1, 0) if window and causal else None,
        sinks=options.get("s_aux"),
        dropout=dropout,
        seed=seed,
    )
    return out.transpose(1, 2), None
