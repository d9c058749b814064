#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/seeds.md and docs/gallery.md.

usage: .venv-python/bin/python scripts/gallery.py --write    write the pictures into docs/images
       .venv-python/bin/python scripts/gallery.py --check    compare them with docs/images

Most are outputs of the notebooks, as stored in examples/notebooks. The picture of a small Llama's
heads needs the model's files (stories260K in QKV_DATA_DIR) and Transformers; without them it stays
as it is. --check exits with 1 if a picture differs. In the two that are computed here, colours of
cells may differ a little, because CPU targets round differently. The picture of the page is not
compared, because browsers differ; it also needs Chromium and python/requirements-browser.txt.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from functools import partial

import numpy as np

import qkv
from qkv._picture import _length, _with_own_names

ROOT = pathlib.Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
DATA = pathlib.Path(os.environ.get("QKV_DATA_DIR") or ROOT.parent / "shared" / "data")
GAP = 24  # between pictures, in units of the SVG
PAGE = "gallery/page.png"
NEAR = 24  # of 255: a difference of colours that counts as none; zero and almost zero differ by 22

# Each picture of a notebook: its notebook, the cells that show it, and the number of columns.
FROM_NOTEBOOKS = {
    "seeds/dot-product.svg": ("000", ["toy"], 1),
    "seeds/scale.svg": ("000", ["widths", "widths-scaled"], 2),
    "seeds/mask.svg": ("000", ["masked"], 1),
    "seeds/dropout.svg": ("000", ["dropout"], 1),
    "seeds/ranks.svg": ("000", ["broadcast-picture"], 1),
    "seeds/word-vectors.svg": ("001", ["words"], 1),
    "seeds/single-head.svg": ("001", ["output"], 1),
    "seeds/transposed.svg": ("001", ["transposed"], 1),
    "seeds/wide-heads.svg": ("001", ["heads"], 1),
    "seeds/masked-softmax.svg": ("002", ["masked-softmax-call", "masked-softmax-weights"], 2),
    "seeds/batch-dot.svg": ("002", ["batch-dot-call"], 1),
    "seeds/lengths.svg": ("002", ["dot-product-weights"], 1),
    "seeds/perceptron.svg": ("002", ["mlp-steps"], 1),
    "seeds/additive.svg": ("003", ["additive"], 1),
    "seeds/bilinear.svg": ("003", ["bilinear"], 1),
    "seeds/split-heads.svg": ("003", ["weights"], 1),
    "seeds/padding.svg": ("003", ["padding"], 1),
    "gallery/four-scores.svg": ("003", ["compared"], 2),
    "gallery/alignments.svg": ("003", ["alignment-pictures"], 3),
}


# ---- pictures of the notebooks ------------------------------------------------------------------


def outputs(notebook, cells):
    """The SVGs that these cells show, in the notebook's order."""
    path = ROOT / "examples" / "notebooks" / f"{notebook}.ipynb"
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["id"] in cells:
            shown = [output["data"]["image/svg+xml"] for output in cell["outputs"]
                     if "image/svg+xml" in output.get("data", {})]  # fmt: skip
            assert shown, f"{path.name}: cell {cell['id']} shows no picture"
            found += ["".join(lines) for lines in shown]
    return found


def grid(documents, columns):
    """One SVG of the documents in rows of `columns`; a single document is returned as it is."""
    if len(documents) == 1:
        return documents[0]
    parts, y, width = [], 0.0, 0.0
    for start in range(0, len(documents), columns):
        x, height = 0.0, 0.0
        for n, document in enumerate(documents[start : start + columns], start):
            document = re.sub(r"<[^>]+>", partial(_with_own_names, n), document)
            begin = document.index("<svg ")
            head = document[begin : document.index(">", begin)]
            parts.append(f'<svg x="{x:g}" y="{y:g}"{document[begin + 4 :].rstrip()}')
            x += _length(head, "width") + GAP
            height = max(height, _length(head, "height"))
        y += height + GAP
        width = max(width, x)
    size = f'width="{width - GAP:g}" height="{y - GAP:g}"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    inner = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" {size}>\n{inner}\n</svg>\n'


# ---- pictures that are computed here ------------------------------------------------------------


