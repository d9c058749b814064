#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the page of `qkv view -o x.html` in Chromium, without a network.

usage: page_browser_test.py PROGRAM [TEST ...]
The tests need Debian's chromium and, in .venv-python, the packages of
python/requirements-browser.txt.
"""

import csv
import importlib.util
import io
import os
import pathlib
import re
import shutil
import sys
import unittest
import xml.etree.ElementTree as ElementTree

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
PYTHON = CHECKOUT / ".venv-python/bin/python"
if (
    importlib.util.find_spec("playwright") is None
    and PYTHON.exists()
    and sys.executable != str(PYTHON)
):
    os.execv(PYTHON, [str(PYTHON), *sys.argv])
sys.path.append(str(CHECKOUT / "tests/app/commands"))

import numpy as np
from png import pixels
from program import Case
from random_maps import weights

HOSTILE = [
    "</script>",
    "<b>bold</b>",
    '"quoted"',
    "it's",
    "&amp;",
    "שלום",
    "日本語",
    "👩‍👩‍👧",
    "${x}",
    "-->",
]
# The light theme's colours for 0, the largest number, half of it, and a number that is not finite.
ZERO, FULL, HALF, FAULT = (246, 246, 244), (26, 29, 64), (0, 135, 208), (213, 94, 0)
MINUS = "\u2212"

browser = None
playwright = None


def setUpModule():
    global browser, playwright
    program = shutil.which("chromium")
    if program is None:
        raise unittest.SkipTest("there is no chromium")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise unittest.SkipTest("there is no playwright") from None
    playwright = sync_playwright().start()
    try:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    except Error as error:
        playwright.stop()
        raise unittest.SkipTest(f"chromium does not start: {error}") from None


def tearDownModule():
    if browser is not None:
        browser.close()
        playwright.stop()


class PageCase(Case):
    """A page in the browser. A request for another address or a console message is a failure."""

    def setUp(self):
        super().setUp()
        self.said = []

    def tearDown(self):
        self.assertEqual(self.said, [])

    def write(self, *options, **arrays):
        """Writes `arrays` to the attention file a.npz, and draws it as page.html."""
        np.savez(self.dir / "a.npz", **arrays)
        self.run_qkv("--quiet", "view", "a.npz", *options, "-o", "page.html")

    def open(self, state="", width=1280, theme="light"):
        """Opens page.html in the browser; its address ends with `state`, such as "head=1"."""
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.addCleanup(context.close)
        page = context.new_page()
        address = f"file://{self.dir}/page.html"

        def check_request(route):
            if route.request.url.split("#")[0] == address:
                return route.continue_()
            self.said.append(f"asks for {route.request.url}")
            return route.abort()

        context.route("**/*", check_request)
        page.on("console", lambda message: self.said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.goto(f"{address}#{state}")
        self.settle(page)
        return page

    def settle(self, page):
        """Waits until the page has drawn everything that it has begun to draw."""
        self.wait_for(
            page, "Number(document.documentElement.dataset.drawn) === draws && isGridDrawn"
        )

    def wait_for(self, page, condition):
        self.wait_until(lambda: page.evaluate(condition))

    def text(self, page, selector):
        return page.locator(selector).inner_text()

    def state(self, page):
        return dict(part.split("=") for part in page.url.partition("#")[2].split("&") if part)

    def choose(self, page, name, value):
        page.locator(f"#{name}").select_option(value)
        self.settle(page)


class Cells(PageCase):
    """The colour and the readout of each cell of a known matrix."""

    A = np.array([[1, 0, 0.5], [0.25, 0.75, np.nan], [0, 0.1, 0.2]], np.float32)
    MASK = np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1]], bool)

    def setUp(self):
        super().setUp()
        self.write(attn=self.A, mask=self.MASK, src=["a", "b", "c"])

    def colours(self, page):
        """The colour in the middle of each cell, and those of all pixels in the masked cell."""
        image = pixels(page.locator(".stack").screenshot())
        box, cells = (page.locator(f".stack{name}").bounding_box() for name in ("", " canvas"))
        left, top, side = cells["x"] - box["x"], cells["y"] - box["y"], cells["width"] / 3
        middle = [
            [
                tuple(
                    int(c)
                    for c in image[int(top + (i + 0.5) * side), int(left + (j + 0.5) * side), :3]
                )
                for j in range(3)
            ]
            for i in range(3)
        ]
        masked = image[
            int(top + 2 * side) + 2 : int(top + 3 * side) - 2,
            int(left) + 2 : int(left + side) - 2,
            :3,
        ]
        return middle, masked.reshape(-1, 3)

    def test_colours(self):
        middle, masked = self.colours(self.open())
        self.assertEqual([middle[0][0], middle[0][1], middle[1][2]], [FULL, ZERO, FAULT])
        for got, want in zip(middle[0][2], HALF, strict=True):
            self.assertLessEqual(abs(got - want), 3)  # at most one of the scale's 256 levels away
        self.assertGreater(len(np.unique(masked, axis=0)), 1)  # hatched
        self.assertEqual(tuple(masked.max(0)), (255, 255, 255))

    def test_scales(self):
        linear = self.colours(self.open())[0]
        root = self.colours(self.open("scale=sqrt"))[0]
        self.assertEqual(
            root[1][0], self.colours(self.open("scale=linear"))[0][0][2]
        )  # sqrt(0.25) = 0.5
        self.assertNotEqual(linear[1][0], root[1][0])
        page = self.open("scale=log")
        self.assertIn("log, four decades scale", self.text(page, "#notes"))

    def test_dark(self):
        middle, _ = self.colours(self.open(theme="dark"))
        self.assertEqual([middle[0][1], middle[0][0]], [(14, 14, 16), (235, 237, 109)])

    def test_the_number_under_the_pointer(self):
        page = self.open()
        box = page.locator(".stack canvas").bounding_box()
        side = box["width"] / 3
        for (i, j), want in {
            (0, 2): "a → c: 0.5",
            (1, 2): "b → c: NaN",
            (2, 0): "c → a: masked",
            (2, 1): "c → b: 0.1",
            (0, 1): "a → b: 0",
        }.items():
            page.mouse.move(box["x"] + (j + 0.5) * side, box["y"] + (i + 0.5) * side)
            self.assertEqual(self.text(page, "#readout").splitlines()[0], want)
            self.assertIn(f"row {i} of queries, column {j} of keys", self.text(page, "#readout"))


class Exact(PageCase):
    """The page's numbers are those of the file, or as near as the page says."""

    def numbers(self, page, example=0, source=0, layer=0, head=0):
        return np.array(
            page.evaluate(
                f"storedMap({example}, {source}, {layer}, {head}).then("
                "({numbers}) => Array.from(numbers, String))"
            ),
            float,
        )

    def test_float32(self):
        a = weights(2, 3, 5, 7)
        self.write(attn=a)
        page = self.open()
        for layer, head in ((0, 0), (1, 2)):
            np.testing.assert_array_equal(
                self.numbers(page, layer=layer, head=head), a[layer, head].ravel()
            )

    def test_float64(self):
        a = np.array([[0.1, 1e-300, -0.3], [np.inf, np.nan, 1 / 3]])
        self.write(attn=a)
        np.testing.assert_array_equal(self.numbers(self.open()), a.ravel())

    def test_rounded(self):
        a = weights(5, 512, 512).astype(np.float32)
        a[2] = np.where(a[2] > 0.004, a[2], 0)
        a[4, 0, :4] = [1e-9, np.nan, np.inf, 0.9]
        self.write(attn=a)
        page = self.open("head=4&query=1&key=1")
        error = 0.9 / 65534 / 2  # half a step; the largest magnitude is 65534 steps
        for head in (2, 4):
            got, want = self.numbers(page, head=head), a[head].ravel().astype(float)
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
            finite = np.isfinite(want)
            self.assertLessEqual(np.abs(got[finite] - want[finite]).max(), error * (1 + 1e-6))
            np.testing.assert_array_equal(got == 0, want == 0)
        self.assertIn("the error is at most 0.0000069", self.text(page, "#notes"))
        self.assertRegex(self.text(page, "#readout"), r"1 → 1: 0\.\d+ ± 0\.0000069")

    def test_negative(self):
        a = np.random.default_rng(0).normal(size=(5, 512, 512)).astype(np.float32)
        self.write(attn=a)
        got = self.numbers(self.open(), head=3)
        self.assertLessEqual(
            np.abs(got - a[3].ravel()).max(), np.abs(a).max() / 65534 / 2 * (1 + 1e-6)
        )


