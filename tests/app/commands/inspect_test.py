#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv inspect` on files of every kind.

usage: inspect_test.py PROGRAM [TEST ...]
"""

import json
import unittest
import zipfile

import measured
import numpy as np
from program import PROGRAM, Case


class Inspect(Case):
    def json(self, *arguments):
        return json.loads(self.run_qkv("inspect", "--json", *arguments).out)["files"]

    def test_arrays(self):
        x = np.array([[1.5, np.nan, -2], [np.inf, 4, -np.inf]])
        np.savez(self.dir / "a.npz", x=x, n=np.arange(3, dtype=np.uint64) + 2**63,
                 b=np.array([True, False]), e=np.zeros((0, 3), np.float16), t=["a", "b\n"])
        done = self.run_qkv("inspect", "a.npz")
        self.assertIn("a.npz: 5 arrays (npz)", done.out)
        self.assertIn("min -2, max 4, mean 1.16667, NaN 1, inf 2", done.out)
        self.assertIn(r'"a" "b\x0a"', done.out)
        arrays = {array["name"]: array for array in self.json("a.npz")[0]["arrays"]}
        self.assertEqual((arrays["x"]["shape"], arrays["x"]["order"]), ([2, 3], "C"))
        self.assertEqual((arrays["x"]["nan"], arrays["x"]["inf"]), (1, 2))
        self.assertEqual((arrays["b"]["min"], arrays["b"]["max"]), (0, 1))
        self.assertEqual(arrays["n"]["max"], float(2**63 + 2))
        self.assertEqual((arrays["e"]["dtype"], arrays["e"]["bytes"]), ("float16", 0))
        self.assertEqual((arrays["t"]["dtype"], arrays["t"]["first"]), ("text", ["a", "b\n"]))

    def test_types_that_are_not_read(self):
        header = json.dumps({
            "w": {"dtype": "F8_E4M3", "shape": [2, 3], "data_offsets": [0, 6]},
            "scale": {"dtype": "F32", "shape": [1], "data_offsets": [6, 10]},
            "odd": {"dtype": "\x1b[1m", "shape": [5], "data_offsets": [10, 11]}})
        data = bytes(6) + np.float32(1.5).tobytes() + bytes(1)
        self.file("a.safetensors", len(header).to_bytes(8, "little") + header.encode() + data)
        out = self.run_qkv("inspect", "a.safetensors").out
        self.assertIn("a.safetensors: 3 arrays (safetensors)", out)
        self.assertRegex(out, r"\n  w +F8_E4M3 +\[2,3\] +not read\n")
        self.assertRegex(out, r"\n  scale +float32 +\[1\] +4 bytes, C order +min 1.5")
        self.assertRegex(out, r"\n  odd +\\x1b\[1m +\[5\] +not read\n")
        w = self.json("a.safetensors")[0]["arrays"][0]
        self.assertEqual(w, {"name": "w", "dtype": "F8_E4M3", "shape": [2, 3], "read": False})

    def test_memory_order_as_stored(self):
        x = np.arange(6.0).reshape(2, 3)
        np.save(self.dir / "f.npy", np.asfortranarray(x))
        np.savez(self.dir / "f.npz", f=np.asfortranarray(x).astype(">f4"), c=x)
        self.assertIn("48 bytes, Fortran order  min 0", self.run_qkv("inspect", "f.npy").out)
        orders = [array["order"] for array in self.json("f.npz")[0]["arrays"]]
        self.assertEqual(orders, ["Fortran", "C"])

    @unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
    def test_text_takes_the_memory_of_its_letters(self):
        # The zeros that pad a text to the array's width, here 10 million letters, take no memory.
        def npy(descr, shape):
            head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head

        def peak_bytes(name):
            run = self.measure("inspect", name)
            self.assertIn("text", run.out)
            return run.peak

        self.file("small.npy", npy("<U2", "(1,)") + "ab".encode("utf-32-le"))
        small = peak_bytes("small.npy")
        self.file("none.npy", npy("<U500000000", "(0,)"))
        self.assertLess(peak_bytes("none.npy") - small, 4 << 20)
        letters = 10_000_000
        for descr, width, text in (("<U", 4, "\0a".encode("utf-32-le")), ("|S", 1, b"\0a")):
            with zipfile.ZipFile(self.dir / "filled.npz", "w", zipfile.ZIP_DEFLATED) as archive:
                with archive.open("x.npy", "w") as member:
                    member.write(npy(f"{descr}{letters}", "(2,)") + text)
                    member.write(bytes(width * letters - len(text)))
                    member.write(text + bytes(width * letters - len(text)))
            self.assertLess((self.dir / "filled.npz").stat().st_size, 1 << 20)
            self.assertLess(peak_bytes("filled.npz") - small, 4 << 20)
            self.assertEqual(self.json("filled.npz")[0]["arrays"][0]["first"], ["\0a", "\0a"])

    def test_attention_files(self):
        attn = np.full((2, 4, 4), 0.25, np.float32)
        np.savez(self.dir / "a.npz", attn=attn, src=list("abcd"))
        out = self.run_qkv("inspect", "a.npz").out
        self.assertIn("attention file: attn read as heads, queries, keys; src yes, tgt yes, mask no",
                      out)
        self.assertIn("try: qkv view a.npz", out)
        self.run_qkv("view", "a.npz", "-o", "a.safetensors")
        self.assertEqual(self.json("a.safetensors")[0]["kind"], "safetensors")
        np.savez(self.dir / "b.npz", attn=attn, src=list("abc"))
        self.assertIn("not an attention file: b.npz: src has 3 tokens but attn has 4 keys",
                      self.run_qkv("inspect", "b.npz").out)
        np.save(self.dir / "c.npy", attn)
        self.assertIn("as an attention file: ", self.run_qkv("inspect", "c.npy").out)

    def test_an_array_alone_is_called_attention_by_its_rows(self):
        attn = np.full((2, 4, 4), 0.25)
        attn[1] = np.eye(4)
        attn[1, 3] = 0  # an empty row
        for name, array, want in [("good", attn, True), ("sums", 2 * attn, False),
                                  ("scores", attn - 0.5, False), ("zeros", 0 * attn, False),
                                  ("nan", np.nan * attn, False),
                                  ("ints", np.eye(4, dtype=int), False),
                                  ("deep", np.ones((1,) * 6), False)]:
            np.save(self.dir / "x.npy", array)
            out = self.run_qkv("inspect", "x.npy").out
            self.assertEqual("attention" in out, want, (name, out))
            self.assertEqual("attention" in self.json("x.npy")[0], want, name)
        for array, text in [(attn - 0.5, "head 0: attn has negative numbers: scores?"),
                            (attn * [[[1]], [[3]]],
                             "head 1: 3 of 4 rows of attn do not sum to 1 (worst 3)"),
                            (attn + np.inf, "head 0: attn has NaN or infinity in 4 of 4 rows")]:
            np.savez(self.dir / "x.npz", attn=array)
            self.assertIn(f"  but {text}\n", self.run_qkv("inspect", "x.npz").out)
            self.assertEqual(self.json("x.npz")[0]["attention"]["fault"], text)

    def test_text(self):
        self.file("v.txt", "2 3\nthe 1 2 3\nthe -4 5 6e1\n")
        self.file("rows.tsv", "\ufeffhello\tbonjour\r\na\tb\tc\r\n")
        self.file("plain.txt", "one line\n\nanother, äöü\n")
        vectors, rows, plain = self.json("v.txt", "rows.tsv", "plain.txt")
        self.assertEqual((vectors["kind"], vectors["words"], vectors["width"]),
                         ("word vectors", 2, 3))
        self.assertEqual((vectors["min"], vectors["max"], vectors["repeated"]), (-4, 60, 1))
        self.assertEqual((rows["kind"], rows["rows"], rows["columns"]), ("columns", 2, [2, 3]))
        self.assertEqual(rows["first"], ["hello", "bonjour"])
        self.assertEqual((plain["kind"], plain["lines"], plain["empty_lines"]), ("text", 3, 1))
        self.assertIn("(line 2 is the first to differ)", self.run_qkv("inspect", "rows.tsv").out)

    def test_numbers_are_no_words(self):
        for text, rows, columns in [("1 2 3\n4 5 6\n", 2, [3, 3]),
                                    ("1\t-2.5\n\n3\t4e2\n", 2, [2, 2]),
                                    ("2 3\n4 5\n", 2, [2, 2]), ("1990 0.5 0.25", 1, [3, 3]),
                                    ("1 2 3\n4 5\n", 2, [2, 3]),
                                    ("0.5 1.5 2.5\n" * 9000 + "nan 1 inf\n", 9001, [3, 3])]:
            self.file("t.txt", text)
            got = self.json("t.txt")[0]
            self.assertEqual((got["kind"], got.get("rows"), got.get("columns")),
                             ("numbers", rows, columns), text[:40])
            self.assertIn("a table of numbers", self.run_qkv("inspect", "t.txt").out)
        for text in ("7 1 2\nthe 3 4\n", "2 2\n7 1 2\n8 3 4\n"):  # a true word, or a header
            self.file("t.txt", text)
            self.assertEqual(self.json("t.txt")[0]["kind"], "word vectors", text)

    def test_binary_vectors(self):
        numbers = np.array([0.5, -1.5, 300], "<f4").tobytes()
        self.file("v.bin", b"1 3\nword " + numbers + b"\n")
        self.assertIn("word vectors (word2vec binary): words 1, width 3",
                      self.run_qkv("inspect", "v.bin").out)

    def test_one_broken_file_does_not_hide_others(self):
        np.save(self.dir / "a.npy", np.ones(3))
        self.file("empty", "")
        done = self.run_qkv("inspect", "none", "a.npy", "empty", code=3)
        self.assertIn("a.npy: 1 array (npy)", done.out)
        self.assertEqual(done.err.count("\n"), 2)

    def test_words_with_a_number_too_large_are_text(self):
        self.file("v.txt", "the 1e999 2\ncat 1 2\n")
        self.assertIn("UTF-8 text", self.run_qkv("inspect", "v.txt").out)

    def test_text_with_a_brace_is_text(self):
        for text in ("@article{knuth84,\n title={x}}\n", "\\section{One}\nText.\n"):
            self.file("a.txt", text)
            self.assertIn("UTF-8 text", self.run_qkv("inspect", "a.txt").out)

    def test_the_command_to_type_is_in_shell_words(self):
        np.savez(self.dir / "my file.npz", attn=np.eye(3))
        self.assertIn("try: qkv view 'my file.npz'\n", self.run_qkv("inspect", "my file.npz").out)

    def test_a_safetensors_file_may_have_no_arrays(self):
        for name, header in (("none", b"{}"), ("spaces", b"{}      "),
                             ("metadata", b'{"__metadata__":{}}')):
            self.file(name, len(header).to_bytes(8, "little") + header)
            self.assertEqual(self.run_qkv("inspect", name).out, f"{name}: 0 arrays (safetensors)\n")
            self.assertEqual(self.json(name), [{"file": name, "kind": "safetensors", "arrays": []}])
        for name in ("0.safetensors", "0.npz"):
            self.file(name, b"")
            self.assertIn(", got an empty file", self.refuse(3, "inspect", name))
            self.refuse(3, "inspect", "--as", "safetensors", name)

    def test_standard_input(self):
        np.save(self.dir / "a.npy", np.ones(3))
        content = (self.dir / "a.npy").read_bytes()
        self.assertIn("<stdin>: 1 array (npy)",
                      self.run_qkv("inspect", "-", "--as", "npy", input=content).out)


if __name__ == "__main__":
    unittest.main()
