#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory of looking: qkv.torch.look against eager's output_attentions, in one model.

usage: look_memory.py [--tokens T] [--heads H]

A small Llama with random parameters reads T tokens, in three processes: with sdpa alone, with sdpa
while qkv.torch.look records, and with eager and output_attentions=True. The peak of the resident
memory (ru_maxrss) of the first is subtracted from those of the others. Eager takes about 3.5 GiB for
each head at 16,384 tokens.
"""

import argparse
import resource
import subprocess
import sys

LAYERS, WIDTH = 2, 64
TOP, ROWS = 8, (0, -2, -1)


def run(how, tokens, heads):
    """Runs the model once, and prints the peak in KiB."""
    import torch
    import transformers

    import qkv.torch

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=tokens,
    )
    model = transformers.LlamaModel(config).eval()
    model.set_attn_implementation("eager" if how == "eager" else "sdpa")
    words = torch.randint(3, 64, (1, tokens))
    options = {"use_cache": False, "output_attentions": how == "eager"}
    with torch.no_grad():
        if how == "look":
            asked = {"rows": ROWS, "top": TOP, "column_sums": True, "entropy": True}
            asked.update(value_sums=True, pool=(64, 64))
            with qkv.torch.look(model, **asked) as seen:
                model(words, **options)
            assert [layer.weights.shape[2:] for layer in seen] == [(len(ROWS), tokens)] * LAYERS
        else:
            results = model(words, **options)
            assert how == "plain" or len(results.attentions) == LAYERS
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def peak(how, tokens, heads):
    """The peak of another process, in MiB."""
    command = [sys.executable, __file__, "--tokens", str(tokens), "--heads", str(heads)]
    done = subprocess.run([*command, "--how", how], stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1024


def main():
    """Prints both, and their ratio."""
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2][len("usage: "):])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--how", choices=("plain", "look", "eager"))
    given = parser.parse_args()
    if given.how:
        run(given.how, given.tokens, given.heads)
        return
    plain, look, eager = (peak(how, given.tokens, given.heads) for how in ("plain", "look", "eager"))
    print(f"{given.tokens} tokens, {LAYERS} layers of {given.heads} heads: {plain:.0f} MiB alone")
    print(f"  qkv.torch.look, {len(ROWS)} rows, top {TOP}, sums, cells: {look - plain:.1f} MiB more")
    print(f"  eager with output_attentions: {eager - plain:.1f} MiB more")
    print(f"  ratio {100 * (look - plain) / (eager - plain):.2f} %")


if __name__ == "__main__":
    main()
