# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch.flex_attention against PyTorch's, with functions that users write for it."""

import functools
import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import qkv.torch  # noqa: E402
from qkv._captured import Call  # noqa: E402
from qkv._mods import ScoreMod  # noqa: E402

B, H, G, TQ, TK, D = 2, 4, 2, 40, 56, 8


def normal(seed, *shape, dtype=torch.float64):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def leaves(heads=H, queries=TQ, keys=TK):
    shapes = ((B, H, queries, D), (B, heads, keys, D), (B, heads, keys, D))
    return [normal(n, *shape).requires_grad_() for n, shape in enumerate(shapes)]


TABLE = normal(10, H, TQ + TK)
BIAS = normal(11, B, H, TQ, TK)
DOCUMENT = torch.arange(TK) // 9
OFFSETS = torch.tensor([0, 13, 30, TK])
LENGTHS = torch.tensor([TK, 21])
OF_QUERIES, OF_KEYS = normal(12, B, H, TK, 3), normal(13, B, TK, 3)
LISTED = torch.tensor(np.random.default_rng(14).integers(0, 7, (B, H, 7, 2)))  # blocks of 8 keys
BUCKETS = [normal(15, H, TK), normal(16, H, TK)]  # tensors in a list
ONE = torch.tensor(1)


def alibi(score, b, h, q_idx, kv_idx):
    return score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / H))


def tanh_softcap(cap):
    def inner(score, b, h, q_idx, kv_idx):
        return torch.tanh(score / cap) * cap

    return inner


def document_of(index):
    return sum((index >= start).long() for start in OFFSETS[1:-1])


class Decay:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, score, b, h, q_idx, kv_idx):
        return score * torch.sigmoid(score) - self.rate * (q_idx - kv_idx).abs().clamp(max=7)


def rounded(x):
    y = torch.trunc(x) + 2 * torch.round(x) + 3 * torch.sign(x) + torch.fmod(x, 0.7)
    return y + torch.where(torch.isnan(x) | torch.isinf(x) | ~torch.isfinite(x), 9.0, 0.0)


def activated(x):
    functions = torch.nn.functional
    names = "relu silu gelu softplus elu leaky_relu relu6 hardtanh softsign logsigmoid mish"
    y = sum(getattr(functions, name)(x) for name in names.split())
    return (y + functions.gelu(x, approximate="tanh")) * 0.1


def of_exponentials(x):
    y = torch.log1p(x * x) + torch.expm1(0.3 * x) + torch.tan(0.3 * x) + torch.sinh(0.2 * x)
    return y + torch.cosh(0.2 * x) + torch.logaddexp(x, 0.5 * x) + torch.erf(x) - torch.erfc(2 * x)


def interleaved(x):
    """The number that the even bits of x make, a coordinate of a Morton code."""
    x = x & 0x55
    x = (x | (x >> 1)) & 0x33
    return (x | (x >> 2)) & 0x0F


def clipped(score, b, h, i, j):
    score = score.masked_fill(i + 9 < j, -torch.inf).clamp_min(-1.5)
    return torch.rsub(torch.max(score, score.clamp_max(1)), 1).to(score.dtype)


