# SPDX-License-Identifier: Apache-2.0
"""Saves all heads of stories260K, a trained Llama of 260,000 parameters, from llama2.c's format.

    python examples/python/stories260k.py FOLDER heads.npz
    qkv view heads.npz --layers 1 -o heads.svg
    qkv stats heads.npz

FOLDER has stories260K.bin and tok512.bin (https://github.com/karpathy/llama2.c, "tinyllamas"). The
model becomes Transformers' LlamaForCausalLM, writes a few words, reads them again, and
`qkv.torch.look` records all weights of all heads.
"""

import pathlib
import struct
import sys

import numpy as np
import torch
import transformers

import qkv.torch

START, END = 1, 2
WRITTEN = 24  # tokens after the start token


def halves(weight, heads):
    """Reorders a projection's rows: RoPE pairs neighbours in the file, halves in Transformers."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def read_model(folder):
    """Reads stories260K.bin and returns the model in evaluation mode."""
    data = (folder / "stories260K.bin").read_bytes()
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
        bos_token_id=START, eos_token_id=END,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert (missing, unknown) == (["lm_head.weight"], [])  # lm_head is tied to the embedding
    return model


def read_pieces(folder, count=512):
    """Reads tok512.bin and returns the bytes of each token."""
    # The file begins with the longest token's length in 4 bytes. A token is score, length, bytes.
    data, at, pieces = (folder / "tok512.bin").read_bytes(), 4, []
    for _ in range(count):
        _, length = struct.unpack_from("fi", data, at)
        pieces.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return pieces


def main(folder, path):
    """Writes the attention file, and prints what the model wrote."""
    folder = pathlib.Path(folder)
    model, pieces = read_model(folder), read_pieces(folder)
    words = model.generate(torch.tensor([[START]]), max_new_tokens=WRITTEN, do_sample=False)
    # A token of one space is saved as SentencePiece writes it, since "" would stand for padding.
    tokens = ["<s>", *(pieces[word].decode().strip() or "▁" for word in words[0, 1:])]
    with torch.no_grad(), qkv.torch.look(model, rows=slice(None)) as seen:
        model(words)
    seen.save(path, tokens=tokens)
    print(b"".join(pieces[word] for word in words[0, 1:]).decode().strip())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
