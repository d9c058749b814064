# SPDX-License-Identifier: Apache-2.0
"""qkv::cuda::attention of PyTorch tensors, and its gradients, through bench/cuda/calls.cc.

This module needs neither the Python package of qkv nor a compiler.
"""

import ctypes
import math

import torch

MOST_AXES = 8
DTYPES = {
    torch.bfloat16: b"bfloat16",
    torch.float16: b"float16",
    torch.float32: b"float32",
    torch.float64: b"float64",
    torch.bool: b"bool",
    torch.uint8: b"uint8",
    torch.int32: b"int32",
    torch.int64: b"int64",
}
# The largest relative error of a number that is rounded to a type. For float32 it counts as 0,
# since bounds have larger terms.
UNITS = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 0}


class Array(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.c_int64 * MOST_AXES),
        ("strides", ctypes.c_int64 * MOST_AXES),
    ]

    def put(self, x):
        self.data, self.dtype, self.rank = x.data_ptr(), DTYPES[x.dtype], x.dim()
        self.shape[: x.dim()] = x.shape
        self.strides[: x.dim()] = x.stride()


INPUTS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
OPTIONS = ("bias", "keep", "padding", "key_lengths", "alibi", "sinks", "offsets")
ADDITIVE = ("wq", "wk", "score_v", "score_b")  # parameters of an additive score
OUTPUTS = ("out", "lse", "row_max")
SUMS = ("column_sums", "value_sums", "entropy", "weights")


