#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes inputs from which fuzzing starts: small valid files, and malformed ones from the tests.

usage: seeds.py DIRECTORY
Writes DIRECTORY/TARGET/NAME for each target.
"""

import io
import json
import pathlib
import struct
import sys

import numpy as np

for folder in ("commands", "hostile"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "app" / folder))

from array_files import npy_files, safetensors, safetensors_files, tensor, tensors
from npz_files import npz_files
from text_files import (binary, record, tsv_files, vector_binary_files, vector_text_files)
from translator import Translator

LARGEST = 8192  # bytes; larger seeds slow the search down

ARRAYS = {
    **{f"number_{name}": np.arange(6).astype(name).reshape(2, 3)
       for name in "f2 f4 f8 ? i1 i2 i4 i8 u1 u2 u4 u8 >f4 >i8".split()},
    "scalar": np.float32(3), "empty": np.zeros((0, 3)), "axes_8": np.zeros((1,) * 8),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "text": np.array([["a", "été"], ["", "日本"]]), "bytes": np.array([b"ab", b"c"]),
    "text_swapped": np.array(["ab", "c"]).astype(">U2"),
}


def saved(save, *arguments, **named):
    file = io.BytesIO()
    save(file, *arguments, **named)
    return file.getvalue()


def good_npy():
    files = {name: saved(np.save, array) for name, array in ARRAYS.items()}
    for version in ((2, 0), (3, 0)):
        files[f"version_{version[0]}"] = saved(np.lib.format.write_array, np.arange(3), version)
    return files


def good_npz():
    three = {"x": np.arange(3.0), "naïve": np.array(["a"]), "empty": np.zeros(0)}
    return {"stored": saved(np.savez, **three), "deflated": saved(np.savez_compressed, **three)}


def good_safetensors():
    kinds = "F64 F32 F16 BF16 BOOL I8 I16 I32 I64 U8 U16 U32 U64".split()
    files = {kind: tensors(bytes(int("".join(filter(str.isdigit, kind)) or 8) // 8),
                           x=tensor(kind, (1,), (0, int("".join(filter(str.isdigit, kind)) or 8) // 8)))
             for kind in kinds}
    files["text"] = tensors(b"12", __metadata__={"a": '["b"]', "n": '[["c"],["\\u00e9"]]'},
                            x=tensor())
    files["two"] = tensors(b"1234", x=tensor(), y=tensor(offsets=(2, 4)))
    files["padded"] = safetensors(json.dumps({"x": tensor()}) + "   ", b"12")
    return files


def caches():
    """Files as KvCache.save writes them, some with one fault; two entries share a page."""
    def file(lengths=(18, 17), first=(0, 0), tables=(0, 1, 0, 2), window="0", width=1,
             q8=False):
        data, numbers = b"", np.uint8 if q8 else np.float32
        header = {"__metadata__": {
            "format": '"qkv KvCache 1"', "dtype": '"q8"' if q8 else '"float32"', "window": f'"{window}"',
            "queries": '"2"'}}
        for name, array in (("block_tables", np.array(tables, np.int64).reshape(2, -1)),
                            ("lengths", np.array(lengths, np.int64)),
                            ("first_keys", np.array(first, np.int64)),
                            ("k_pages", np.ones((3, 16, 1, width), numbers)),
                            ("v_pages", np.ones((3, 16, 1, 34 if q8 else 1), numbers))):
            kind = {"int64": "I64", "float32": "F32", "uint8": "U8"}[array.dtype.name]
            header[name] = tensor(kind, array.shape, (len(data), len(data) + array.nbytes))
            data += array.tobytes()
        return safetensors(json.dumps(header), data)

    return {"good": file(), "window": file(first=(16, 0), tables=(-1, 1, 0, 2), window="3"),
            "page": file(tables=(0, 1, 0, 3)), "orphan": file(tables=(0, 1, 0, 1)),
            "length": file(lengths=(18, 1 << 62)), "first": file(first=(1, 0), window="3"),
            "cut": file()[:-4], "wide": file(width=3), "q8": file(q8=True, width=34),
            "q8_wide": file(q8=True, width=35)}


def good_vectors():
    lines = "the 1 2\ncat 3 -4e-1\na b 5 6\nwalk 1 2\n"
    records = [record(b"the", 0.1, 0.2), record(b"cat", 3, 4)]
    return {"glove": lines.encode(), "header": b"4 2\n" + lines.encode(),
            "crlf": b"\xef\xbb\xbf" + lines.replace("\n", "\r\n").encode(),
            "tabs": lines.replace(" ", "\t").encode(), "binary": binary("2 2", *records),
            "binary_without_ends": binary("2 2", *(each[:-1] for each in records)),
            "binary_cut": struct.pack("<f", 1)}


TEXT = {
    "words": "(It's 3.14... well-known -- “quoted”)".encode(),
    "letters": "ÄÖÜ ΣΑΣ İstanbul 日本語 العربية हिन्दी".encode(),
    "emoji": "👩‍👩‍👧 e\u0301 \u200b\ufeff 🇫🇷".encode(),
    "no_utf8": b"a\xff\xc0\xaf\xed\xa0\x80",
    "controls": bytes(range(32)),
}
JSON = {
    "list": b'["a","b"]', "nested": b'[["a"],["b"]]', "alone": b'"a"', "empty": b"[]",
    "hollow": b"[[],[]]", "uneven": b'[["a"],[]]', "escapes": rb'["\u00e9\ud83d\ude00\n\u0000"]',
    "deep": b"[[[[[[[[1]]]]]]]]", "mixed": b'["a",1,null,{"b":[]}]',
}
PAIRS = {"pairs": "go\tva\nhi\tsalut\r\nthree\tcolumns\there\n\n".encode()}
SETTINGS = {
    "kinds": b'{"a": 1, "b": -2, "c": 0.5, "d": true, "e": "NaN", "f": 18446744073709551615}',
    "empty": b"{}", "twice": b'{"a": 1, "a": 2}', "nested": b'{"a": {"b": [null]}}',
    "escapes": rb'{"\u00e9\n": "\ud83d\ude00", "": "1e999"}', "cut": b'{"a": 1', "alone": b"1",
}
VOCABULARIES = {
    "good": '{"tokens": [["e", 3], ["été", 2], ["<s>", 1]]}'.encode(), "empty": b'{"tokens": []}',
    "order": b'{"tokens": [["a", 1], ["b", 2]]}', "twice": b'{"tokens": [["a", 1], ["a", 1]]}',
    "counts": b'{"tokens": [["a", 0], ["b", -1], ["c", 1e3], ["d", 99999999999999999999]]}',
    "others": b'{"tokens": [["a"], "b", null], "more": {}}',
    "no_utf8": b'{"tokens": [["\xff", 1]]}',
}


def models():
    files = {attention: Translator(attention=attention, sizes=(2, 2, 2)).file()
             for attention in ("additive", "none")}
    good = files["additive"]
    return {**files, "cut": good[:-4], "nan": good[:-8] + b"\xff" * 8,
            "hidden": good.replace(rb'\"hidden\", \"2', rb'\"hidden\", \"9'),
            "words": good.replace(b"char", b"word"),
            "twice": good.replace(rb'\"a\", \"b', rb'\"a\", \"a')}


def field(number, value):
    """One field of a protocol buffer: bytes, a whole number, or a float."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    varint = lambda n: (bytes([n & 127 | 128]) + varint(n >> 7)) if n > 127 else bytes([n])
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def subwords(kind, pieces):
    """A model file of SentencePiece, as `qkv train` learns it; kind 1 is unigram, 2 BPE."""
    pieces = ([(name, 0.0, field(3, 2 if name == "<unk>" else 3))
               for name in ("<pad>", "<s>", "</s>", "<unk>")]
              + [(f"<0x{byte:02X}>", 0.0, field(3, 6)) for byte in range(256)]
              + [(text, score, b"") for text, score in pieces])
    trainer = b"".join(field(number, value) for number, value in (
        (3, kind), (4, len(pieces)), (35, 1), (40, 3), (41, 1), (42, 2), (43, 0), (44, b"<unk>")))
    normalizer = field(1, b"identity") + field(3, 1) + field(4, 0) + field(5, 1)
    return (b"".join(field(1, field(1, text.encode()) + field(2, score) + kind)
                     for text, score, kind in pieces)
            + field(2, trainer) + field(3, normalizer))


