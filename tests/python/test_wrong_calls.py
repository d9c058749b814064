# SPDX-License-Identifier: Apache-2.0
"""Tests the errors of invalid calls from Python, and unusual arguments that must work."""

import ml_dtypes
import numpy as np
import pytest
import strange
from random_calls import needs_torch, torch

import qkv

F = np.float32
Q, K, V = np.ones((2, 3, 8), F), np.ones((2, 5, 8), F), np.ones((2, 5, 6), F)
OUT, LSE = np.ones((2, 3, 6), F), np.ones((2, 3), F)
MATRIX = np.ones((2, 3, 5), F)
WQ, WK, U = np.ones((4, 8), F), np.ones((4, 8), F), np.ones(4, F)
BILINEAR = {"score": "bilinear"}
ADDITIVE = {"score": "additive"}

FLOATS = "must be float64, float32, bfloat16 or float16, got"
FLOATS_OR_Q8 = "must be float64, float32, bfloat16, float16 or q8, got"
FLAGS = "must be bool or an integer type, got"
INTEGERS = "must be an integer type, got"
ARRAY = "must be an array (of NumPy, or one that supports DLPack), got"
NUMBERS = "must be an array or a list of numbers, got"
INTEGER_LIST = "must be an array or a list of integers, got"
SCORES = 'score must be "scaled_dot", "dot", "bilinear", "additive" or "cosine", got'
SEED = "must be in 0 to 2^64-1, got"
ON_GPU = "; qkv.torch.attention takes CUDA tensors"
THREADS = "must be in 0 (one for each processor) to 4096, got"


def attend(**arguments):
    return qkv.attention(**{"q": Q, "k": K, "v": V, **arguments})


def backward(**arguments):
    given = {"dout": OUT, "q": Q, "k": K, "v": V, "out": OUT, "lse": LSE}
    return qkv.attention_backward(**{**given, **arguments})


