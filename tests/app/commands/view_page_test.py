#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv view -o FILE.html`, which need no browser; tests/app/page has those that do.

usage: view_page_test.py PROGRAM [TEST ...]
"""

import base64
import hashlib
import json
import re
import unittest
import zlib

import numpy as np
from program import Case
from random_maps import weights

WORDS = ["[CLS]", "the", "cat", "[SEP]"]
DATA = re.compile(r'<script type="([a-z/-]+)" id="([a-z0-9-]+)">(.*?)</script>\n', re.DOTALL)


def elements(document):
    """Returns the texts of a page's script elements that have data, by id."""
    return {name: text for _, name, text in DATA.findall(document)}


def stored(document, name, head):
    """Returns a map's float32 numbers, stored as four planes of bytes, deflated, in base64."""
    packed = base64.b64decode(elements(document)[name].split("\n")[head])
    return (
        np.frombuffer(zlib.decompress(packed, -15), np.uint8)
        .reshape(4, -1)
        .T.copy()
        .view(np.float32)
        .ravel()
    )


class Page(Case):
    def setUp(self):
        super().setUp()
        self.a = weights(2, 2, 3, 4, 4)
        self.save("a.npz", attn=self.a, src=[WORDS, ["a", "b", "c", "d"]])

    def save(self, name, **arrays):
        np.savez(self.dir / name, **arrays)

    def page(self, *arguments, **options):
        """Returns the document and its header."""
        self.run_qkv("--quiet", "view", *arguments, "-o", "x.html", **options)
        document = (self.dir / "x.html").read_text()
        return document, json.loads(elements(document)["page"])

    def test_the_low_end_of_the_colours_is_for_pictures(self):
        np.savez(self.dir / "a.npz", attn=np.full((2, 2), 0.5))
        line = self.refuse(2, "view", "a.npz", "--min", "0.1", "-o", "x.html")
        self.assertEqual(line, "qkv: --min is not for a page (.html), whose colours begin at 0\n")
        self.assertFalse((self.dir / "x.html").exists())

    def test_everything_by_default(self):
        document, header = self.page("a.npz")
        self.assertEqual([len(header[name]) for name in ("examples", "layers", "heads")], [2, 2, 3])
        self.assertEqual(header["examples"][0]["keys"]["tokens"], WORDS)
        self.assertEqual(header["examples"][0]["keys"]["special"], [0, 3])
        self.assertEqual(header["name"], "a.npz")
        for n, layer, head in ((0, 0, 0), (1, 1, 2)):
            np.testing.assert_array_equal(
                stored(document, f"map-{n}-0-{layer}", head), self.a[n, layer, head].ravel()
            )

    def test_selection(self):
        document, header = self.page(
            "a.npz", "--example", 1, "--layers", 1, "--heads", "2,0", "--keys", "1-2"
        )
        self.assertEqual([header["layers"], header["heads"]], [["layer 1"], ["head 2", "head 0"]])
        [example] = header["examples"]
        self.assertEqual(
            example["keys"], {"size": 2, "tokens": ["b", "c"], "indices": [1, 2], "special": []}
        )
        np.testing.assert_array_equal(
            stored(document, "map-0-0-0", 1), self.a[1, 1, 0, :, 1:3].ravel()
        )
        self.assertIn("2 of 4 keys not selected", example["notes"][0])

    def test_many_maps_are_all_there(self):
        self.save("many.npz", attn=weights(4, 20, 2, 2))
        _, header = self.page("many.npz")
        self.assertEqual([len(header["layers"]), len(header["heads"])], [4, 20])

    def test_options_of_looks(self):
        _, header = self.page(
            "a.npz",
            "--title",
            "T",
            "--axes",
            "to,from",
            "--scale",
            "log",
            "--colours",
            "cividis",
            "--max",
            0.5,
            "--hide-special",
        )
        self.assertEqual(
            [header[name] for name in ("title", "rows", "columns", "scale", "colours", "top")],
            ["T", "to", "from", "log", "cividis", 0.5],
        )
        self.assertEqual(header["examples"][0]["keys"]["tokens"], ["the", "cat"])

    def test_reductions(self):
        document, header = self.page("a.npz", "--reduce", "mean-heads", "--reduce", "max-layers")
        self.assertEqual([header["layers"], header["heads"]], [[""], [""]])
        self.near(stored(document, "map-1-0-0", 0), self.a[1].mean(1).max(0).ravel())
        self.assertEqual(
            header["examples"][0]["notes"][:2],
            ["mean of heads 0-2", "maximum of layers 0-1: rows need not sum to 1"],
        )

    def test_two_files(self):
        b = weights(2, 2, 3, 4, 4, seed=1)
        b[0, 0, 0, 0] = 0.5
        self.save("b.npz", attn=b, src=[["x", *WORDS[1:]], ["a", "b", "c", "d"]])
        document, header = self.page("a.npz", "--minus", "b.npz")
        self.assertEqual(header["other"], "b.npz")
        np.testing.assert_array_equal(stored(document, "map-0-1-1", 2), b[0, 1, 2].ravel())
        self.assertEqual(
            header["examples"][0]["notes"],
            [
                "a.npz minus b.npz",
                'tokens differ at 1 of 4 places, first at 0: "[CLS]" in a.npz, "x" in b.npz',
                "b.npz: example 0, layer 0, head 0: 1 of 4 rows do not sum to 1 "
                '(worst 2, query 0 "x")',
            ],
        )
        most = abs(self.a - b).max()
        self.near(header["magnitudes"][2], most, 1e-6)
        self.save("b.npz", attn=b[:1])
        self.assertIn(
            "must have example 1, as a.npz has, got 1 examples",
            self.refuse(3, "view", "a.npz", "--minus", "b.npz", "-o", "y.html"),
        )
        self.assertNotIn("y.html", self.names())

    def test_notes_are_warnings(self):
        self.a[1, 0, 0, 0] = 1
        self.save("a.npz", attn=self.a)
        err = self.run_qkv("view", "a.npz", "-o", "x.html").err
        self.assertEqual(
            err,
            "qkv: a.npz: example 1, layer 0, head 0: 1 of 4 rows do not sum to 1 "
            "(worst 4, query 0)\n",
        )

    def test_equal_bytes(self):
        document, _ = self.page("a.npz")
        self.assertEqual(self.page("a.npz")[0], document)
        piped = self.run_qkv(
            "--quiet",
            "view",
            "-",
            "-o",
            "-",
            "--format",
            "html",
            input=(self.dir / "a.npz").read_bytes(),
        )
        self.assertEqual(
            piped.out.replace('"name":""', '"name":"a.npz"').replace(">Attention<", ">a.npz<"),
            document,
        )

    def test_with_other_formats(self):
        self.run_qkv("--quiet", "view", "a.npz", "-o", "x.html", "-o", "x.svg", "-o", "x.json")
        self.assertEqual(
            len(json.loads(elements((self.dir / "x.html").read_text())["page"])["examples"]), 2
        )
        self.assertEqual(json.loads((self.dir / "x.json").read_text())["example"], 0)
        self.assertIn("</svg>", (self.dir / "x.svg").read_text())

    def test_the_policy_names_the_code(self):
        document, _ = self.page("a.npz")
        [policy] = re.findall('Content-Security-Policy" content="(.*?)"', document)
        rest = DATA.sub("", document)
        self.assertLessEqual(len(rest), 61_000)  # page_test.cc's limit of the code
        for tag in ("script", "style"):
            [code] = re.findall(f"<{tag}>(.*?)</{tag}>", rest, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
            self.assertIn(f"{tag}-src 'sha256-{digest}';", policy)
        self.assertTrue(policy.startswith("default-src 'none'; "))
        self.assertNotIn("unsafe", policy)

    def test_pooled_maps(self):
        q, k = np.random.default_rng(0).normal(size=(2, 1, 2, 300, 8)).astype(np.float32)
        np.save(self.dir / "q.npy", q)
        np.save(self.dir / "k.npy", k)
        self.run_qkv(
            "attend",
            "q.npy",
            "k.npy",
            "--causal",
            "--pool",
            "8,16",
            "--save",
            "entropy",
            "-o",
            "pooled.npz",
        )
        rows = np.load(self.dir / "pooled.npz")["entropy"].reshape(2, 300)
        _, header = self.page("pooled.npz")
        self.assertTrue(header["pooled"])
        self.assertIn("pooled: 8 rows stand for 300 queries", header["examples"][0]["notes"][0])
        self.assertEqual(
            [header["examples"][0][name]["size"] for name in ("queries", "keys")], [8, 16]
        )
        self.near([facts[2] for facts in header["examples"][0]["facts"][0]], rows.mean(-1), 1e-5)
        _, header = self.page("pooled.npz", "--heads", 1, "--queries", "0-3")
        self.assertFalse(header["pooled"])  # a part of the rows has no entropies
        self.assertFalse(self.page("a.npz")[1]["pooled"])

    def test_tokens_of_any_kind(self):
        tokens = ["</script>", "<!--", '"\\', "\u202e\x07"]
        self.save("a.npz", attn=self.a[0], src=tokens)
        document, header = self.page("a.npz", "--title", "</title>")
        self.assertEqual(header["examples"][0]["keys"]["tokens"], [*tokens[:3], "\ufffd"])
        self.assertEqual(document.count("</script"), document.count("<script"))
        self.assertIn("<title>&lt;/title&gt;</title>", document)


if __name__ == "__main__":
    unittest.main()