def subword_files():
    pieces = [("▁", -1.0), ("a", -2.0), ("b", -2.5), ("▁ca", -3.0), ("ab", -3.5), ("é", -4.0)]
    good = subwords(1, pieces)
    return {"unigram": good, "bpe": subwords(2, pieces), "cut": good[:-1],
            "empty": subwords(1, []), "twice": subwords(1, [*pieces, ("a", -5.0)]),
            "nan": subwords(1, [("a", float("nan"))]), "blank": subwords(2, [("a b", 0.0)]),
            "charsmap": good + field(3, field(2, b"\xff" * 16)),
            "self_test": good + field(4, field(1, b"a"))}


TARGETS = {
    "kv_cache": [caches()],
    "npy": [good_npy(), npy_files()],
    "npz": [good_npz(), npz_files()],
    "parallel_text": [PAIRS, tsv_files()],
    "safetensors": [good_safetensors(), safetensors_files()],
    "settings": [SETTINGS],
    "subwords": [subword_files()],
    "text": [TEXT],
    "text_json": [JSON],
    "translation_model": [models()],
    "vocabulary": [VOCABULARIES],
    "word_vectors": [good_vectors(), vector_text_files(), vector_binary_files()],
}


def main():
    for target, groups in TARGETS.items():
        directory = pathlib.Path(sys.argv[1]) / target
        directory.mkdir(parents=True, exist_ok=True)
        for group in groups:
            for name, content in group.items():
                if len(content) <= LARGEST:
                    (directory / name).write_bytes(content)


if __name__ == "__main__":
    main()