# Each case: the arguments that replace those of a valid call of attention, the error's class, and
# its message after "attention: " (None: a message of NumPy or Python, which is not compared).
WRONG = [
    # ---- types and ranks of arrays
    ({"q": np.ones((2, 3, 8), int)}, TypeError, f"q {FLOATS} int64 [2,3,8]"),
    ({"q": np.ones((2, 3, 8), bool)}, TypeError, f"q {FLOATS} bool [2,3,8]"),
    ({"q": np.ones((2, 3, 8), complex)}, TypeError, f"q {FLOATS} complex128 [2,3,8]"),
    ({"q": np.ones((2, 3), np.complex64)}, TypeError, f"q {FLOATS} complex64 [2,3]"),
    ({"q": np.ones((2, 3), np.longdouble)}, TypeError, f"q {FLOATS} float128 [2,3]"),
    ({"q": np.full((2, 3), None)}, TypeError, f"q {FLOATS} object [2,3]"),
    ({"k": np.array([["a"]])}, TypeError, f"k {FLOATS_OR_Q8} <U1 [1,1]"),
    ({"k": np.array([[b"ab"]])}, TypeError, f"k {FLOATS_OR_Q8} |S2 [1,1]"),
    ({"v": np.zeros((2, 5), "i4,f4")}, TypeError,
     f"v {FLOATS_OR_Q8} [('f0', '<i4'), ('f1', '<f4')] [2,5]"),
    ({"v": np.zeros((2, 5), "M8[s]")}, TypeError, f"v {FLOATS_OR_Q8} datetime64[s] [2,5]"),
    ({"mask": np.zeros(5, "m8[s]")}, TypeError, f"mask {FLAGS} timedelta64[s] [5]"),
    ({"padding_mask": np.array([["a"]])}, TypeError, f"padding_mask {FLAGS} <U1 [1,1]"),
    ({"key_lengths": np.array(["5", "5"])}, TypeError, f"key_lengths {INTEGERS} <U1 [2]"),
    ({"key_lengths": ["5", "5"]}, TypeError, f"key_lengths {INTEGERS} <U1 [2]"),
    ({"cu_seqlens_q": np.array(["5", "5"])}, TypeError, f"cu_seqlens_q {INTEGERS} <U1 [2]"),
    ({"q": np.zeros((2, 3), ml_dtypes.float8_e4m3fn)}, TypeError,
     f"q {FLOATS} float8_e4m3fn [2,3]"),
    ({"q": [[1.0]]}, TypeError, f"q {ARRAY} list of length 1"),
    ({"k": (1.0, 2.0)}, TypeError, f"k {ARRAY} tuple of length 2"),
    ({"v": 3.5}, TypeError, f"v {ARRAY} float 3.5"),
    ({"q": "abc"}, TypeError, f"q {ARRAY} str 'abc'"),
    ({"q": {}}, TypeError, f"q {ARRAY} dict"),
    ({"q": None}, ValueError, "q is absent but q and k are always needed"),
    ({"q": np.ones((1,) * 9, F)}, ValueError, "q must have at most 8 axes, got 9"),
    ({"q": np.ones((), F)}, ValueError, "q must have rank 2 or more, got float32 []"),
    # ---- devices and memory of arrays
    ({"q": strange.OnGpu()}, TypeError,
     f"q must be an array on the CPU, got OnGpu on DLPack device type 2{ON_GPU}"),
    ({"q": strange.Exporter(device=())}, TypeError,
     "q must give a pair of integers as its DLPack device, got () from Exporter"),
    ({"q": strange.Exporter(device=(None, 0))}, TypeError,
     "q must give a pair of integers as its DLPack device, got (None, 0) from Exporter"),
    ({"k": strange.NoCapsule(3)}, TypeError,
     "k must give a DLPack tensor of the CPU, got NoCapsule"),
    ({"k": strange.Exporter((2, 5, 8), place=strange.CUDA)}, TypeError,
     "k must give a DLPack tensor of the CPU, got Exporter"),
    ({"v": strange.Exporter((2, 5, 6), data="odd")}, ValueError,
     "v must be aligned for its elements, got Exporter"),
    ({"v": strange.Exporter((2, 5, 6), data="null")}, ValueError,
     "v data is null but the shape [2,5,6] has elements"),
    ({"v": strange.Exporter((2, -5, 6))}, ValueError,
     "v shape must be 0 or more on each axis, got [2,-5,6]"),
    # ---- score and parameters
    ({"score": "Dot"}, ValueError, f"{SCORES} str 'Dot'"),
    ({"score": "dot\0"}, ValueError, f"{SCORES} str 'dot\\x00'"),
    ({"score": None}, TypeError, f"{SCORES} None"),
    ({"score": 1}, TypeError, f"{SCORES} int 1"),
    ({"params": {"W": WQ}}, ValueError,
     "params is given but the score 'scaled_dot' has no parameters"),
    ({"params": {}, "score": "dot"}, ValueError,
     "params is given but the score 'dot' has no parameters"),
    (BILINEAR, ValueError, 'params["W"] is absent but the score needs it'),
    ({**BILINEAR, "params": {}}, ValueError, 'params["W"] is absent but the score needs it'),
    ({**BILINEAR, "params": {"W": None}}, ValueError,
     'params["W"] is absent but the score needs it'),
    ({**BILINEAR, "params": WQ}, TypeError, "params must be a dict of arrays, got numpy.ndarray"),
    ({**BILINEAR, "params": {"w": WQ}}, ValueError,
     "params may have the keys \"W\", got str 'w'"),
    ({**BILINEAR, "params": {"W": [[1.0]]}}, TypeError, f'params["W"] {ARRAY} list of length 1'),
    ({**ADDITIVE, "params": {"Wq": WQ, "Wk": WK}}, ValueError,
     'params["v"] is absent but the score needs it'),
    ({**ADDITIVE, "params": {"Wq": WQ, "Wk": WK, "v": U, "c": U}}, ValueError,
     "params may have the keys \"Wq\", \"Wk\", \"v\", \"b\", got str 'c'"),
    ({**ADDITIVE, "params": {"Wq": WQ, 3: WK}}, ValueError,
     'params may have the keys "Wq", "Wk", "v", "b", got int 3'),
    # ---- numbers
    ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    ({"scale": "1"}, TypeError, "scale must be a number, got str '1'"),
    ({"scale": True}, TypeError, "scale must be a number, got bool True"),
    ({"scale": 10**400}, ValueError, f"scale must fit in float64, got int 1{'0' * 56}..."),
    ({"scale": np.ones(3)}, TypeError, "scale must be a number, got numpy.ndarray"),
    ({"scale": np.complex64(1)}, TypeError, "scale must be a number, got numpy.complex64"),
    ({"scale": np.array(1j)}, TypeError, "scale must be a number, got numpy.ndarray"),
    ({"softcap": -1}, ValueError, "softcap must be finite and 0 (off) or more, got -1"),
    ({"softcap": 1j}, TypeError, "softcap must be a number, got complex"),
    # ---- masks
    ({"mask": np.ones((3, 5), F)}, TypeError,
     "mask must be bool or an integer type, got float32 [3,5] "
     "(numbers to add to the scores are bias)"),
    ({"mask": [[0.0] * 5]}, TypeError,
     "mask must be bool or an integer type, got float64 [1,5] "
     "(numbers to add to the scores are bias)"),
    ({"mask": np.ones((5, 3), bool)}, ValueError,
     "mask must broadcast to [B,Tq,Tk] = [2,3,5], got bool [5,3]"),
    ({"mask": "causal"}, TypeError, f"mask {NUMBERS} str 'causal'"),
    ({"mask": [[1, 0], [1]]}, ValueError, None),
    ({"padding_mask": np.ones((2, 5), F)}, TypeError,
     "padding_mask must be bool or an integer type, got float32 [2,5]"),
    ({"padding_mask": [True] * 5}, ValueError,
     "padding_mask must have the shape [B,Tk] = [2,5], got bool [5]"),
    ({"bias": np.ones((3, 5), bool)}, TypeError,
     "bias must be float32 where q is float32, got bool [3,5]"),
    ({"key_lengths": np.array([1.0, 2.0])}, TypeError,
     "key_lengths must be an integer type, got float64 [2]"),
    ({"key_lengths": [2, 6]}, ValueError,
     "key_lengths must be in 0 to Tk = 5, got 6 for batch entry 1"),
    ({"key_lengths": [2, -1]}, ValueError,
     "key_lengths must be in 0 to Tk = 5, got -1 for batch entry 1"),
    ({"key_lengths": 3}, TypeError, f"key_lengths {INTEGER_LIST} int 3"),
    ({"causal": "both"}, ValueError,
     "causal must be False, True, \"bottom_right\" or \"top_left\", got str 'both'"),
    ({"causal": 1}, TypeError,
     'causal must be False, True, "bottom_right" or "top_left", got int 1'),
    ({"causal_offset": 1, "causal": "top_left"}, ValueError,
     "causal_offset is given but causal is 'top_left', which names a corner; "
     "causal must be True or False if causal_offset is given"),
    ({"causal_offset": 1.5, "causal": True}, TypeError,
     "causal_offset must be an integer, got float 1.5"),
    ({"causal_offset": [0.5, 1.0], "causal": True}, TypeError,
     "causal_offset must be an integer type, got float64 [2]"),
    ({"causal_offset": 2**70, "causal": True}, ValueError,
     f"causal_offset must fit in 64 bits, got int {2**70}"),
    ({"causal_offset": [1, 2, 3], "causal": True}, ValueError,
     "causal_offset must have the shape [B] = [2], got int64 [3]"),
    ({"window": (1,)}, TypeError, "window must be a pair (left, right), got tuple of length 1"),
    ({"window": [1, 2, 3]}, TypeError, "window must be a pair (left, right), got list of length 3"),
    ({"window": 3}, TypeError, "window must be a pair (left, right), got int 3"),
    ({"window": (1.5, 0)}, TypeError, "window[0] must be an integer, got float 1.5"),
    ({"window": (1, "a")}, TypeError, "window[1] must be an integer, got str 'a'"),
    ({"window": np.array([1.0, 2.0])}, TypeError, "window[0] must be an integer, got float 1.0"),
    ({"window": (-2, 0)}, ValueError,
     "window[0] must be -1 (unbounded) or in 0 to 2^53, got -2"),
    ({"alibi_slopes": "steep"}, TypeError, f"alibi_slopes {NUMBERS} str 'steep'"),
    # ---- dropout
    ({"dropout": 0.1}, ValueError, "seed is absent but dropout is 0.1; dropout needs a seed"),
    ({"dropout": 1.0, "seed": 1}, ValueError, "dropout must be in [0,1), got 1"),
    ({"dropout": "0.1", "seed": 1}, TypeError, "dropout must be a number, got str '0.1'"),
    ({"dropout": 0.1, "seed": -1}, ValueError, f"seed {SEED} int -1"),
    ({"dropout": 0.1, "seed": 2**64}, ValueError, f"seed {SEED} int {2**64}"),
    ({"dropout": 0.1, "seed": 1.0}, TypeError, "seed must be an integer, got float 1.0"),
    ({"dropout": 0.1, "seed": True}, TypeError, "seed must be an integer, got bool True"),
    # ---- layout
    ({"layout": "tbhd"}, ValueError, "layout must be \"bhtd\" or \"bthd\", got str 'tbhd'"),
    ({"layout": "bthd"}, ValueError,
     'q must have rank 4 with layout "bthd", got float32 [2,3,8]'),
    # ---- results
    ({"v": None}, ValueError,
     "v is absent and no other result is requested, so there is nothing to compute"),
    ({"return_weights": "kept"}, ValueError,
     "return_weights must be False, True, \"dropped\" or \"both\", got str 'kept'"),
    ({"return_weights": 1}, TypeError,
     'return_weights must be False, True, "dropped" or "both", got int 1'),
    ({"return_scores": "all"}, ValueError,
     "return_scores must be None, \"raw\", \"capped\" or \"masked\", got str 'all'"),
    ({"return_scores": True}, TypeError,
     'return_scores must be None, "raw", "capped" or "masked", got bool True'),
    ({"return_lse": 1}, TypeError, "return_lse must be True or False, got int 1"),
    ({"return_row_max": None}, TypeError, "return_row_max must be True or False, got None"),
    ({"return_column_sums": "yes"}, TypeError,
     "return_column_sums must be False, True or integers [R], got str 'yes'"),
    ({"return_column_sums": 1}, TypeError,
     "return_column_sums must be False, True or integers [R], got int 1"),
    ({"return_column_sums": [0, 3]}, ValueError,
     "return_column_sums must be 0 or more and below Tq = 3, got 3 at entry 1"),
    ({"return_column_sums": [0.5]}, TypeError,
     "return_column_sums must be an integer type, got float64 [1]"),
    ({"rows": slice(None), "return_weights": True}, TypeError,
     f"rows {INTEGER_LIST} slice"),
    ({"rows": -1, "return_weights": True}, TypeError, f"rows {INTEGER_LIST} int -1"),
    ({"rows": range(2, 4), "return_weights": True}, ValueError,
     "rows must be 0 or more and below Tq = 3, got 3 at entry 1"),
    ({"return_column_sums": range(4)}, ValueError,
     "return_column_sums must be 0 or more and below Tq = 3, got 3 at entry 3"),
    ({"return_entropy": 1}, TypeError, "return_entropy must be True or False, got int 1"),
    ({"return_value_sums": [1]}, TypeError,
     "return_value_sums must be True or False, got list of length 1"),
    ({"return_value_sums": True, "v": None}, ValueError,
     "return_value_sums is given but v is absent"),
    ({"return_top": 2**62}, ValueError,
     "return_top may take at most 2^63 - 1 bytes, got int64 [2,3,4611686018427387904]"),
    ({"return_pooled": (2**31, 2**31)}, ValueError,
     "return_pooled may take at most 2^63 - 1 bytes, got float32 [2,2147483648,2147483648]"),
    ({"return_pooled": 4}, TypeError, "return_pooled must be None or (m, n), got int 4"),
    ({"return_pooled": (4,)}, TypeError,
     "return_pooled must be None or (m, n), got tuple of length 1"),
    ({"return_pooled": (4, 0)}, ValueError,
     "return_pooled must be (m, n), both 1 or more, got (4, 0)"),
    ({"return_pooled": (4, 1.5)}, TypeError, "return_pooled[1] must be an integer, got float 1.5"),
    ({"return_top": -1}, ValueError, "return_top must be 0 (off) or more, got int -1"),
    ({"return_top": 1.0}, TypeError, "return_top must be an integer, got float 1.0"),
    ({"return_top": True}, TypeError, "return_top must be an integer, got bool True"),
    # ---- threads
    ({"threads": -1}, ValueError, f"threads {THREADS} -1"),
    ({"threads": 4097}, ValueError, f"threads {THREADS} 4097"),
    ({"threads": 2**70}, ValueError, f"threads must fit in 64 bits, got int {2**70}"),
    ({"threads": 1.0}, TypeError, "threads must be an integer, got float 1.0"),
    ({"threads": True}, TypeError, "threads must be an integer, got bool True"),
]  # fmt: skip


