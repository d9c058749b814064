#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the page of `qkv view -o x.html` for 12 layers x 12 heads of 512 tokens, in Chromium.

usage: page_speed.py QKV [--tokens N]
Run it with .venv-python/bin/python, which has the packages of python/requirements-browser.txt;
Debian's chromium must be installed. Weights are the softmax of normal numbers times 4. Prints the
time to write the file, its size, and medians of five of two times: from opening the file to the
first map, and of a switch to a head that was not shown before. These end when the frame after
drawing is shown; the browser is headless.
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import numpy as np
from playwright.sync_api import sync_playwright

LAYERS = HEADS = 12
OPENINGS = SWITCHES = 5
# Resolves with the milliseconds from `begin` until the first frame after drawing is shown.
DRAWN = """(begin) => new Promise((done) => {
    const look = () => {
        const isDrawn = Number(document.documentElement.dataset.drawn) === draws && isGridDrawn;
        if (!isDrawn) return setTimeout(look, 1);
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin), 0));
    };
    look();
})"""


def write_maps(path: pathlib.Path, tokens: int) -> None:
    """Writes peaked maps, float32 [LAYERS, HEADS, tokens, tokens]."""
    scores = 4 * np.random.default_rng(0).standard_normal(
        (LAYERS, HEADS, tokens, tokens), np.float32
    )
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    np.savez(
        path, attn=scores / scores.sum(-1, keepdims=True), src=[f"token{n}" for n in range(tokens)]
    )


def summary(times: list[float]) -> str:
    median, largest = statistics.median(times), max(times)
    return f"{median:.0f} ms (median of {len(times)}; largest {largest:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("qkv", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        maps, file = pathlib.Path(folder, "maps.npz"), pathlib.Path(folder, "page.html")
        write_maps(maps, options.tokens)
        begin = time.perf_counter()
        subprocess.run([options.qkv, "--quiet", "view", maps, "-o", file], check=True)
        print(f"written in {time.perf_counter() - begin:.1f} s: {file.stat().st_size / 1e6:.1f} MB")
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        opened = []
        for _ in range(OPENINGS):
            page.goto("about:blank")
            page.goto(file.as_uri(), wait_until="commit")
            page.wait_for_load_state("load")
            opened.append(page.evaluate(DRAWN, 0))
        print(f"opened in {summary(opened)}")
        switched = []
        for n in range(SWITCHES):  # to layer n + 2, head n + 2: 13 = HEADS + 1
            page.evaluate(f"window.begun = performance.now(), lockMap({13 * (n + 2)})")
            switched.append(page.evaluate(DRAWN, page.evaluate("begun")))
        print(f"another head in {summary(switched)}")
        browser.close()


if __name__ == "__main__":
    main()
