#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests rendered pictures: no label is cut or overlaps another, and kinds of cells look different.

usage: picture_measure_test.py PATH/TO/draw_picture [unittest's arguments]
"""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import rsvg

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "commands"))
from program import PATIENCE, PROGRAM, Case

SVG = "{http://www.w3.org/2000/svg}"
RSVG = rsvg.library()
# Labels touch if their ink overlaps by more than this many units. Arabic and emoji labels may be
# less than 1 unit apart.
TOUCH = 0.05


class PictureCase(Case):
    def draw(self, form, *names):
        done = subprocess.run(
            [PROGRAM, form, self.dir, *names], capture_output=True, timeout=PATIENCE
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return {path.stem: path.read_bytes() for path in self.dir.glob(f"*.{form}")}

    def texts(self, svg):
        """The root of an SVG, and the contents of its <text> elements by id."""
        root = ElementTree.fromstring(svg)
        found = root.findall(f".//{SVG}text")
        texts = {element.get("id"): element.text for element in found}
        self.assertEqual(len(texts), len(found), "ids must differ")
        return root, texts


@unittest.skipIf(RSVG is None, "librsvg-2 is not installed")
class Labels(PictureCase):
    def measured(self, name, svg):
        """Returns the document and {id: corners of a text's ink}; checks that margins are empty."""
        root, texts = self.texts(svg)
        width, height = float(root.get("width")), float(root.get("height"))
        document = rsvg.Document(RSVG, svg, width, height)
        places = {}
        for element, text in texts.items():
            if re.fullmatch(r"p\d+-v\d+-\d+", element) and name != "words":
                continue  # numbers in cells are checked in one picture only
            ink, room = document.place(element)
            for left, top, right, bottom in (ink, room):
                self.assertGreaterEqual(left, 4, f"{name} {element} {text}")
                self.assertGreaterEqual(top, 4, f"{name} {element} {text}")
                self.assertLessEqual(right, width - 4, f"{name} {element} {text}")
                self.assertLessEqual(bottom, height - 4, f"{name} {element} {text}")
            places[element] = ink
        return document, places

    def apart(self, name, places):
        """Checks that no two texts overlap. Sorting by left sides leaves few pairs to compare."""
        order = sorted(places.items(), key=lambda item: item[1][0])
        for n, (one, a) in enumerate(order):
            for other, b in order[n + 1 :]:
                if b[0] >= a[2] - TOUCH:
                    break
                overlap = min(a[3], b[3]) - max(a[1], b[1])
                self.assertLessEqual(overlap, TOUCH, f"{name}: {one} {a} and {other} {b}")

    def beside_maps(self, name, document, places):
        """Checks that labels are outside the maps and next to their rows or columns."""
        maps = {}
        for element, ink in places.items():
            match = re.fullmatch(r"(p\d+)-([qk])\d+", element)
            if not match:
                continue
            panel = match[1]
            if panel not in maps:
                maps[panel] = document.place(f"{panel}-map")[0]
            left, top, right, bottom = maps[panel]
            if match[2] == "q":
                self.assertLessEqual(ink[2], left, f"{name} {element}")
                middle = (ink[1] + ink[3]) / 2
                self.assertTrue(top - 4 < middle < bottom + 4, f"{name} {element}")
            else:
                self.assertLessEqual(ink[3], top, f"{name} {element}")
                middle = (ink[0] + ink[2]) / 2
                self.assertTrue(left - 4 < middle < right + 4, f"{name} {element}")
        self.assertTrue(maps)

    def test_none_is_cut_or_overlaps(self):
        drawings = self.draw("svg")
        for must in "one row column sixty large heads hard kinds".split():
            self.assertIn(must, drawings)
        for name, svg in drawings.items():
            with self.subTest(name):
                document, places = self.measured(name, svg)
                self.apart(name, places)
                self.beside_maps(name, document, places)

    def test_every_row_and_column_has_a_label_where_they_fit(self):
        drawings = self.draw("svg", "one", "row", "column", "sixty", "hard", "row_hard", "heads")
        wanted = {
            "one": (1, 1),
            "column": (50, 1),
            "sixty": (60, 60),
            "hard": (12, 12),
            "row_hard": (1, 50),
            "heads": (12, 12),
        }
        for name, (queries, keys) in wanted.items():
            _, texts = self.texts(drawings[name])
            self.assertEqual(sum(bool(re.match(r"p0-q", i)) for i in texts), queries, name)
            self.assertEqual(sum(bool(re.match(r"p0-k", i)) for i in texts), keys, name)


class Escaping(PictureCase):
    def test_labels_come_back_from_xml(self):
        _, texts = self.texts(self.draw("svg", "hard")["hard"])
        wanted = [
            "Donaudampfschifffahrtselektrizitaetenhau",
            "مرحبا",
            "注意力机制",
            "👨‍👩‍👧‍👦👍🏽🇩🇪",
            "<b>&\"'",
            "cafe\u0301",
            " the",
            "a\ufffd[31mb↵",
            "\ufffd\ufffd",
            "שלום",
            "] ]>&amp;",
            "x",
        ]
        self.assertEqual([texts[f"p0-q{i}"] for i in range(12)], wanted)
        self.assertEqual([texts[f"p0-k{i}"] for i in range(12)], wanted)
        self.assertEqual(texts["title-0"], "Labels <b>&\"' of all kinds: 注意力 مرحبا 👍🏽")
        notes = " ".join(texts[i] for i in sorted(texts) if i.startswith("note-"))
        self.assertTrue(notes.endswith("below it: <i>&amp;"), notes)

    def test_one_bar_for_all_heads(self):
        root, texts = self.texts(self.draw("svg", "heads")["heads"])
        ticks = [texts[i] for i in sorted(texts) if i.startswith("tick-")]
        self.assertEqual(ticks[0], "0")
        self.assertTrue(2 <= len(ticks) <= 5, ticks)
        self.assertEqual(len(root.findall(f".//{SVG}rect[@fill='url(#bar)']")), 1)
        self.assertEqual([texts[f"p{h}-title"] for h in range(8)], [f"head {h}" for h in range(8)])


@unittest.skipIf(shutil.which("rsvg-convert") is None, "rsvg-convert is not installed")
class Pixels(PictureCase):
    ZOOM = 2
    CELL = 32

    def cell(self, image, origin, row, column):
        """The pixels of one cell, without the lines around it."""
        x, y = (int(self.ZOOM * (at + n * self.CELL)) for at, n in zip(origin, (column, row)))
        size = self.ZOOM * self.CELL
        return image[y + 4 : y + size - 4, x + 4 : x + size - 4, :3]

    def test_kinds_of_cells_differ(self):
        svg = self.draw("svg", "kinds")["kinds"]
        group = ElementTree.fromstring(svg).find(f".//{SVG}g[@id='p0-map']").get("transform")
        origin = [float(x) for x in re.match(r"translate\((\S+) (\S+)\)", group).groups()]
        image = rsvg.pixels(self.draw("png", "kinds")["kinds"])
        number, masked, zero, nan, infinite, tiny = (
            self.cell(image, origin, row, 0 if row == 0 else 2) for row in range(6)
        )
        self.assertEqual(tuple(number[0, 0]), (26, 29, 64))
        self.assertEqual(tuple(zero[0, 0]), (246, 246, 244))
        self.assertEqual(tuple(tiny[0, 0]), (224, 242, 246))
        # A masked cell is hatched in white and grey, without hue.
        self.assertTrue((masked.max(axis=2) - masked.min(axis=2) <= 1).all())
        self.assertTrue((masked > 250).all(axis=2).any() and (masked < 200).all(axis=2).any())
        # A non-finite cell has a white cross on vermilion.
        for marked in (nan, infinite):
            middle = marked.shape[0] // 2
            self.assertEqual(tuple(marked[0, 0]), (213, 94, 0))
            self.assertEqual(tuple(marked[middle, middle]), (255, 255, 255))

    def test_png_is_the_svg_enlarged(self):
        svg = self.draw("svg", "one")["one"]
        root = ElementTree.fromstring(svg)
        height, width, _ = rsvg.pixels(self.draw("png", "one")["one"]).shape
        self.assertEqual((width, height), tuple(2 * int(root.get(k)) for k in ("width", "height")))


if __name__ == "__main__":
    unittest.main()