def check(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    if message is not None:
        assert str(raised.value) == message


def name_of(case):
    """The id for pytest: the names of the wrong arguments."""
    return "-".join(case[0] if isinstance(case, tuple) else case)


@pytest.mark.parametrize("case", WRONG, ids=name_of)
def test_attention(case):
    change, error, message = case
    check(lambda: attend(**change), error, message and f"attention: {message}")


def is_backward(case):
    """Whether attention_backward refuses the case for the same reason.

    attention_backward has no arguments return_..., and refuses an absent v for another reason:
    `out` is given.
    """
    change = case[0]
    is_without_v = change.get("v", V) is None
    return not is_without_v and not any(name.startswith("return_") for name in change)


@pytest.mark.parametrize("case", [case for case in WRONG if is_backward(case)], ids=name_of)
def test_attention_backward(case):
    change, error, message = case
    # attention_backward takes no q8, and its errors do not mention CUDA tensors.
    message = message and message.replace(FLOATS_OR_Q8, FLOATS).replace(ON_GPU, "")
    check(lambda: backward(**change), error, message and f"attention_backward: {message}")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: backward(dout=None), ValueError,
         "attention_backward: dout, dlse and dweights are absent, so there is nothing to compute"),
        (lambda: backward(wanted=[]), ValueError,
         "attention_backward: wanted names no gradient, so there is nothing to compute"),
        (lambda: backward(lse=None), ValueError,
         "attention_backward: lse is absent but the backward pass always needs it"),
        (lambda: backward(out=None), ValueError,
         "attention_backward: out is absent but dout is given"),
        (lambda: backward(v=None), ValueError,
         "attention_backward: out is given but v is absent"),
        (lambda: backward(return_lse=True), TypeError,
         "attention_backward() got an unexpected keyword argument 'return_lse'"),
        (lambda: backward(dout=[1.0]), TypeError,
         f"attention_backward: dout {ARRAY} list of length 1"),
        (lambda: backward(dweights=MATRIX[:1]), ValueError,
         "attention_backward: dweights must have the shape [B,Tq,Tk] = [2,3,5], "
         "got float32 [1,3,5]"),
        (lambda: backward(dlse=LSE.astype(float)), TypeError,
         "attention_backward: dlse must be float32 where q is float32, got float64 [2,3]"),
        (lambda: backward(q=Q.astype(complex)), TypeError,
         f"attention_backward: q {FLOATS} complex128 [2,3,8]"),
        (lambda: qkv.softmax(None), ValueError, "softmax: x is absent"),
        (lambda: qkv.softmax({}), TypeError, f"softmax: x {ARRAY} dict"),
        (lambda: qkv.masked_softmax({}), TypeError, f"masked_softmax: x {ARRAY} dict"),
        (lambda: qkv.masked_softmax(["a"]), TypeError, f"masked_softmax: x {FLOATS} <U1 [1]"),
        (lambda: qkv.softmax(np.ones(3, complex)), TypeError,
         f"softmax: x {FLOATS} complex128 [3]"),
        (lambda: qkv.softmax(np.ones(3, bool)), TypeError, f"softmax: x {FLOATS} bool [3]"),
        (lambda: qkv.softmax(F(3)), ValueError,
         "softmax: x must have at least one axis, got float32 []"),
        (lambda: qkv.masked_softmax(Q, 3), TypeError,
         f"masked_softmax: valid_len {INTEGER_LIST} int 3"),
        (lambda: qkv.masked_softmax(Q, [1.0, 2.0]), TypeError,
         "masked_softmax: valid_len must be integers, got float64 [2]"),
        (lambda: qkv.masked_softmax(Q, [1, 9]), ValueError,
         "masked_softmax: valid_len must be in 0 to N = 8, got 9 for batch entry 1 "
         "(x float32 [2,3,8])"),
        (lambda: qkv.batch_dot(Q, None), ValueError, "batch_dot: b is absent"),
        (lambda: qkv.batch_dot([[1.0]], None), ValueError, "batch_dot: b is absent"),
        (lambda: qkv.batch_dot(Q, [[True]]), TypeError,
         "batch_dot: b must have the dtype of a, got bool [1,1] for float32 [2,3,8]"),
        (lambda: qkv.batch_dot(Q, K, transpose_b=1), TypeError,
         "batch_dot: transpose_b must be True or False, got int 1"),
        (lambda: qkv.batch_dot(Q.astype(complex), K), TypeError,
         f"batch_dot: a {FLOATS} complex128 [2,3,8]"),
        (lambda: qkv.CrossEntropy(reduction=np.ones(2)), ValueError,
         'CrossEntropy: reduction must be "none", "sum" or "mean", got array([1., 1.])'),
        (lambda: qkv.GRUCell(8, 2).forward(Q[0], return_step=np.ones(2)), TypeError,
         "GRUCell.forward: return_step must be True or False, got ndarray"),
        (lambda: qkv.Linear(2, 2).load_torch({"weight": Q}, prefix="a."), ValueError,
         "Linear.load_torch: no name begins with prefix 'a.'; no name has a dot"),
        (lambda: qkv.MultiHeadAttention(embed_dim=8, num_heads=2), TypeError,
         "MultiHeadAttention.__init__() got an unexpected keyword argument 'embed_dim'. "
         "Did you mean 'width'?"),
        (lambda: qkv.Dropout(p=0.1), TypeError,
         "Dropout.__init__() got an unexpected keyword argument 'p'. Did you mean 'dropout'?"),
        (lambda: qkv.DotProductAttention().forward(Q), TypeError,
         "DotProductAttention.forward() missing 2 required positional arguments: 'k' and 'v'"),
        (lambda: qkv.DotProductAttention().forward(Q, Q, Q, is_causal=True), TypeError,
         "DotProductAttention.forward() got an unexpected keyword argument 'is_causal'. "
         "Did you mean 'causal'?"),
        (lambda: qkv.set_threads(-1), ValueError, f"set_threads: n {THREADS} -1"),
        (lambda: qkv.set_threads(2.0), TypeError,
         "set_threads: n must be an integer, got float 2.0"),
        (lambda: qkv.set_threads(True), TypeError,
         "set_threads: n must be an integer, got bool True"),
    ],
)  # fmt: skip
def test_other_functions(call, error, message):
    check(call, error, message)


