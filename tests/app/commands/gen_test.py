#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv gen`: an independent parser reads each spelling, and reversed words are recomputed.

usage: gen_test.py PROGRAM [TEST ...]
"""

import collections
import datetime
import re
import resource
import signal
import subprocess
import unittest

import measured
from program import PATIENCE, PROGRAM, Case
from oracle_philox import philox

MONTHS = ("january february march april may june july august september october november "
          "december").split()
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
ROMAN = "i ii iii iv v vi vii viii ix x xi xii".split()
CARDINALS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen "
             "fourteen fifteen sixteen seventeen eighteen nineteen").split()
ORDINALS = ("zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh "
            "twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth "
            "twentieth").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
ABBREVIATIONS = {name[:3] for name in MONTHS + WEEKDAYS} | {"sept", "tues", "thurs"}
FILLERS = set("of the on in day year ad and".split())


# ---- a spelling read as the help says ------------------------------------------------------------


def index_of(word, names):
    """Returns the index of a name or its abbreviation in a list; None for other words."""
    if word in names:
        return names.index(word)
    return [name[:3] for name in names].index(word[:3]) if (
        word in ABBREVIATIONS and word[:3] in [name[:3] for name in names]) else None


def small_number(words):
    """Returns the number 0..99 of words that may begin with "oh"."""
    words = [word for word in words if word != "oh"]
    return sum(10 * TENS.index(word) if word in TENS else CARDINALS.index(word) for word in words)


def year_of(words):
    """Returns the year of ["nineteen", "eighty", "seven"] or ["two", "thousand", "ten"]."""
    if "thousand" in words:
        assert words[:2] == ["two", "thousand"], words
        return 2000 + small_number(words[2:])
    century = small_number(words[:1])
    rest = words[2:] if words[1] == "hundred" else words[1:]
    assert "hundred" in words or rest[0] == "oh" or small_number(rest) > 9, words
    return 100 * century + small_number(rest)


def day_in_words(words):
    """Returns (day, other words): the number of the ordinal among the words, or 0 without one."""
    for i, word in enumerate(words):
        if word == "thirtieth":
            return 30, words[:i] + words[i + 1:]
        if word in ORDINALS:
            tens = i > 0 and words[i - 1] in ("twenty", "thirty")
            return (ORDINALS.index(word) + (10 * TENS.index(words[i - 1]) if tens else 0),
                    words[: i - tens] + words[i + 1:])
    return 0, words


def date_of_numbers(numbers):
    """Returns the day of ["1987", "5", "3"], ["3", "5", "1987"] or ["19870503"]."""
    if len(numbers) == 1:
        numbers = [numbers[0][:4], numbers[0][4:6], numbers[0][6:]]
    assert sorted(len(number) == 4 for number in numbers) == [False, False, True], numbers
    year, month, day = numbers if len(numbers[0]) == 4 else reversed(numbers)
    return datetime.date(int(year), int(month), int(day))


def parse(text):
    """Returns the day of a spelling; fails for one that the help of `qkv gen` does not describe."""
    pieces = re.findall(r"\d+(?:st|nd|rd|th)(?![a-z])|[a-z]+|\d+", text.lower())
    numbers = [piece for piece in pieces if piece[0].isdigit()]
    words = [piece for piece in pieces if piece not in numbers and piece not in FILLERS]
    weekday = [index_of(word, WEEKDAYS) for word in words if index_of(word, WEEKDAYS) is not None]
    words = [word for word in words if index_of(word, WEEKDAYS) is None]
    months = [index_of(word, MONTHS) for word in words if index_of(word, MONTHS) is not None]
    months += [ROMAN.index(word) for word in words if word in ROMAN]
    words = [word for word in words if index_of(word, MONTHS) is None and word not in ROMAN]
    if not months:
        assert not words, text
        date = date_of_numbers(numbers)
    else:
        day, words = day_in_words(words)
        years = [number for number in numbers if len(number) == 4 and number.isdigit()]
        days = [number for number in numbers if number not in years]
        assert len(months) == 1 and len(years) <= 1 and len(days) == (day == 0), text
        assert (not words) == bool(years), text
        for number in days:
            day = int(re.match(r"\d+", number)[0])
            assert number.isdigit() or number == f"{day}{ending(day)}", text
        date = datetime.date(int(years[0]) if years else year_of(words), months[0] + 1, day)
    assert weekday in ([], [date.weekday()]), text
    return date


def ending(day):
    return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def shape(text):
    """Returns the form of a spelling: its text with a mark for each name, number word and digit."""
    for names, mark in ((MONTHS, "M"), (WEEKDAYS, "W"), (ORDINALS + ["thirtieth"], "O"),
                        (CARDINALS + TENS[2:] + ["hundred", "thousand"], "C")):
        text = re.sub(rf"\b({'|'.join(names)})\b", mark, text.lower())
    return re.sub(r"\d+", lambda run: "9" * len(run[0]), text)


# ---- the tests -----------------------------------------------------------------------------------


class Gen(Case):
    def lines(self, *arguments):
        done = self.run_qkv("gen", *arguments, "--progress", "never")
        self.assertEqual(done.err, "")
        return [line.split("\t") for line in done.out.splitlines()]

    def test_the_parser_itself(self):
        for text in ("the 3rd of May, 1987", "May 3 1987", "3.5.1987", "03/05/1987", "19870503",
                     "1987/05/03", "SUN., 3 MAY 1987", "3.v.1987", "03May1987",
                     "the third day of May nineteen eighty-seven",
                     "May the third, nineteen hundred and eighty seven"):
            self.assertEqual(parse(text), datetime.date(1987, 5, 3), text)
        self.assertEqual(parse("may the twenty first, twenty oh five"), datetime.date(2005, 5, 21))
        self.assertEqual(parse("thirty-first of may two thousand"), datetime.date(2000, 5, 31))
        for text in ("monday, 3 may 1987", "3nd may 1987", "3 may 87", "5/3/87", "31 june 1987"):
            self.assertRaises((AssertionError, ValueError), parse, text)

    def test_every_spelling_means_its_day(self):
        lines = self.lines("dates", "-n", 20000, "--seed", 5)
        self.assertEqual(len(lines), 20000)
        for source, target in lines:
            self.assertEqual(parse(source).isoformat(), target, source)
        self.check_spread([datetime.date.fromisoformat(target) for _, target in lines])
        self.check_variety([source for source, _ in lines])

    def check_spread(self, days):
        """Years and weekdays are as frequent as for uniform days; all days of the year occur."""
        for counts, distinct in ((collections.Counter(day.year for day in days), 200),
                                 (collections.Counter(day.weekday() for day in days), 7)):
            mean = len(days) / distinct
            self.assertEqual(len(counts), distinct)
            for value, count in counts.items():  # at most five standard deviations off
                self.assertLess(abs(count - mean), 5 * mean**0.5, value)
        self.assertEqual({(day.month, day.day) for day in days},
                         {(day.month, day.day) for day in self.leap_year()})

    @staticmethod
    def leap_year():
        return [datetime.date(2000, 1, 1) + datetime.timedelta(n) for n in range(366)]

    def check_variety(self, texts):
        shapes = collections.Counter(map(shape, texts))
        self.assertGreater(sum(count >= 20 for count in shapes.values()), 60)
        self.assertLess(max(shapes.values()), len(texts) / 10)
        # Three tenths of the spellings are changed to lower case, one tenth to upper case.
        cases = [sum(map(test, texts)) / len(texts) for test in (str.islower, str.isupper)]
        self.assertTrue(0.2 < cases[0] < 0.45 and 0.05 < cases[1] < 0.15, cases)
        self.assertTrue(any("  " in text for text in texts) and any(" ," in text for text in texts))

    def test_splits_share_no_day(self):
        days = {split: {target for _, target in self.lines("dates", "-n", 4000, "--split", split,
                                                           "--seed", seed)}
                for seed, split in enumerate(("train", "test"))}
        self.assertFalse(days["train"] & days["test"])
        of_both = [target for _, target in self.lines("dates", "-n", 4000, "--seed", 9)]
        # A tenth of all days are test days; about 3,100 of 7,300 are drawn here.
        self.assertLess(3000, len(days["test"]))
        share = sum(target in days["test"] for target in of_both) / len(of_both)
        self.assertTrue(0.02 < share < 0.08, share)

    def test_reverse_is_drawn_as_described(self):
        seed = 0x123456789A
        for n, (source, target) in enumerate(self.lines("reverse", "-n", 50, "--seed", seed)):
            # The random words of line n: stream 6 of core/draws.h. A line needs fewer than 36.
            words = (word for block in range(9)
                     for word in map(int, philox((block, n, 0, 6), (seed % 2**32, seed >> 32))))

            def below(bound):
                product = next(words) * bound
                assert product % 2**32 >= 2**32 % bound  # else it would be drawn again
                return product >> 32

            text = "".join(chr(ord("a") + below(26)) for _ in range(3 + below(13)))
            self.assertEqual((source, target), (text, text[::-1]))

    def test_lengths_of_reverse(self):
        lengths = collections.Counter(len(s) for s, _ in self.lines("reverse", "-n", 2600))
        self.assertEqual(sorted(lengths), list(range(3, 16)))
        # Each of 13 lengths is drawn about 200 times; 70 is five standard deviations.
        self.assertTrue(all(abs(count - 200) < 70 for count in lengths.values()), lengths)

    def test_a_longer_file_begins_with_the_shorter(self):
        for task in ("dates", "reverse"):
            long = self.run_qkv("gen", task, "-n", 9000, "--seed", 3).out
            self.run_qkv("gen", task, "-n", 5000, "--seed", 3, "-o", "a.tsv")
            short = (self.dir / "a.tsv").read_text()
            self.assertTrue(long.startswith(short))
            self.assertEqual((short.count("\n"), long.count("\n")), (5000, 9000))
            self.assertNotEqual(self.run_qkv("gen", task, "-n", 5000, "--seed", 4).out, short)
        self.assertEqual(len(self.lines("dates")), 10)

    def test_seeds_differ_in_their_upper_words(self):
        one, other = (self.lines("reverse", "--seed", seed) for seed in (1, 1 + 2**32))
        self.assertFalse([line for line in one if line in other])

    def test_where_it_cannot_be_written(self):
        self.file("a.tsv", "old")
        self.refuse(4, "gen", "dates", "-n", 20000, "-o", "a.tsv",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
        self.assertEqual((self.dir / "a.tsv").read_text(), "old")
        self.assertEqual(self.names(), ["a.tsv"])

    def test_interrupt_leaves_no_file(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with subprocess.Popen([PROGRAM, "gen", "dates", "-n", "100000000", "-o", "a.tsv",
                                   "--quiet"], cwd=self.dir, stderr=subprocess.PIPE) as process:
                self.wait_until(lambda: any(path.stat().st_size for path in self.dir.iterdir()))
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=PATIENCE), code)
                self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(self.names(), [])

    def test_a_reader_that_leaves_ends_it(self):
        with subprocess.Popen([PROGRAM, "gen", "dates", "-n", "100000000", "--quiet"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              cwd=self.dir) as process:
            self.assertEqual(len(process.stdout.readline().split(b"\t")), 2)
            process.stdout.close()
            self.assertEqual((process.wait(timeout=PATIENCE), process.stderr.read()), (0, b""))

    @unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
    def test_memory_does_not_grow_with_the_file(self):
        small, large = (self.measure("gen", "reverse", "-n", lines, "-o", "a.tsv").peak
                        for lines in (10, 300000))
        self.assertGreater((self.dir / "a.tsv").stat().st_size, 5 << 20)
        self.assertLess(large - small, 3 << 20)


if __name__ == "__main__":
    unittest.main()