class Hostile(PageCase):
    def setUp(self):
        super().setUp()
        size = len(HOSTILE)
        self.write("--title", "<i>T</i></title>&lt;", attn=weights(2, size, size), src=HOSTILE)

    def test_tokens_are_shown_literally(self):
        page = self.open("view=text")
        words = page.locator(".tokens button")
        self.assertEqual(words.all_inner_texts(), HOSTILE)
        self.assertEqual(page.title(), "<i>T</i></title>&lt;")
        self.assertEqual(self.text(page, "h1"), "<i>T</i></title>&lt;")
        for n, token in enumerate(HOSTILE):
            page = self.open(f"query={n}&key={n}")
            self.assertTrue(self.text(page, "#readout").startswith(f"{token} → {token}: "))
        self.assertEqual(page.locator("b, i, img").count(), 0)

    def test_arcs_and_files(self):
        page = self.open("view=arcs")
        texts = page.locator("#panels text").all_text_contents()
        self.assertEqual([text for text in texts if text in HOSTILE], 2 * HOSTILE)
        with page.expect_download() as download:
            page.locator("#save-svg").click()
        root = ElementTree.parse(download.value.path()).getroot()
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual([text for text in texts if text in HOSTILE], 2 * HOSTILE)

    def test_the_policy_forbids_other_code(self):
        page = self.open()
        self.assertEqual(
            page.evaluate("""() => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            const image = document.createElement("p");
            document.body.append(image);
            image.setAttribute("onclick", "window.hacked = 2");
            image.click();
            return window.hacked ?? null;
        }"""),
            None,
        )
        self.assertEqual(page.evaluate("fetch('data:,x').then(() => 1, () => 0)"), 0)
        self.assertEqual(
            page.evaluate("""new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (event) => done(event.blockedURI));
            setTimeout("window.hacked = 3", 0);
            setTimeout(() => done("nothing is refused"), 2000);
        })"""),
            "eval",
        )
        self.assertTrue(self.said)  # the browser reports each refusal
        for line in self.said:
            self.assertIn("Content Security Policy", line)
        self.said.clear()