# ---- errors that objects raise -------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"q": strange.RaisingDlpack()},
        {"k": strange.RaisingDevice()},
        {"key_lengths": strange.RaisingDlpack()},
        {"scale": strange.RaisingNumber()},
        {"seed": strange.RaisingNumber()},
        {"return_top": strange.RaisingNumber()},
        {"window": (strange.RaisingNumber(), 0)},
    ],
    ids=name_of,
)
def test_errors_that_methods_of_arguments_raise(change):
    with pytest.raises(strange.Surprise):
        attend(**change)


def test_params_that_empty_themselves():
    random = np.random.default_rng(1)
    q, k, wk = (random.standard_normal(shape, F) for shape in [(2, 3, 3), (2, 5, 3), (3, 3)])
    others = {"Wk": wk, "v": random.standard_normal(3, F)}
    params = strange.ClearingParams(**others)

    def lse_with(params):
        return attend(q=q, k=k, score="additive", params=params, return_lse=True)[1]

    found = lse_with(params)
    assert params == {}
    assert np.array_equal(found, lse_with({"Wq": np.zeros((3, 3), F), **others}))


# ---- tensors of torch ----------------------------------------------------------------------------


GIVES = "must be an array on the CPU that exports its memory, got"


def tensor_cases(torch):
    """Pairs of a tensor for q, and the message of its TypeError after "attention: "."""
    return [
        (torch.ones(2, 3, 8, device="meta"),
         f"q {GIVES} Tensor (Unknown device type meta for Dlpack)"),
        (torch.ones(2, 3, 8, requires_grad=True),
         f"q {GIVES} Tensor (Can't export tensors that require gradient, use tensor.detach()); "
     "under autograd call qkv.torch.attention"),
        (torch.ones(2, 3, 8).to_sparse(),
         f"q {GIVES} Tensor (Can't export tensors with layout other than torch.strided)"),
        (torch.ones(2, 3, 8, dtype=torch.int32), f"q {FLOATS} int32 [2,3,8]"),
        (torch.ones(2, 3, dtype=torch.complex64), f"q {FLOATS} torch.complex64 [2,3]"),
    ]  # fmt: skip