class Call(ctypes.Structure):
    _fields_ = [
        *((name, Array) for name in INPUTS + OPTIONS + ADDITIVE + OUTPUTS + SUMS),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("causal", ctypes.c_int),
        ("corner", ctypes.c_int),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("dropout", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
    ]


class Gradients(ctypes.Structure):
    _fields_ = [(name, Array) for name in ("dout", "dlse", "dq", "dk", "dv")]


class Qkv:
    """The library of bench/cuda/calls.cc. `stream_of` gives the stream of a device as a number."""

    def __init__(
        self, path, stream_of=lambda device: torch.cuda.current_stream(device).cuda_stream
    ):
        self.library = ctypes.CDLL(path)
        self.stream_of = stream_of
        self.library.qkv_cuda_attention.argtypes = [ctypes.POINTER(Call)]
        self.library.qkv_cuda_attention.restype = ctypes.c_char_p
        self.library.qkv_cuda_attention_backward.argtypes = [
            ctypes.POINTER(Call),
            ctypes.POINTER(Gradients),
        ]
        self.library.qkv_cuda_attention_backward.restype = ctypes.c_char_p
        self.library.qkv_cuda_why_no_device.restype = ctypes.c_char_p
        self.library.qkv_cuda_size_of_call.restype = ctypes.c_int64
        if self.library.qkv_cuda_size_of_call() != ctypes.sizeof(Call):
            raise RuntimeError(f"{path}: its QkvCall has another size than the one of this script")

    def why_no_device(self):
        return self.library.qkv_cuda_why_no_device().decode()

    def prepared(self, q, k, v, sums=(), **options):
        """Returns a function that puts a call into the current stream, and the call's results: out,
        lse, row_max, and those of SUMS that `sums` names. Options are cu_seqlens_q, cu_seqlens_k,
        the names of OPTIONS and ADDITIVE, the numbers of Call, and `out`, an array to write to. The
        other results are first filled with NaN, to show elements that the call does not write."""
        call = Call(scale=math.nan, window_left=-1, window_right=-1)
        packed = options.get("cu_seqlens_q") is not None
        heads = q.shape[1] if packed else q.shape[-3]
        rows = (heads, q.shape[0]) if packed else q.shape[:-1]
        out_shape = (*q.shape[:-1], v.shape[-1])
        arrays = {
            "q": q, "k": k, "v": v,
            "out": options.pop("out", None),
            "lse": torch.full(rows, math.nan, device=q.device),
            "row_max": torch.full(rows, math.nan, device=q.device),
        }  # fmt: skip
        if arrays["out"] is None:
            arrays["out"] = torch.full(out_shape, math.nan, dtype=q.dtype, device=q.device)
        shapes = {
            "column_sums": (*q.shape[:-2], k.shape[-2]),
            "value_sums": (*q.shape[:-2], k.shape[-2]),
            "entropy": rows,
            "weights": (*rows, k.shape[-2]),
        }
        for name in sums:
            arrays[name] = torch.full(shapes[name], math.nan, device=q.device)
        for name in ("cu_seqlens_q", "cu_seqlens_k", *OPTIONS, *ADDITIVE):
            if options.get(name) is not None:
                arrays[name] = options.pop(name)
        for name, x in arrays.items():
            getattr(call, name).put(x)
        for name, value in options.items():
            setattr(call, name, int(value) if name in ("causal", "corner") else value)
        call.device = q.device.index or 0

        def run():
            call.stream = self.stream_of(q.device)
            error = self.library.qkv_cuda_attention(ctypes.byref(call))
            if error is not None:
                raise RuntimeError(error.decode())

        run.arrays = arrays  # so that their memory is not freed
        run.call = call
        return run, tuple(arrays[name] for name in (*OUTPUTS, *sums))

    def prepared_backward(self, dout, q, k, v, **options):
        """Runs a forward pass. Returns a function that puts its backward pass into the current
        stream, and the results (dq, dk, dv)."""
        forward, _ = self.prepared(q, k, v, **options)
        forward()
        arrays = {"dout": dout}
        for name, x in (("dq", q), ("dk", k), ("dv", v)):
            arrays[name] = torch.full_like(x, math.nan)
        gradients = Gradients()
        for name, x in arrays.items():
            getattr(gradients, name).put(x)

        def run():
            forward.call.stream = self.stream_of(q.device)
            error = self.library.qkv_cuda_attention_backward(
                ctypes.byref(forward.call), ctypes.byref(gradients)
            )
            if error is not None:
                raise RuntimeError(error.decode())

        run.arrays = forward.arrays | arrays  # so that their memory is not freed
        return run, tuple(arrays[name] for name in ("dq", "dk", "dv"))

    def attend(self, q, k, v, **options):
        run, results = self.prepared(q, k, v, **options)
        run()
        return results


# ---- attention in float64 ------------------------------------------------------------------------


def philox(j, i, h, b, seed):
    """The word of Philox4x32-10 that decides whether dropout keeps a weight, for each weight; the
    indices are int64 tensors that broadcast."""
    low = 0xFFFFFFFF
    shape = torch.broadcast_shapes(j.shape, i.shape, h.shape, b.shape)
    counter = [x.expand(shape).clone() for x in (j // 4, i, h, b)]
    key = [seed & low, seed >> 32 & low]
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32 & low) ^ counter[1] ^ key[0],
            second & low,
            (first >> 32 & low) ^ counter[3] ^ key[1],
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    words = torch.stack(counter)
    return words.gather(0, (j % 4).expand(shape)[None])[0]


class Expected:
    """out, lse, row_max and weights (before dropout) of the queries `rows` of q [B,H,Tq,D] in
    float64. Bounds of errors use `size`, the sums of weights times |v|, and `score_error`."""

    def __init__(self, q, k, v, rows=None, scale=None, softcap=0.0, causal=False, corner=0,
                 window_left=-1, window_right=-1, bias=None, keep=None, padding=None,
                 key_lengths=None, alibi=None, sinks=None, offsets=None, dropout=0.0,
                 seed=0, wq=None, wk=None, score_v=None, score_b=None):  # fmt: skip
        B, H, Tq, D = q.shape
        Tk, device = k.shape[2], q.device
        i = torch.arange(Tq, device=device) if rows is None else rows
        if scale is None:
            scale = 1 / math.sqrt(D) if wq is None else 1
        k, v = (x.double().repeat_interleave(H // x.shape[1], 1) for x in (k, v))
        q = q.double()[:, :, i]
        k = k.nan_to_num(0, 0, 0)  # cases have NaN and infinities in keys that no query attends to
        if wq is None:
            s = q @ k.mT * scale
            size = (D + 8) * q.norm(dim=-1).max() * k.norm(dim=-1).max()
        else:
            s, size = _additive(q, k, wq, wk, score_v, score_b)
            s = s * scale
        self.score_error = 2**-23 * abs(scale) * float(size)
        j = torch.arange(Tk, device=device)
        shift = torch.full((B,), 0 if corner else Tk - Tq, device=device)
        diagonal = (shift if offsets is None else offsets).view(B, 1, 1, 1) + i.view(1, 1, -1, 1)
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + _rows_of(bias.double(), i)
        if alibi is not None:
            s = s - alibi.double().view(-1, H, 1, 1) * (diagonal - j).abs()
        live = torch.ones(s.shape, dtype=torch.bool, device=device)
        if causal:
            live &= j <= diagonal
        if window_left >= 0:
            live &= j >= diagonal - window_left
        if window_right >= 0:
            live &= j <= diagonal + window_right
        if keep is not None:
            live &= _rows_of(keep != 0, i)
        if padding is not None:
            live &= (padding == 0).view(B, 1, 1, Tk)
        if key_lengths is not None:
            of_row = key_lengths.view(B, 1, -1, 1)
            live &= j < (of_row if of_row.shape[2] == 1 else of_row[:, :, i])
        s = s.masked_fill(~live, -math.inf)
        if sinks is not None:
            s = torch.cat([s, sinks.double().view(1, H, 1, 1).expand(B, H, len(i), 1)], -1)
        self.row_max = s.amax(-1) if s.shape[-1] else s.new_full(s.shape[:-1], -math.inf)
        self.lse = torch.logsumexp(s, -1)
        w = torch.exp(s - self.lse[..., None].nan_to_num(0, 0, 0))[..., :Tk]
        w = w.masked_fill(~live, 0)
        self.weights = w
        if dropout:
            heads, entries = (torch.arange(n, device=device) for n in (H, B))
            word = philox(j, i[:, None], heads[:, None, None], entries[:, None, None, None], seed)
            w = w * (word >= math.floor(dropout * 2**32)) / (1 - dropout)
        v = v.nan_to_num(0, 0, 0)  # cases have NaN and infinities in values that no query sees
        self.out = w @ v
        self.size = w @ v.abs()

    def difference(self, results, dtype, rows=None):
        """How results differ from these by more than their bounds, in words; "" if they do not."""
        out, lse, row_max = (x if rows is None else x[:, :, rows] for x in results)
        e = self.score_error
        unit = UNITS[dtype]
        bounds = {
            "out": (
                out,
                self.out,
                unit * self.out.abs() + (unit + 2 * e + 1e-5) * self.size + 1e-6,
            ),
            "lse": (lse, self.lse, e + 1e-5 * (1 + self.lse.abs())),
            "row_max": (row_max, self.row_max, e + 1e-5 * (1 + self.row_max.abs())),
        }
        for name, (got, want, bound) in bounds.items():
            got = got.double()
            right = (got == want) | ((got - want).abs() <= bound)
            if not bool(right.all()):
                worst = ((got - want).abs() / bound).masked_fill(right, 0)
                at = tuple(int(n) for n in (~right).nonzero()[0])
                return (
                    f"{name}: {int((~right).sum())} of {right.numel()} differ, at {list(at)}: "
                    f"got {float(got[at]):.6g}, want {float(want[at]):.6g}; "
                    f"worst {float(worst.nan_to_num(math.inf).max()):.3g} bounds"
                )
        return ""


def _additive(q, k, wq, wk, v, b):
    """(scores sum_u v_u tanh((wq q + b)_u + (wk k)_u) of all pairs, size). A multiple of `size`
    bounds the scores' error by projections, tanh and the sum over u (docs/semantics.md)."""
    wq, wk, v = (x.double() for x in (wq, wk, v))
    x, y = q @ wq.mT, k @ wk.mT
    if b is not None:
        x = x + b.double()
    s = sum(v[u] * torch.tanh(x[..., u, None] + y[..., None, :, u]) for u in range(len(v)))
    of_rows = sum(
        (w.shape[1] + 2) * w.norm(dim=1).max() * rows.norm(dim=-1).max()
        for w, rows in ((wq, q), (wk, k))
    )
    return s, (of_rows + 40 + len(v) / 32) * v.abs().sum()


def _rows_of(x, i):
    """The rows i of a matrix that broadcasts to [B,H,Tq,Tk]."""
    return x if x.dim() < 2 or x.shape[-2] == 1 else x[..., i, :]