SCORES = {
    "none": lambda score, b, h, i, j: score,
    "alibi": alibi,
    "softcap": tanh_softcap(3.0),
    "relative": lambda score, b, h, i, j: score + TABLE[h, i - j + TK],
    "position": lambda score, b, h, i, j: score + BIAS[b, h, i, j],
    "causal": lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf")),
    "temperature": functools.partial(lambda score, b, h, i, j, t: score / t, t=1.7),
    "decay": Decay(0.25),
    "square": lambda score, b, h, i, j: score * score - 0.1 * torch.square(score),
    "of both": lambda score, b, h, i, j: alibi(tanh_softcap(2.0)(score, b, h, i, j), b, h, i, j),
    "even": lambda score, b, h, i, j: torch.where((i + j) % 2 == 0, score, score - 1.0),
    "heads": lambda score, b, h, i, j: score * (1 + h) / H + b,
    "logarithm": lambda score, b, h, i, j: 2 * score - (1 + j).double().log() / TK,
    "negative index": lambda score, b, h, i, j: score + TABLE[h - 1, j - i],
    "rounded": lambda score, b, h, i, j: score + 0.1 * rounded(2 * score),
    "activated": lambda score, b, h, i, j: activated(2 * score),
    "exponentials": lambda score, b, h, i, j: of_exponentials(score),
    "clipped": clipped,
    "rows": lambda score, b, h, i, j: score + (OF_QUERIES[b, h, i] * OF_KEYS[b, j]).sum(-1),
    "row at a place": lambda score, b, h, i, j: score - abs(OF_KEYS[b, j] - 1)[..., 1:].mean(-1),
    "list": lambda score, b, h, i, j: sum((x[h, j] for x in BUCKETS), score),
    "index in a tensor": lambda score, b, h, i, j: score + TABLE[ONE, j],
    "type of score": lambda score, b, h, i, j: score + (i - j).to(score.dtype).type_as(score) / 9,
}
MASKS = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i - j).abs() <= 5,
    "prefix": lambda b, h, i, j: (j < 11) | (i >= j),
    "document": lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j],
    "lengths": lambda b, h, i, j: j < LENGTHS[b],
    "dilated": lambda b, h, i, j: ((i - j) % 3 == 0) & (i >= j),
    "blocks": lambda b, h, i, j: i // 16 >= j // 16,
    "natten": lambda b, h, i, j: ((i // 8 - j // 8).abs() <= 1) & ((i % 8 - j % 8).abs() <= 2),
    "offsets": lambda b, h, i, j: document_of(i) == document_of(j),
    "by head": lambda b, h, i, j: torch.where(h < 2, i >= j, i <= j),
    "negative index": lambda b, h, i, j: DOCUMENT[i - 5] == DOCUMENT[j - h],
    "bits": lambda b, h, i, j: (interleaved(i) - interleaved(j)).abs() <= 1,
    "bits of two": lambda b, h, i, j: ((i ^ j) < 16) | ((i | j) - (i & j) > 40),
    "listed": lambda b, h, i, j: (LISTED[b, h, i // 8] == (j // 8).unsqueeze(-1)).any(dim=-1),
    "truncated": lambda b, h, i, j: torch.div(i - j, 7, rounding_mode="trunc") == 0,
}
MASKS["and"] = flex.and_masks(MASKS["causal"], MASKS["document"], flex.noop_mask)
MASKS["or"] = flex.or_masks(MASKS["window"], MASKS["document"], MASKS["blocks"])


def composition(q, k, v, score_mod=None, mask_mod=None):
    """Attention by formula, with scores of all pairs at once; rows without keys are 0."""
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) / math.sqrt(D)
    sizes = s.shape
    indices = [torch.arange(n).reshape([-1] + [1] * (3 - axis)) for axis, n in enumerate(sizes)]
    if score_mod is not None:
        s = score_mod(s, *indices)
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(*indices).broadcast_to(sizes), -torch.inf)
    empty = torch.isinf(s).all(-1, keepdim=True)
    return (torch.softmax(s.masked_fill(empty, 0), -1) * ~empty) @ v


def check(score_mod, mask_mod, block_mask, heads=H, **sizes):
    tensors = leaves(heads, **sizes)
    got = qkv.torch.flex_attention(
        *tensors, score_mod, block_mask, enable_gqa=heads != H, return_lse=True
    )
    want = composition(*tensors, score_mod, mask_mod)
    torch.testing.assert_close(got[0], want, rtol=1e-10, atol=1e-11)
    weight = normal(20, *want.shape)
    of_got = torch.autograd.grad((got[0] * weight).sum(), tensors)
    for one, other in zip(of_got, torch.autograd.grad((want * weight).sum(), tensors)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that it runs without a compiler
        plain = [x.detach() for x in tensors]
        theirs = flex.flex_attention(
            *plain, score_mod, block_mask, enable_gqa=heads != H, return_lse=True
        )
    torch.testing.assert_close(got[0].detach(), theirs[0], rtol=1e-9, atol=1e-10)
    seen = ~torch.isinf(theirs[1])
    torch.testing.assert_close(got[1].detach()[seen], theirs[1][seen], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    check(SCORES[name], None, None)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mask = flex.create_block_mask(MASKS[name], B, H, TK, TK, device="cpu", BLOCK_SIZE=16)
    check(None, MASKS[name], mask, queries=TK)


@pytest.mark.parametrize("heads", [H, G])
@pytest.mark.parametrize("size", [(None, None), (B, None), (B, H)])
def test_score_mods_with_block_masks_of_any_size(size, heads):
    function = MASKS["causal"]
    mask = flex.create_block_mask(function, *size, TQ, TK, device="cpu", BLOCK_SIZE=(8, 16))
    check(SCORES["softcap"], function, mask, heads)


@pytest.mark.parametrize("name", MASKS)
def test_windows_of_block_masks_contain_all_allowed_pairs(name):
    # The window that a block mask is converted to excludes no pair that the mask allows.
    indices = [
        torch.arange(n).reshape([-1] + [1] * (3 - axis)) for axis, n in enumerate((B, H, TK, TK))
    ]
    i, j = indices[2:]
    allowed = MASKS[name](*indices)
    for size in (8, 16):
        mask = flex.create_block_mask(MASKS[name], B, H, TK, TK, device="cpu", BLOCK_SIZE=size)
        x = torch.zeros(B, H, TK, D)
        options = qkv.torch._flex.of_block_mask("flex_attention", mask, x, x)
        left, right = options.get("window", (-1, -1))
        outside = (torch.tensor(left >= 0) & (i - j > left)) | (
            torch.tensor(right >= 0) & (j - i > right)
        )
        assert not (outside & allowed).any()
        if name in ("causal", "window"):
            far = size - 1 if name == "causal" else 2 * size - 1
            assert options["causal_offset"] == 0
            assert (left, right) == (-1 if name == "causal" else far, far)
        if name in ("by head", "prefix"):
            assert left == -1


def test_blocks_without_a_function_are_the_mask():
    count = torch.tensor([[[2, 1]]])
    indices = torch.tensor([[[[0, 2], [1, 0]]]])
    mask = flex.BlockMask.from_kv_blocks(
        count, indices, BLOCK_SIZE=(32, 32), seq_lengths=(64, 64), compute_q_blocks=False
    )
    tensors = leaves(queries=64, keys=64)
    got = qkv.torch.flex_attention(*tensors, block_mask=mask)
    # There are two blocks of keys: the first row lists block 0, and block 2, which does not exist.
    allowed = torch.zeros(64, 64, dtype=torch.bool)
    allowed[:32, :32] = True
    allowed[32:, 32:] = True
    want = composition(*tensors, mask_mod=lambda b, h, i, j: allowed[i, j])
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


def test_dot_and_matmul_equal_a_sum_of_products():
    q, k, v = leaves()
    dot = qkv.torch.flex_attention(
        q, k, v, lambda s, b, h, i, j: s + torch.dot(OF_QUERIES[b, h, i], OF_KEYS[b, j])
    )
    assert torch.equal(dot, qkv.torch.flex_attention(q, k, v, SCORES["rows"]))
    product = qkv.torch.flex_attention(
        q, k, v, lambda s, b, h, i, j: s + torch.matmul(OF_QUERIES[b, h, i], OF_KEYS[b, j])
    )
    assert torch.equal(product, dot)


def test_negative_indices_count_from_the_end():
    q, k, v = leaves()
    table = TABLE.clone().requires_grad_()

    def mod(score, b, h, i, j):
        return score + table[h - 2, i - j] * table[h, -1]

    tensors = (q, k, v, table)
    got = torch.autograd.grad(qkv.torch.flex_attention(q, k, v, mod).square().sum(), tensors)
    want = torch.autograd.grad(composition(q, k, v, mod).square().sum(), tensors)
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    with pytest.raises(
        ValueError, match="reads table at index -1 of axis 1, which has 96 elements"
    ):
        qkv.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i - j - TQ - 2])


def test_indices_that_cannot_be_negative_stay_as_they_are():
    first = torch.arange(TK) % 3

    def text(mod):
        call = Call((B, H, TQ, TK), torch.float64)
        return repr(ScoreMod(lambda s, at: mod(s, at.b, at.h, at.i, at.j), call))

    plain = text(lambda s, b, h, i, j: s + TABLE[h, i - j + TK - 1])
    assert plain == "ScoreMod(s + TABLE[h, i - j + 56 - 1])"
    assert text(lambda s, b, h, i, j: s + TABLE[first[j], abs(i - j) // 2 % 7]).count("where") == 0
    assert text(lambda s, b, h, i, j: s + TABLE[h - H, j]) == "ScoreMod(s + TABLE[h - 4 + 4, j])"
    wrapped = text(lambda s, b, h, i, j: s + TABLE[h, j - i])
    assert wrapped == "ScoreMod(s + TABLE[h, where(j - i < 0, min(j - i, -1) + 96, max(j - i, 0))])"


def test_captured_tensors_get_gradients():
    q, k, v = leaves()
    table = TABLE.clone().requires_grad_()
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def mod(score, b, h, i, j):
        return score * scale + table[h, i - j + TK]

    tensors = (q, k, v, table, scale)
    got = torch.autograd.grad(qkv.torch.flex_attention(q, k, v, mod).square().sum(), tensors)
    want = torch.autograd.grad(composition(q, k, v, mod).square().sum(), tensors)
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_traced_is_named():
    q, k, v = leaves()

    def atan(score, b, h, i, j):
        return torch.atan(score)

    def item(score, b, h, i, j):
        return score * (1 if i > j else 2)

    with pytest.raises(
        TypeError, match=r"torch\.atan does not take expressions; functions that do: abs, .* more$"
    ) as caught:
        qkv.torch.flex_attention(q, k, v, atan)
    assert len(str(caught.value)) <= 220
    with pytest.raises(TypeError, match="no value while it is traced; if, and"):
        qkv.torch.flex_attention(q, k, v, item)
    with pytest.raises(
        TypeError, match=r"torch\.relu of an expression takes inplace False, got True"
    ):
        relu = torch.nn.ReLU(inplace=True)
        qkv.torch.flex_attention(q, k, v, lambda score, b, h, i, j: relu(score))
    with pytest.raises(AttributeError, match="no attribute 'cumsum'; methods of tensors that"):
        qkv.torch.flex_attention(q, k, v, lambda score, b, h, i, j: score.cumsum(0))


class Holder:
    array = np.ones(4)
    tensor = torch.ones(4)


# (function, pattern of its error). Errors advise functions of PyTorch, and indices without `at`.
ADVICE = [
    (lambda s, b, h, i, j: s if i >= j else -math.inf, r"Write torch.where\(c, a, b\) for if, .*"),
    (lambda s, b, h, i, j: s - math.exp(i), r"Write x.float\(\), or torch.exp\(x\) for math.exp"),
    (lambda s, b, h, i, j: int(s), r"Write x.int\(\)$"),
    (lambda s, b, h, i, j: s + {0: 1.0}[h], "Put the values into a tensor, and read that$"),
    (lambda s, b, h, i, j: s + [1.0, 2.0][h], "To index a list, or .* make it a tensor before$"),
    (lambda s, b, h, i, j: s + Holder.array[h], "an attribute that is an array of NumPy, make it"),
    (lambda s, b, h, i, j: s + Holder.tensor, r"shape \[4\]; read it at .*, such as array\[h\]$"),
    (lambda s, b, h, i, j: s**2.5, r"write torch.exp\(2.5 \* torch.log\(x\)\)$"),
    (
        lambda s, at: s,
        r"^flex_attention: score_mod must take \(score, b, h, q_idx, kv_idx\), got \(s, at\); "
        "qkv.torch.attention takes functions like that$",
    ),
    (
        MASKS["causal"],
        r"\); create_block_mask, for block_mask, takes functions like that$",
    ),
    (torch.ones(3), r"score_mod must be a function that takes \(score, .*, got Tensor$"),
    (qkv.score_mod(lambda s, at: s), r"got \(s, at\); qkv.torch.attention takes"),
]


@pytest.mark.parametrize("n", range(len(ADVICE)))
def test_advice_is_in_words_of_pytorch(n):
    function, text = ADVICE[n]
    with pytest.raises(TypeError, match=text) as caught:
        qkv.torch.flex_attention(*leaves(), function)
    assert len(str(caught.value)) <= 220


def test_advice_works():
    q, k, v = leaves()
    for function in (
        lambda s, b, h, i, j: torch.where(i >= j, s, -1.0),
        lambda s, b, h, i, j: torch.exp(s * 2.5).float() + (s * 3).int() + Holder.tensor[h],
        lambda s, b, h, i, j: torch.maximum(s, Holder.tensor[h]) + s.clamp(max=8),
    ):
        assert qkv.torch.flex_attention(q, k, v, function).shape == q.shape


def test_errors_name_the_arguments_of_flex_attention():
    q, k, v = leaves()
    for arguments, text in (
        ((q, k[..., 1:], v), r"key has D = 7 but query has D = 8 \(query \[.*\], key \[2,4"),
        ((q, k, v[..., 1:, :]), r"value has Tk = 55 but key has Tk = 56 \(key .*, value \["),
        ((q.float(), k, v), "key must be float32, .* where query is float32, got float64 "),
        ((q, k, v, None, None, "1"), "scale must be a number, got str '1'$"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^flex_attention: {text}"):
            qkv.torch.flex_attention(*arguments)
    k = torch.ones(3)
    with pytest.raises(ValueError, match="^flex_attention: score_mod reads k at index 3 of axis 0"):
        qkv.torch.flex_attention(q, q, q, lambda s, b, h, i, j: s + k[j])


def test_arguments():
    q, k, v = leaves(G)
    with pytest.raises(ValueError, match="key must have the heads of query, 4, got 2; with enable"):
        qkv.torch.flex_attention(q, k, v)
    q, k, v = leaves()
    with pytest.raises(ValueError, match="query must have four axes, got"):
        qkv.torch.flex_attention(q[0], k, v)
    mask = flex.create_block_mask(MASKS["causal"], None, None, 64, 64, device="cpu")
    with pytest.raises(ValueError, match="block_mask must be for 40 queries and 56 keys, got"):
        qkv.torch.flex_attention(q, k, v, block_mask=mask)
    for sizes, text in (
        ((3, None), "1 or 2 batch entries, got 3"),
        ((1, 2), "1 or 4 heads, got 2"),
    ):
        mask = flex.create_block_mask(MASKS["causal"], *sizes, TQ, TK, device="cpu")
        with pytest.raises(ValueError, match=f"flex_attention: block_mask must be for {text}"):
            qkv.torch.flex_attention(q, k, v, block_mask=mask)
    with pytest.raises(TypeError, match="block_mask must be a BlockMask, .* makes, got function"):
        qkv.torch.flex_attention(q, k, v, block_mask=MASKS["causal"])
    with pytest.raises(TypeError, match="query must be a torch.Tensor, got list"):
        qkv.torch.flex_attention([1], k, v)
    for name in ("enable_gqa", "return_lse"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got int"):
            qkv.torch.flex_attention(q, k, v, **{name: 1})
    torch.testing.assert_close(
        qkv.torch.flex_attention(q, k, v, scale=0.25),
        qkv.torch.attention(q, k, v, scale=0.25),
    )
    if hasattr(flex, "AuxRequest"):
        request = flex.AuxRequest(lse=True, max_scores=True)
        out, aux = qkv.torch.flex_attention(q, k, v, return_aux=request)
        want = qkv.torch.attention(q, k, v, return_lse=True, return_row_max=True)
        assert torch.equal(aux.lse, want.lse) and torch.equal(aux.max_scores, want.row_max)
        assert torch.equal(out, want.out)
