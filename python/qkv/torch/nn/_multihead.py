# SPDX-License-Identifier: Apache-2.0
"""torch.nn.MultiheadAttention, computed by qkv's kernels."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch.nn.functional import linear, pad

from .._dropout import attend
from .._kinds import FLAG, SIZE, check_kinds
from .._questions import autocasts, kind_of
from .._sizes import perhaps, perhaps_equal, surely

__all__ = ["MultiheadAttention"]

_NAME = "MultiheadAttention"


def _shown(x: torch.Tensor) -> str:
    sizes = [x.size(0), "*", x.size(-1)] if x.is_nested else x.shape
    return "[" + ",".join(str(size) for size in sizes) + "]"


class MultiheadAttention(torch.nn.MultiheadAttention):  # type: ignore[misc]
    """torch.nn.MultiheadAttention (Vaswani et al. 2017, section 3.2.2), computed by qkv's kernels.

    This subclass has the constructor, parameters, initialisation and state dict of PyTorch's
    module. It differs in three ways: for a query that may attend to no key, attention gives zeros,
    not NaN, so that out is the bias of out_proj; appended keys (add_bias_kv, add_zero_attn) are
    attended to also with is_causal; errors are ValueError and TypeError.

    Args:
        embed_dim: channels of query and of the output.
        num_heads: H, a divisor of embed_dim.
        dropout: probability of dropping a weight in training, in [0,1].
        bias: whether the projections have biases.
        add_bias_kv: whether to append a learned key and value, never masked.
        add_zero_attn: whether to append a key and a value of zeros, never masked.
        kdim, vdim: channels of key and of value; None for embed_dim.
        batch_first: whether arrays are [N,T,.] instead of [T,N,.].
        device, dtype: device and dtype of the parameters.

    >>> import torch
    >>> module = MultiheadAttention(8, 2)
    >>> module.load_state_dict(torch.nn.MultiheadAttention(8, 2).state_dict())
    <All keys matched successfully>
    >>> x = torch.ones(5, 1, 8)
    >>> out, weights = module(x, x, x, average_attn_weights=False)
    >>> out.shape, weights.shape
    (torch.Size([5, 1, 8]), torch.Size([1, 2, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        check_kinds(_NAME, (int, float), dropout=dropout)
        check_kinds(_NAME, FLAG, bias=bias, add_bias_kv=add_bias_kv)
        check_kinds(_NAME, FLAG, add_zero_attn=add_zero_attn, batch_first=batch_first)
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads}
        sizes.update({} if kdim is None else {"kdim": kdim})
        sizes.update({} if vdim is None else {"vdim": vdim})
        check_kinds(_NAME, SIZE, **sizes)
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{_NAME}: {name} must be at least 1, got {size}")
        if embed_dim % num_heads != 0:
            raise ValueError(
                f"{_NAME}: num_heads must divide embed_dim = {embed_dim}, got {num_heads}"
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"{_NAME}: dropout must be in [0,1], got {dropout}")
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim,
            batch_first, device, dtype,
        )  # fmt: skip

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: Optional[torch.Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[torch.Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Projects the inputs, attends in each head, and projects the merged heads.

        Args:
            query: [L,N,embed_dim], [N,L,embed_dim] with batch_first, or [L,embed_dim]. Or, with
                batch_first, a strided nested tensor of sequences [L,embed_dim], not all empty, that
                is also key and value; it excludes masks and appended keys.
            key, value: [S,N,kdim] and [S,N,vdim]; [N,S,.] with batch_first; or [S,.].
            key_padding_mask: [N,S] or [S]: bool, true where a key is ignored, or numbers that are
                added to the scores.
            need_weights: whether to return the weights, which have a gradient.
            attn_mask: [L,S] or [N*num_heads,L,S]: bool, true where a query may not attend, or
                numbers that are added to the scores; these may require a gradient.
            average_attn_weights: whether the weights returned are the mean over the heads.
            is_causal: states that attn_mask, which must be given, is the causal mask. In this case
                attn_mask is not read if key_padding_mask is None, need_weights is False and no key
                is appended.

        Returns:
            (out, weights). out has query's shape. weights (after dropout, in training) are [N,L,S],
            or [N,num_heads,L,S] if not averaged, without N if query has none; or None. S counts
            appended keys: first the learned key, then the key of zeros. The weights of a nested
            tensor are padded with zeros.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        """
        flags = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
        check_kinds(_NAME, FLAG, **flags, is_causal=is_causal)
        self._check_inputs(query, key, value)
        if is_causal and attn_mask is None:
            raise ValueError(
                f"{_NAME}: attn_mask must be given where is_causal is True, which says that it is "
                "the causal mask; got None"
            )
        if query.is_nested:
            for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
                if mask is not None:
                    raise ValueError(
                        f"{_NAME}: {name} must be None if query is nested, got {_shown(mask)}; pad "
                        "query for a mask"
                    )
            return self._of_nested(query, need_weights, average_attn_weights)
        batched = query.dim() == 3
        q, k, v = self._projected(query, key, value)
        if not batched:
            q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        elif not self.batch_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        self._check_masks(q, k, key_padding_mask, attn_mask)
        options: Dict[str, Any] = {"causal": "top_left"}
        if not is_causal or key_padding_mask is not None or need_weights or self._appended():
            options = self._masks(q, k, key_padding_mask, attn_mask)
        k, v = self._with_appended_keys(k, v)
        out, weights = self._attended((q, k, v), need_weights, average_attn_weights, options)
        if not batched:
            weights = None if weights is None else weights.squeeze(0)
            return self.out_proj(out.squeeze(0)), weights
        return self.out_proj(out if self.batch_first else out.transpose(0, 1)), weights

    def _attended(
        self,
        inputs: Tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        need_weights: bool,
        average: bool,
        options: Dict[str, Any],
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """The merged heads before out_proj, and the requested weights or None."""
        dropout = self.dropout if self.training else 0.0
        out, weights = attend(inputs, dropout, need_weights, heads=self.num_heads, **options)
        return out, weights.mean(1) if weights is not None and average else weights

    def _of_nested(
        self, x: torch.Tensor, need_weights: bool, average: bool
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Self-attention of a nested tensor, whose sequences are padded here to one length."""
        lengths = [len(sequence) for sequence in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        rows = torch.arange(padded.size(1), device="cpu")
        # A padding query has length 0, so that it attends to no key and its weights are zero.
        options = {"key_lengths": torch.stack([(rows < length) * length for length in lengths])}
        q, k, v = self._projected(padded, padded, padded)
        out, weights = self._attended((q, k, v), need_weights, average, options)
        out = self.out_proj(out)
        sequences = [sequence[:length] for sequence, length in zip(out, lengths)]
        return torch.nested.as_nested_tensor(sequences), weights

    def _appended(self) -> int:
        """The number of keys that the module appends to the given keys."""
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def _check_inputs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        check_kinds(_NAME, torch.Tensor, query=query, key=key, value=value)
        dtype = self.out_proj.weight.dtype
        mixed = autocasts(kind_of(query))
        widths = {"embed_dim": self.embed_dim, "kdim": self.kdim, "vdim": self.vdim}
        named = {"query": query, "key": key, "value": value}
        is_one = query is key and key is value
        takes_nested = is_one and self.batch_first and not self._appended()
        takes_nested = takes_nested and query.layout == torch.strided and query.dim() == 3
        if query.is_nested and takes_nested:
            self._check_sequences(query)
        for (name, x), (width, wanted) in zip(named.items(), widths.items()):
            if x.is_nested and not takes_nested:
                raise TypeError(
                    f"{_NAME}: {name} must not be a nested tensor, unless query, key and value are "
                    "one with 3 axes and strided layout, batch_first is True and no keys are "
                    "appended: pad it"
                )
            if x.dim() not in (2, 3) or x.dim() != query.dim():
                rule = (
                    "3 axes, or 2 without a batch"
                    if x is query
                    else f"{query.dim()} axes, as query"
                )
                raise ValueError(f"{_NAME}: {name} must have {rule}, got {_shown(x)}")
            if x.size(-1) != wanted:
                rule = f"{width} = {wanted} channels"
                raise ValueError(f"{_NAME}: {name} must have {rule}, got {_shown(x)}")
            if x.dtype != dtype and not mixed:
                rule = f"the dtype of the parameters, {dtype}"
                raise TypeError(f"{_NAME}: {name} must be of {rule}, got {x.dtype}")
        if query.is_nested:  # key and value are then the same tensor
            return
        if not perhaps_equal(value.shape[:-1], key.shape[:-1]):
            rule = f"key's shape but for the channels, {_shown(key)}"
            raise ValueError(f"{_NAME}: value must have {rule}, got {_shown(value)}")
        batch = 0 if self.batch_first else 1
        if query.dim() == 3 and not perhaps(query.size(batch) == key.size(batch)):
            rule = f"the batch size of query, {query.size(batch)}"
            raise ValueError(f"{_NAME}: key must have {rule}, got {_shown(key)}")

    def _check_sequences(self, query: torch.Tensor) -> None:
        """Checks that a nested query has sequences of equal channels, not all empty."""
        sequences = query.unbind()
        channels = sorted({sequence.size(-1) for sequence in sequences})
        if len(channels) > 1:
            rule = f"embed_dim = {self.embed_dim} channels in each sequence"
            got = " and ".join(str(size) for size in channels)
            raise ValueError(f"{_NAME}: query must have {rule}, got {got}")
        lengths = [sequence.size(0) for sequence in sequences]
        if not any(lengths):
            rule = "at least one sequence that is not empty"
            raise ValueError(f"{_NAME}: query must have {rule}, got lengths {lengths}")

    def _projected(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> Tuple[torch.Tensor, ...]:
        """The projected query, key and value, each of embed_dim channels."""
        bias = self.in_proj_bias
        if bias is not None:  # it may have another dtype than the weights, as in PyTorch's module
            bias = bias.to(self.out_proj.weight.dtype)
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:  # self-attention needs one matrix product
            together = linear(query, self.in_proj_weight, bias)
            return tuple(together.chunk(3, -1))
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))

    def _check_masks(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        key_padding_mask: Optional[torch.Tensor],
        attn_mask: Optional[torch.Tensor],
    ) -> None:
        """Checks the masks of q [N,L,.] and k [N,S,.], which has no appended keys yet."""
        N, L, S, H = q.size(0), q.size(1), k.size(1), self.num_heads
        if key_padding_mask is not None:
            _check_mask("key_padding_mask", key_padding_mask)
            if not _has_shape(key_padding_mask, (N, S), *([(S,)] if surely(N == 1) else [])):
                rule = f"[N,S] = [{N},{S}]"
                got = _shown(key_padding_mask)
                raise ValueError(f"{_NAME}: key_padding_mask must be {rule}, got {got}")
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask)
            if not _has_shape(attn_mask, (L, S), (N * H, L, S)):
                rule = f"[L,S] = [{L},{S}] or [N*num_heads,L,S] = [{N * H},{L},{S}]"
                raise ValueError(f"{_NAME}: attn_mask must be {rule}, got {_shown(attn_mask)}")

    def _masks(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        key_padding_mask: Optional[torch.Tensor],
        attn_mask: Optional[torch.Tensor],
    ) -> Dict[str, Any]:
        """The options of `attention` for the checked masks; k has no appended keys yet."""
        options: Dict[str, Any] = {}
        N, S, H = q.size(0), k.size(1), self.num_heads
        if key_padding_mask is not None:
            padding = pad(key_padding_mask.reshape(N, S), (0, self._appended()))
            if padding.dtype == torch.bool:
                options["padding_mask"] = padding
            else:
                options["bias"] = padding[:, None, None].to(q.dtype)
        if attn_mask is not None:
            mask = pad(attn_mask, (0, self._appended()))
            mask = mask if mask.dim() == 2 else mask.unflatten(0, (N, H))
            if mask.dtype == torch.bool:
                options["mask"] = ~mask
            else:
                options["bias"] = options.get("bias", 0) + mask.to(q.dtype)
        return options

    def _with_appended_keys(
        self, k: torch.Tensor, v: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ks, vs, each = [k], [v], (k.size(0), 1, self.embed_dim)
        if self.bias_k is not None:
            ks.append(self.bias_k.to(k.dtype).expand(each))
            vs.append(self.bias_v.to(v.dtype).expand(each))
        if self.add_zero_attn:
            ks.append(k.new_zeros(each))
            vs.append(v.new_zeros(each))
        return (k, v) if len(ks) == 1 else (torch.cat(ks, 1), torch.cat(vs, 1))


def _has_shape(x: torch.Tensor, *shapes: Tuple[int, ...]) -> bool:
    """Whether x has one of the shapes; their sizes are tensors under torch.jit.trace."""
    return any(perhaps_equal(x.shape, shape) for shape in shapes)


def _check_mask(name: str, mask: torch.Tensor) -> None:
    check_kinds(_NAME, torch.Tensor, **{name: mask})
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{_NAME}: {name} must be bool or floating point, got {mask.dtype}")