class Walk(PageCase):
    """Using the page by keys, by the pointer and by its address."""

    def setUp(self):
        super().setUp()
        self.a = weights(2, 3, 4, 4)
        self.write(attn=self.a, src=["[CLS]", "one", "two", "[SEP]"])

    def press(self, page, *keys):
        for key in keys:
            page.keyboard.press(key)
        self.settle(page)

    def reach(self, page, selector):
        """Presses Tab until an element has the focus."""
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        self.fail(f"Tab does not reach {selector}")

    def test_keys(self):
        page = self.open()
        self.reach(page, "#scale")
        self.press(page, "ArrowDown")
        self.assertEqual(self.state(page), {"scale": "sqrt"})
        self.reach(page, "#grid button")
        self.press(page, "ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft")
        self.assertEqual(self.text(page, "#figure-title"), "layer 1, head 1")
        self.assertEqual(
            page.locator("#grid button[aria-pressed=true]")
            .get_attribute("aria-label")
            .split(":")[0],
            "layer 1, head 1",
        )
        self.press(page, "c", "[")
        self.assertEqual(
            self.state(page), {"scale": "sqrt", "layer": "1", "compare": "map", "second": "4"}
        )
        self.reach(page, "#views button")
        self.reach(page, ".scroll")
        self.press(page, "ArrowDown")
        self.press(page, "ArrowDown", "ArrowRight", "ArrowRight")
        self.assertTrue(self.text(page, "#readout").startswith("one → two: A "))
        self.press(page, "Enter")
        self.assertEqual([self.state(page)[name] for name in ("query", "key")], ["1", "2"])
        self.press(page, "ArrowUp", "]")
        self.assertEqual([self.state(page)[name] for name in ("query", "head")], ["0", "1"])
        self.press(page, "Escape")
        self.assertNotIn("query", self.state(page))

    def test_keys_in_arcs_and_text(self):
        page = self.open("view=arcs")
        self.reach(page, ".scroll")
        self.press(page, "ArrowDown", "ArrowDown", "Enter")
        self.assertEqual(self.state(page)["query"], "1")
        page = self.open("view=text")
        self.reach(page, ".tokens button")
        self.press(page, "ArrowRight", "ArrowRight", "Enter")
        self.assertEqual(self.state(page), {"view": "text", "query": "2"})
        self.assertIn('shaded by what "\u2068two\u2069" attends to', self.text(page, "#notes"))
        shown = page.locator(".tokens button").nth(1).get_attribute("aria-label")
        self.assertEqual(float(shown.removeprefix("one: ")), float(str(self.a[0, 0, 2, 1])))

    def test_pointer(self):
        page = self.open()
        button = page.locator("#grid button").nth(4)
        button.hover()
        self.settle(page)
        self.assertEqual(self.text(page, "#figure-title"), "layer 1, head 1 preview")
        self.assertEqual(self.state(page), {})
        page.mouse.move(5, 5)
        self.settle(page)
        self.assertEqual(self.text(page, "#figure-title"), "layer 0, head 0")
        button.click()
        self.settle(page)
        self.assertEqual(self.state(page), {"layer": "1", "head": "1"})
        page.locator(".stack canvas").click(position={"x": 5, "y": 5})
        self.assertEqual([self.state(page)[name] for name in ("query", "key")], ["0", "0"])

    def test_address(self):
        state = "layer=1&head=2&view=map&special=renormalised&query=1&key=2&theme=dark"
        state += "&nonsense=1&scale=cubic&second=99"
        page = self.open(state)
        self.assertEqual(
            self.state(page),
            {
                "layer": "1",
                "head": "2",
                "special": "renormalised",
                "theme": "dark",
                "query": "1",
                "key": "2",
            },
        )
        self.assertEqual(page.evaluate("document.documentElement.dataset.theme"), "dark")
        again = self.open(page.url.partition("#")[2])
        self.assertEqual(self.text(again, "#readout"), self.text(page, "#readout"))
        page.evaluate("location.hash = 'layer=0&head=1'")
        self.wait_for(page, "state.head === 1")
        self.settle(page)
        self.assertEqual(self.text(page, "#figure-title"), "layer 0, head 1")

    def test_special_tokens(self):
        page = self.open("special=hidden&query=1&key=2")
        self.assertIn(
            "special tokens hidden: 2 of 4 queries, 2 of 4 keys; the other numbers are as stored",
            self.text(page, "#notes"),
        )
        share = 100 * self.a[0, 0, 1:3][:, [0, 3]].astype(float).sum(-1)
        note = re.search(
            r"hidden keys hold ([0-9.]+) % of a row's weight on average, at most ([0-9.]+) %",
            self.text(page, "#notes"),
        )
        self.near([float(one) for one in note.groups()], [share.mean(), share.max()], 0.06)
        self.assertEqual(self.text(page, "#overview-note"), "Special tokens are included here.")
        self.choose(page, "special", "renormalised")
        self.assertIn(
            "each row is divided by the sum of its other numbers", self.text(page, "#notes")
        )
        row = self.a[0, 0, 1].astype(float)
        first, second = self.text(page, "#readout").splitlines()[:2]
        self.near(float(first.removeprefix("one → two: ")), row[2] / (row[1] + row[2]), 1e-6)
        self.assertIn(f"renormalised, stored: {self.a[0, 0, 1, 2]!s}", second)

    def test_measures(self):
        page = self.open("measure=first")
        self.assertEqual(
            self.text(page, "#overview-note"),
            "Mean weight that the rows give to the first key, [CLS].",
        )
        got = [float(text) for text in page.locator("#grid button").all_inner_texts()]
        self.near(got, self.a[..., 0].mean(-1).ravel(), 0.006)
        self.choose(page, "measure", "entropy")
        got = [float(text) for text in page.locator("#grid button").all_inner_texts()]
        self.near(got, -(self.a * np.log(self.a)).sum(-1).mean(-1).ravel(), 0.06)