def pooled():
    """16,384 tokens in nine parts, some of them repeated, as 96 x 96 cells for three heads.

    A token's vector has its part's topic and its place in the part. Head 0 sees the topic, head 1
    the place, head 2 both.
    """
    verse, chorus = ("verse", 2200), ("chorus", 1400)
    parts = [verse, chorus, verse, chorus, ("bridge", 2584), verse, chorus, chorus, ("end", 1600)]
    random = np.random.default_rng(16384)
    topics = {name: 1.2 * random.standard_normal(16) for name in dict(parts)}
    topic = np.concatenate([np.tile(topics[name], (size, 1)) for name, size in parts])
    place = np.concatenate([np.arange(size) for _, size in parts])
    angle = 2 * np.pi * place[:, np.newaxis] / 5600 * 2.0 ** np.arange(8)
    waves = 3.2 * np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    heads = [(topic, 0 * waves), (0 * topic, waves), (topic, waves)]
    x = np.stack([np.concatenate(head, axis=-1) for head in heads]).astype(np.float32)[np.newaxis]
    (cells,) = qkv.attention(x, x, None, causal=True, return_pooled=(96, 96))
    return qkv.show(
        cells[0], scale="log", cell_titles="never", axes=("groups of queries", "groups of keys"),
        title=f"{x.shape[2]:,} tokens: by topic, by place, by both",
    ).svg  # fmt: skip


def stories(**options):
    """A picture of every head of stories260K, or None if its files or Transformers are missing."""
    if not (DATA / "stories260K").exists() or importlib.util.find_spec("transformers") is None:
        return None
    path = ROOT / "examples" / "python" / "stories260k.py"
    found = importlib.util.spec_from_file_location("stories260k", path)
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        example.main(DATA / "stories260K", pathlib.Path(folder, "heads.npz"))
        with np.load(pathlib.Path(folder, "heads.npz")) as file:
            weights, tokens = file["attn"], file["src"].ravel().tolist()
    return qkv.show(
        weights, keys=tokens, layers="all", heads="all", title="stories260K: 5 layers of 8 heads",
        **options,
    )  # fmt: skip


def stories_heads():
    """Every head of stories260K for its first tokens, or None as from stories()."""
    picture = stories(tokens="0-12", cell_titles="never", notes="aside")
    return picture and picture.svg


def page():
    """A PNG of the page of stories260K in Chromium, or None if what it needs is missing."""
    chromium = shutil.which("chromium")
    picture = stories() if chromium and importlib.util.find_spec("playwright") else None
    if picture is None:
        return None
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="qkv-") as folder, sync_playwright() as playwright:
        file = pathlib.Path(folder, "stories.html")
        picture.save(file)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 920}, color_scheme="light")
        tab.goto(f"{file.as_uri()}#layer=2&head=3")
        tab.wait_for_function("document.documentElement.dataset.drawn > 0")
        tab.wait_for_timeout(500)
        png = tab.screenshot()
        browser.close()
    return png


COMPUTED = {"gallery/pooled.svg": pooled, "stories-heads.svg": stories_heads}


# ---- comparison ---------------------------------------------------------------------------------


def cells_of(svg):
    """{(map, column, row): colour} of all cells that are filled with one colour."""
    found = {}
    for number, part in enumerate(svg.split("-map")[1:]):
        for colour, path in re.findall(r'<path fill="#(\w{6})"[^>]* d="([^"]*)"', part):
            for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", path):
                for column in range(int(x), int(x) + int(width)):
                    found[number, column, int(y)] = bytes.fromhex(colour)
    return found


def is_close(stored, fresh):
    """Whether two pictures have the same texts, and cells whose colours are close."""
    texts = [re.findall(r">([^<>]*\S[^<>]*)</", svg) for svg in (stored, fresh)]
    before, after = cells_of(stored), cells_of(fresh)
    return (
        texts[0] == texts[1]
        and len(before) > 0
        and before.keys() == after.keys()
        and all(abs(a - b) <= NEAR for cell in before for a, b in zip(before[cell], after[cell]))
    )


def pictures():
    """(name, SVG, whether the stored picture must be equal byte for byte) of each picture."""
    for name, (notebook, cells, columns) in FROM_NOTEBOOKS.items():
        yield name, grid(outputs(notebook, cells), columns), True
    for name, make in COMPUTED.items():
        svg = make()
        if svg is None:
            print(f"{name}: not made, because stories260K or Transformers is missing")
        else:
            yield name, svg, False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    options = parser.parse_args()
    count = changed = 0
    for name, svg, exactly in pictures():
        count += 1
        path = IMAGES / name
        stored = path.read_text(encoding="utf-8") if path.exists() else ""
        if stored == svg or (not exactly and is_close(stored, svg)):
            continue
        changed += 1
        print(f"docs/images/{name} {'is written' if options.write else 'differs'}")
        if options.write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(svg, encoding="utf-8")
    image = page() if options.write else None
    if image is not None:
        (IMAGES / PAGE).write_bytes(image)
        print(f"docs/images/{PAGE} is written")
    print(f"{count} pictures, {changed} that changed")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