@needs_torch
def test_tensors_as_numbers():
    check(lambda: attend(scale=torch.ones(2)), TypeError,
          "attention: scale must be a number, got Tensor")  # fmt: skip
    assert np.array_equal(attend(scale=torch.tensor(0.5)), attend(scale=0.5))


@needs_torch
@pytest.mark.parametrize("case", range(5))
def test_tensors(case):
    q, message = tensor_cases(torch)[case]
    check(lambda: attend(q=q), TypeError, f"attention: {message}")


# ---- strange memory that must work ---------------------------------------------------------------


def odd_memory(array):
    """A copy of the array at an odd address, unaligned unless an element is one byte."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    copy = np.frombuffer(memory.data, array.dtype, array.size, offset=1).reshape(array.shape)
    copy[...] = array
    assert copy.flags.aligned == (array.itemsize == 1)
    return copy


def between_elements(array):
    """A copy of the array in records with one more byte, so that most floats are unaligned."""
    records = np.zeros(array.shape, np.dtype([("value", array.dtype), ("more", np.uint8)]))
    records["value"] = array
    return records["value"]


@pytest.mark.parametrize(
    "change",
    [
        odd_memory,
        between_elements,
        lambda array: array.astype(array.dtype.newbyteorder("S")),
        lambda array: np.flip(np.flip(array).copy()),
        lambda array: memoryview(np.ascontiguousarray(array)),
        lambda array: np.ma.masked_array(array),
    ],
    ids=["not aligned", "records", "other byte order", "backwards", "memoryview", "masked_array"],
)
def test_unusual_memory_works(change):
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal(shape, F) for shape in [(2, 3, 8), (2, 5, 8), (2, 5, 6)])
    lengths, mask = np.array([2, 5]), random.random((3, 5)) < 0.8
    wanted = qkv.attention(q, k, v, key_lengths=lengths, mask=mask)
    out = qkv.attention(
        change(q), change(k), change(v), key_lengths=change(lengths), mask=change(mask)
    )
    assert type(out) is np.ndarray
    assert np.array_equal(out, wanted)


def repeated(*shape):
    """An array of any shape in four bytes of memory, with strides 0."""
    return np.lib.stride_tricks.as_strided(np.ones(1, F), shape, (0,) * len(shape))


HUGE = 2**50  # no machine has memory for that many results


# NumPy raises these errors, except those whose message begins with "attention:". Only the
# beginning of a message is compared.
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: qkv.softmax(repeated(HUGE, 3)), MemoryError, "Unable to allocate 12.0 PiB "),
        (lambda: qkv.masked_softmax(repeated(HUGE, 3)), MemoryError,
         "Unable to allocate 12.0 PiB "),
        (lambda: qkv.batch_dot(repeated(HUGE, 3), repeated(3, 3)), MemoryError,
         "Unable to allocate 12.0 PiB "),
        (lambda: qkv.batch_dot(repeated(2**40, 1), repeated(1, 2**40)), ValueError,
         "array is too big; "),
        (lambda: qkv.attention(repeated(HUGE, 4), repeated(5, 4), repeated(5, 4)), MemoryError,
         "Unable to allocate 16.0 PiB "),
        (lambda: qkv.attention(repeated(HUGE, 2, 3, 4), repeated(5, 4), repeated(5, 4)),
         MemoryError, "Unable to allocate 96.0 PiB "),
        (lambda: qkv.attention(repeated(HUGE, 4), repeated(HUGE, 4), None, return_weights=True),
         ValueError, "attention: return_weights may take at most 2^63 - 1 bytes, "
         "got float32 [1125899906842624,1125899906842624]"),
        (lambda: qkv.attention(repeated(3, 4), repeated(5, 4), None, return_top=HUGE), MemoryError,
         "Unable to allocate 12.0 PiB "),
        (lambda: qkv.attention(repeated(3, 4), repeated(5, 4), None, return_top=2**63 - 1),
         ValueError, "attention: return_top may take at most 2^63 - 1 bytes, "
         "got int64 [3,9223372036854775807]"),
    ],
)  # fmt: skip
def test_results_beyond_memory(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value).startswith(message)