class Compare(PageCase):
    def setUp(self):
        super().setUp()
        self.a, self.b = weights(2, 2, 3, 3), weights(2, 2, 3, 3, seed=1)
        np.savez(self.dir / "b.npz", attn=self.b, src=["x", "y", "z"])

    def test_two_files(self):
        self.write("--minus", "b.npz", attn=self.a, src=["x", "y", "z"])
        page = self.open("layer=1&query=0&key=2")
        titles = page.locator(".panel h3").all_inner_texts()
        self.assertEqual(
            titles, ["A: layer 1, head 0, a.npz", "B: layer 1, head 0, b.npz", f"A {MINUS} B"]
        )
        first, second, third = self.text(page, "#readout").splitlines()[0].split(" · ")
        one, other = self.a[1, 0, 0, 2], self.b[1, 0, 0, 2]
        self.assertEqual([first, second], [f"x → z: A {one!s}", f"B {other!s}"])
        self.near(
            float(third.removeprefix(f"A {MINUS} B ").replace(MINUS, "-")),
            one.astype(float) - other,
            1e-6,
        )
        self.assertIn("Differences of the two files.", self.text(page, "#overview-note"))
        self.assertIn("a.npz minus b.npz", self.text(page, "#notes"))
        self.choose(page, "source", "1")
        self.assertTrue(self.text(page, "#readout").startswith(f"x → z: A {other!s} · B {one!s}"))
        self.choose(page, "compare", "none")
        self.assertTrue(self.text(page, "#readout").startswith(f"x → z: {other!s}"))

    def test_arcs_with_short_tokens(self):
        self.write(attn=self.a, src=["x", "y", "z"])
        page = self.open("view=arcs")
        drawing = page.locator("#panels svg").bounding_box()
        for name in ("queries", "keys"):
            box = page.locator("#panels text", has_text=name).bounding_box()
            self.assertGreaterEqual(box["x"], drawing["x"])
            self.assertLessEqual(box["x"] + box["width"], drawing["x"] + drawing["width"])

    def test_two_maps(self):
        self.write(attn=self.a)
        page = self.open("compare=map&second=3&query=1&key=1")
        self.assertTrue(
            self.text(page, "#readout").startswith(
                f"1 → 1: A {self.a[0, 0, 1, 1]!s} · B {self.a[1, 1, 1, 1]!s} · A {MINUS} B "
            )
        )
        self.assertEqual(page.locator("#legend svg").count(), 2)


