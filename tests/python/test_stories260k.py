# SPDX-License-Identifier: Apache-2.0
"""A trained Llama of 260,000 parameters in Transformers: what it writes with qkv and with eager.

Its files, in llama2.c's format, are data and not part of the project: without them the test is
skipped.
"""

import os
import pathlib
import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
pytest.importorskip("transformers", reason="register() is for Transformers")

import transformers  # noqa: E402

import qkv.torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("QKV_DATA_DIR") or ROOT.parent / "shared" / "data")
FOLDER = DATA / "stories260K"
START, STEPS = 1, 200

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="no stories260K in the data folder (set QKV_DATA_DIR)"
)


def halves(weight, heads):
    """The rows of a projection: rotary pairs are neighbours in the file, halves in Transformers."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def read_model():
    data = (FOLDER / "stories260K.bin").read_bytes()
    dim, hidden, layers, heads, key_heads, vocabulary, longest = struct.unpack_from("7i", data)
    numbers, at = np.frombuffer(data, np.float32, offset=28), 0

    def take(*shape):
        nonlocal at
        size = int(np.prod(shape))
        at += size
        return numbers[at - size : at].reshape(shape)

    key_width = dim // heads * key_heads
    state = {"model.embed_tokens.weight": take(vocabulary, dim)}
    shapes = {
        "input_layernorm": (dim,),
        "self_attn.q_proj": (dim, dim),
        "self_attn.k_proj": (key_width, dim),
        "self_attn.v_proj": (key_width, dim),
        "self_attn.o_proj": (dim, dim),
        "post_attention_layernorm": (dim,),
        "mlp.gate_proj": (hidden, dim),
        "mlp.down_proj": (dim, hidden),
        "mlp.up_proj": (hidden, dim),
    }
    rotated = {"self_attn.q_proj": heads, "self_attn.k_proj": key_heads}
    for name, shape in shapes.items():
        for n, weight in enumerate(take(layers, *shape)):
            weight = halves(weight, rotated[name]) if name in rotated else weight
            state[f"model.layers.{n}.{name}.weight"] = weight
    state["model.norm.weight"] = take(dim)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=dim, intermediate_size=hidden,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=key_heads,
        max_position_embeddings=longest, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=START, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert (missing, unknown) == (["lm_head.weight"], [])  # it is the embedding
    return model


def read_pieces(count):
    data, at, pieces = (FOLDER / "tok512.bin").read_bytes(), 4, []
    for _ in range(count):
        _, length = struct.unpack_from("fi", data, at)
        pieces.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return pieces


def text_of(tokens):
    """The bytes of tokens after the start token, whose successor loses a leading space."""
    pieces, text = read_pieces(512), b""
    for before, token in zip(tokens, tokens[1:]):
        piece = pieces[token]
        if piece.startswith(b"<0x"):
            piece = bytes([int(piece[3:5], 16)])
        text += piece[1:] if before == START and piece.startswith(b" ") else piece
    return text


def test_its_greedy_text_is_the_reference():
    transformers.logging.set_verbosity_error()
    qkv.torch.register()
    model = read_model()
    start = torch.tensor([[START]])
    options = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None}
    written = {}
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        for cache in ("dynamic", "static"):
            tokens = model.generate(
                start, attention_mask=torch.ones_like(start), cache_implementation=cache, **options
            )
            written[implementation, cache] = tokens[0].tolist()
    want = written["eager", "dynamic"]
    assert len(want) == 1 + STEPS
    assert [call for call, tokens in written.items() if tokens != want] == []
    assert text_of(want) == (FOLDER / "greedy-200-steps.txt").read_bytes()


def test_a_batch_padded_on_the_left():
    qkv.torch.register()
    model = read_model().double()
    whole = model.generate(torch.tensor([[START]]), max_new_tokens=40, do_sample=False)[0]
    first, second = whole[:30], whole[:12]
    words = torch.stack([first, torch.cat([torch.zeros(18, dtype=torch.long), second])])
    model.set_attn_implementation("qkv")
    got = model.generate(words, attention_mask=(words != 0).long(), max_new_tokens=11,
                         do_sample=False, pad_token_id=0)  # fmt: skip
    assert got[0].tolist() == whole[:41].tolist()
    assert got[1, 18:].tolist() == whole[:23].tolist()
