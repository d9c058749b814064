# SPDX-License-Identifier: Apache-2.0
"""Malformed word vectors (text and binary), plain text, and text in columns.

Each *_files() returns {name: bytes}, unless its docstring says otherwise.
"""

import gzip
import random
import struct

RUBBISH = random.Random(1).randbytes(5000)
MANY_LINES = b"".join(b"w%d 1 2 3\n" % i for i in range(3000))


def vector_text_files():
    return {
        "empty": b"",
        "newlines": b"\n\r\n\n",
        "mark_alone": b"\xef\xbb\xbf",
        "blanks": b"  \n\t\n",
        "no_numbers": b"cat\n",
        "words": b"the cat sat\n",
        "number_12x": b"the 1 2\ncat 3 12x\n",
        "number_1e999": b"the 1 2\ncat 1e999 4\n",
        "number_beyond_float": b"the 1 2\ncat 1e39 4\n",
        "number_nan": b"the 1 2\ncat nan 4\n",
        "number_inf": b"the 1 2\ncat 3 -inf\n",
        "number_hexadecimal": b"the 1 2\ncat 0x1p3 4\n",
        "number_with_comma": b"the 1 2\ncat 0,5 4\n",
        "number_with_two_signs": b"the 1 2\ncat --5 4\n",
        "number_with_suffix": b"the 1 2\ncat 5f 4\n",
        "number_cut": b"the 1.5 2.5\ncat 1.5 -",
        "first_line_12x": b"cat 1 12x 3\n",
        "first_line_1e999": b"cat 1 1e999\n",
        "too_few": b"the 1 2\ncat 3\n",
        "too_many": b"the 1.5 2.5\ncat 3.5 4.5 5.5\n",
        "late_12x": MANY_LINES + b"bad 1 2 12x\n",
        "late_and_too_few": MANY_LINES + b"bad 1 2\n",
        "late_zero_byte": MANY_LINES + b"b\0d 1 2 3\n",
        "zero_byte": b"the 1 2\nc\0t 3 4\n",
        "zero_bytes": bytes(5000),
        "line_of_2_MiB": b"cat " + b"1" * 2**21 + b"\n",
        "word_of_2_MiB": b"c" * 2**21 + b" 1 2\n",
        "header_of_too_few": b"9 2\nthe 1 2\ncat 3 4\n",
        "header_of_too_many": b"1 2\nthe 1 2\ncat 3 4\n",
        "header_of_another_width": b"2 3\nthe 1 2\ncat 3 4\n",
        "header_of_huge_width": b"2 9000000000000000000\nthe 1 2\n",
        "header_of_huge_count": b"9000000000000000000 2\nthe 1 2\n",
        "header_beyond_64_bits": b"1 99999999999999999999\nthe 1 2\n",
        "header_negative": b"-1 -2\nthe 1 2\n",
        "utf16": "the 1 2\ncat 3 4\n".encode("utf-16"),
        "rubbish": RUBBISH,
        "a_gzip_file": gzip.compress(b"the 1 2\ncat 3 4\n"),
        "python": b"import numpy as np\nprint(np.zeros(3))\n",
    }


def binary(header, *records):
    return header.encode() + b"\n" + b"".join(records)


def record(word, *numbers):
    return word + b" " + struct.pack(f"<{len(numbers)}f", *numbers) + b"\n"


def vector_binary_files():
    the, cat = record(b"the", 0.1, 0.2), record(b"cat", 0.3, 0.4)
    good = binary("2 2", the, cat)
    return {
        "word_cut": good[:-11],
        "numbers_cut": good[:-4],
        "first_numbers_cut": good[:10],
        "record_absent": binary("2 2", the),
        "bytes_behind": good + b"x",
        "record_behind": binary("1 2", the, cat),
        "count_2_62": binary(f"{2**62} 2", the, cat),
        "width_2_62": binary(f"2 {2**62}", the, cat),
        "width_200000": binary("2 200000", the, cat),
        "width_larger": binary("2 3", the, cat),
        "width_smaller": binary("2 1", the, cat),
        "word_empty": binary("2 2", the, record(b"", 0.3, 0.4)),
        "word_of_100_kB": binary("2 2", the, record(b"c" * 100_000, 0.3, 0.4)),
        "word_without_blank": binary("2 2", the, b"c" * 2_000_000),
        "number_nan": binary("2 2", the, record(b"cat", 0.3, float("nan"))),
        "number_inf": binary("2 2", the, record(b"cat", float("-inf"), 0.3)),
        "rubbish": binary("90 7", RUBBISH),
    }


def plain_text_files():
    """Standard inputs: bytes, or (block, times) for an input too long to keep in memory."""
    block = 2**16
    return {
        "empty": b"",
        "blanks": b" \n\t \r\n",
        "controls": bytes(range(1, 32)),
        "mark_of_zero_width": "\ufeff".encode(),
        "word_of_1001": b"cat " + b"a" * 1001,
        "word_of_4_MB": b"a" * 4_000_000,
        "word_of_200_MB": (b"a" * block, 200_000_000 // block),
        "chinese_word_of_4_MB": "\u4e2d".encode() * 1_300_000,
        "one_character_of_marks": b"a" + "\u0301".encode() * 1_000_000,
        "points_of_4_MB": b"." * 4_000_000,
        "commas_of_4_MB": b"," * 4_000_000,
        "wide_blanks_of_4_MB": "\u3000".encode() * 1_300_000,
        "words_of_6_GB": (b"a " * (block // 2), 100_000),
        "words_of_8_letters_of_6_GB": (b"aaaaaaaa " * (block // 9), 100_000),
        "lines_of_6_GB": (b"\n" * block, 100_000),
        "zeros_of_6_GB": (bytes(block), 100_000),
        "latin_1": "caf\xe9 noir".encode("latin-1"),
        "character_cut": b"cat \xe4\xb8",
        "surrogate": b"cat \xed\xa0\x80 dog",
        "rubbish": RUBBISH,
        "utf16": "the cat".encode("utf-16"),
    }


def tsv_files():
    good = "go\tva\nhi\tsalut\n".encode()
    return {
        "empty": b"",
        "mark_alone": b"\xef\xbb\xbf",
        "newline": b"\n",
        "one_column": good + b"alone\n",
        "one_column_at_the_end": good + b"alone",
        "empty_line": good + b"\n" + good,
        "zero_byte": good + b"a\tb\0\n",
        "zero_bytes": bytes(5000),
        "latin_1": good + "salut\tca va, hein ?\tà\n".encode("latin-1"),
        "overlong": good + b"a\t\xc0\xaf\n",
        "overlong_4": good + b"a\t\xf0\x80\x80\xaf\n",
        "surrogate": good + b"a\t\xed\xa0\x80\n",
        "beyond_unicode": good + b"a\t\xf4\x90\x80\x80\n",
        "character_cut": good + b"a\t\xe4\xb8",
        "inner_byte": good + b"a\t\x80\n",
        "utf16": good.decode().encode("utf-16"),
        "line_of_2_MiB": good + b"a\t" + b"b" * 2**21 + b"\n",
        "rubbish": RUBBISH,
        "blanks_for_tabs": b"go  va\n",
    }