class Files(PageCase):
    def save(self, page, name):
        with page.expect_download() as download:
            page.locator(f"#save-{name}").click()
        return download.value.suggested_filename, pathlib.Path(download.value.path()).read_bytes()

    def test_files(self):
        a = weights(2, 3, 3)
        tokens = ['say "no"', "a,b", "[SEP]"]
        self.write(attn=a, src=tokens, mask=np.tri(3, dtype=bool))
        page = self.open("head=1&scale=sqrt")
        name, data = self.save(page, "csv")
        self.assertEqual(name, "a-head-1.csv")
        rows = list(csv.reader(io.StringIO(data.decode())))
        self.assertEqual(rows[0][1:], tokens)
        self.assertEqual([row[0] for row in rows[1:]], tokens)
        self.assertEqual(rows[1][2:], ["", ""])
        np.testing.assert_array_equal(np.float32(rows[3][1:]), a[1, 2])
        name, _ = self.save(self.open("head=1&compare=map&second=0"), "csv")
        self.assertEqual(name, "a-head-1-minus-head-0.csv")
        name, _ = self.save(self.open("head=1&compare=map&second=0"), "svg")
        self.assertEqual(name, "a-head-1-with-head-0.svg")
        page = self.open("head=1&scale=sqrt")
        name, data = self.save(page, "svg")
        self.assertEqual(name, "a-head-1.svg")
        texts = list(ElementTree.fromstring(data).itertext())
        self.assertTrue(
            {
                *tokens,
                "head 1",
                "masked",
                "colours: square root scale",
                f"{tokens[1]} → {tokens[0]}: {a[1, 1, 0]!s}",
            }
            <= set(texts)
        )
        name, data = self.save(page, "png")
        image = pixels(data)
        self.assertEqual(name, "a-head-1.png")
        self.assertEqual(tuple(image[0, 0][:3]), (255, 255, 255))
        self.assertTrue((image[..., :3] == FULL).all(-1).any())

    def test_text_with_masked_and_hidden_tokens(self):
        tokens = ["[CLS]", "one", "two", "three"]
        self.write(attn=weights(1, 4, 4), src=tokens, tgt=tokens, mask=np.tri(4, dtype=bool))
        _, data = self.save(self.open("view=text&query=2&special=hidden"), "svg")
        words, hatched = words_of(data)
        self.assertEqual(
            words, {"[CLS]": "line-through", "one": "none", "two": "none", "three": "none"}
        )
        self.assertEqual(hatched, ["three"])

    def test_text_and_large_maps(self):
        self.write(attn=weights(1, 120, 120), src=[f"t{n}" for n in range(120)])
        _, data = self.save(self.open("view=text&query=3"), "svg")
        self.assertTrue({"t0", "t119"} <= set(ElementTree.fromstring(data).itertext()))
        _, data = self.save(self.open(), "svg")
        image = ElementTree.fromstring(data).find(".//{http://www.w3.org/2000/svg}image")
        self.assertTrue(image.get("href").startswith("data:image/png;base64,"))
        self.assertGreater(len(self.save(self.open(), "png")[1]), 1000)


def words_of(data):
    """The decoration of each word in the SVG of the text view, and the words that are hatched."""
    name = "{http://www.w3.org/2000/svg}"
    groups = ElementTree.fromstring(data).iter(f"{name}g")
    group = next(element for element in groups if element.get("font-size") == "17")
    words, hatched = {}, []
    is_hatched = False
    for element in group:
        if element.tag == f"{name}rect":
            is_hatched = element.get("fill").startswith("url(")
        elif element.tag == f"{name}text" and element.get("text-decoration"):
            words[element.text] = element.get("text-decoration")
            hatched += [element.text] if is_hatched else []
            is_hatched = False
    return words, hatched


class Access(PageCase):
    def test_rules_of_axe(self):
        try:
            from axe_playwright_python.sync_playwright import Axe
        except ImportError:
            self.skipTest("there is no axe_playwright_python")
        tokens = ["[CLS]", "one", "two", "</s>"]
        np.savez(self.dir / "b.npz", attn=weights(3, 2, 2, 4, 4, seed=1), src=[tokens] * 3)
        self.write(
            "--minus",
            "b.npz",
            attn=weights(3, 2, 2, 4, 4),
            src=[tokens] * 3,
            mask=np.tri(4, dtype=bool),
        )
        # The page's policy forbids to add axe as an element, so evaluate() gets its code.
        axe = Axe().axe_script
        for state in (
            "",
            "view=arcs&compare=none&query=1",
            "view=text&theme=dark&special=hidden",
            "theme=dark&query=1&key=0",
            "compare=none&measure=entropy",
            "compare=none&theme=dark&measure=first&view=text&colours=viridis",
        ):
            page = self.open(state)
            page.evaluate(axe)
            found = page.evaluate("axe.run()")["violations"]
            faults = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]
            self.assertEqual(faults, [], state)

    def test_narrow(self):
        self.write(attn=weights(4, 12, 30, 30), src=[f"token {n}" for n in range(30)])
        for view in ("map", "arcs", "text"):
            page = self.open(f"view={view}", width=400)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 400, view)


class Scores(PageCase):
    def test_scores_are_no_weights(self):
        scores = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
        np.savez(self.dir / "a.npz", scores=scores, src=["[CLS]", "a", "b"])
        self.run_qkv("--quiet", "view", "a.npz:scores", "-o", "page.html")
        page = self.open("special=renormalised&measure=entropy&query=1&key=2")
        self.assertEqual(page.locator("#special option").all_inner_texts(), ["shown", "hidden"])
        self.assertFalse(page.locator("#measure").is_visible())
        self.assertEqual(page.locator("#grid canvas").count(), 2)
        self.assertEqual(self.text(page, "#about"), "2 heads · 3 queries × 3 keys · exact numbers")
        self.assertTrue(
            self.text(page, "#readout").startswith(
                f"a → b: {scores[0, 1, 2]!s}".replace("-", MINUS)
            )
        )


class Examples(PageCase):
    def test_examples_of_different_lengths(self):
        a = weights(3, 2, 4, 4)
        mask = np.ones((3, 1, 1, 4), bool)
        mask[2, ..., 2:] = mask[1] = False
        src = [["a", "b", "c", "d"], ["[PAD]"] * 4, ["e", "f", "[PAD]", "[PAD]"]]
        np.savez(self.dir / "a.npz", attn=a, src=src, mask=mask)
        self.run_qkv("--quiet", "view", "a.npz", "--order", "examples,heads", "-o", "page.html")
        page = self.open()
        names = page.locator("#example option").all_inner_texts()
        self.assertEqual(names, ["0: a b c d", "2: e f"])  # example 1 is all padding
        self.choose(page, "example", "1")
        label = page.locator(".scroll").first.get_attribute("aria-label")
        self.assertIn(": 2 queries, 2 keys. ", label)
        self.assertTrue(re.search("2 of 4 queries are padding", self.text(page, "#notes")))


if __name__ == "__main__":
    unittest.main()
