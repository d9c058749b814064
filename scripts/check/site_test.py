#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what makes the sources of the site (scripts/site/), without Sphinx and Doxygen."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))

import docstrings  # noqa: E402
import doxygen_filter  # noqa: E402
import pages  # noqa: E402


class Links(unittest.TestCase):
    def where(self, name, target, repository=""):
        return pages.new_target(ROOT, name, target, repository)

    def test_pages_lead_to_pages(self):
        self.assertEqual(self.where("README.md", "docs/cpp.md#install"), "/cpp.md#install")
        self.assertEqual(self.where("docs/cpp.md", "../README.md#c"), "/index.md#c")
        self.assertEqual(self.where("docs/contributing/proof.md", "../../CHANGELOG.md"),
                         "/changelog.md")
        self.assertEqual(self.where("docs/README.md", "../CONTRIBUTING.md"),
                         "/contributing/rules.md")
        self.assertEqual(self.where("README.md", "docs/README.md"), "/map.md")

    def test_folders_have_pages(self):
        self.assertEqual(self.where("docs/README.md", "decisions"), "/decisions.rst")
        self.assertEqual(self.where("docs/benchmarks-amd.md", "../bench/results"),
                         "/measurements.rst")

    def test_other_targets(self):
        for same in ("#limits", "https://a.example/b.md", "mailto:a@b.example"):
            self.assertEqual(self.where("README.md", same), same)
        self.assertEqual(self.where("README.md", "docs/images/words.svg"), "/images/words.svg")
        self.assertEqual(self.where("docs/seeds.md", "../tests/seed_numbers.tsv"),
                         "/files/tests/seed_numbers.tsv")
        self.assertEqual(
            self.where("docs/seeds.md", "../tests/seed_numbers.tsv", "https://a.example/main/"),
            "https://a.example/main/tests/seed_numbers.tsv")
        for wrong in ("absent.md", "../src", "../../elsewhere"):
            with self.assertRaisesRegex(pages.Wrong, f"docs/cpp.md: .* {wrong}"):
                self.where("docs/cpp.md", wrong)

    def test_text(self):
        text = ("See [a](docs/cpp.md), [b\nc](docs/python.md#more) <img src=\"docs/images/words.svg\">"
                "\n```sh\n[a](docs/cpp.md) <!-- x -->\n```\n<!-- output -->\n```text\n```\n"
                "takes <!-- bench: a b c -->2 s\n")
        self.assertEqual(pages.rewritten(ROOT, "README.md", text), (
            "See [a](/cpp.md), [b\nc](/python.md#more) <img src=\"/images/words.svg\">"
            "\n```sh\n[a](docs/cpp.md) <!-- x -->\n```\n<!-- output -->\n```text\n```\n"
            "takes 2 s\n"))

    def test_first_page(self):
        self.assertEqual(pages.first_page("# a\n\n## Python\n\nb\n", "STARTS\n", "CONTENTS\n"),
                         "# a\n\nSTARTS\n\n## Python\n\nb\n\nCONTENTS\n")
        with self.assertRaises(pages.Wrong):
            pages.first_page("# a\n", "", "")


class Sources(unittest.TestCase):
    def test_all_pages_and_headers(self):
        found = pages.sources(ROOT)
        for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
            self.assertIn(f"{pages.pages(ROOT)[path.relative_to(ROOT).as_posix()]}.md", found)
        for path in (ROOT / "include").rglob("*.h"):
            name = path.relative_to(ROOT / "include").with_suffix("").as_posix()
            self.assertIn(f"api/{name}.rst", found)
        # doxygenfile finds a header by its name alone.
        names = [path.name for path in (ROOT / "include").rglob("*.h")]
        self.assertEqual(len(names), len(set(names)))
        rows = [line for line in (ROOT / "tests/errors.tsv").read_text(encoding="utf-8").splitlines()
                if line and not line.startswith("#")]
        self.assertEqual(found["error-messages.rst"].count("   * - ``"), len(rows))
        for place, what in found.items():
            if isinstance(what, pathlib.Path):
                self.assertTrue(what.is_file(), place)

    def test_old_files_are_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            old = pathlib.Path(folder) / "old.md"
            old.write_text("old", encoding="utf-8")
            count = pages.write_sources(ROOT, pathlib.Path(folder))
            self.assertFalse(old.exists())
            index = pathlib.Path(folder) / "index.md"
            before = index.stat().st_mtime_ns
            self.assertEqual(pages.write_sources(ROOT, pathlib.Path(folder)), count)
            self.assertEqual(index.stat().st_mtime_ns, before)

    def test_purpose_of_a_header(self):
        self.assertEqual(pages.purpose("// SPDX\n#include <a>\n\n// `f` at *p:\n//   f(p);\n"
                                       "// Then more.\nnamespace qkv {\n"),
                         "``f`` at \\*p:\n\n::\n\n  f(p);\n\nThen more.")
        self.assertEqual(pages.purpose("// SPDX\n\nnamespace qkv {\n"), "")

    def test_private_members_are_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.xml"
            path.write_text('<doxygen><compounddef><sectiondef kind="private-func"/>'
                            '<sectiondef kind="public-func"/><innerclass prot="private"/>'
                            "</compounddef></doxygen>", encoding="utf-8")
            pages.drop_private(pathlib.Path(folder))
            self.assertNotIn("private", path.read_text(encoding="utf-8"))
            self.assertIn("public-func", path.read_text(encoding="utf-8"))


class Headers(unittest.TestCase):
    def check(self, text, want):
        self.assertEqual(doxygen_filter.filtered(text), want)

    def test_comments(self):
        self.check("// Does `a` <b>.\nvoid f();\n", "/// Does <tt>a</tt> \\<b\\>.\nvoid f();\n")
        self.check("  int a = 0;  // of [B]\n", "  int a = 0;  ///< of [B]\n")
        self.check("// ---- part ----\n\n// alone\n\nint a;\n", "// ---- part ----\n\n// alone\n\nint a;\n")
        self.check("// A file.\nnamespace qkv {\n}  // namespace qkv\n",
                   "// A file.\nnamespace qkv {\n}  // namespace qkv\n")
        self.check("  X(int a)  // NOLINT\n", "  X(int a)  // NOLINT\n")

    def test_shown_lines_and_lists(self):
        self.check("// So:\n//   f();\n//   g();\n// - one\n//   more\nint a;\n",
                   "/// So:\n/// <pre>  f();\n///   g();</pre>\n/// - one\n///   more\nint a;\n")

    def test_overloads(self):
        self.check("// Does.\nvoid f(int a);\nvoid f(int a,\n       int b);\nvoid g();\n\nvoid g();\n",
                   "/// Does.\nvoid f(int a);\n/** \\overload */ void f(int a,\n       int b);\n"
                   "void g();\n\nvoid g();\n")


class Docstrings(unittest.TestCase):
    def test_text_becomes_rst(self):
        self.assertEqual(
            docstrings.as_rst(["Does `a|b` for |x|.", "", "Args:", "    a, b,", "    c: three",
                               "", "Returns:", "    out: the sum of a_", "", ">>> f(|x|)"]),
            ["Does ``a|b`` for \\|x\\|.", "", "Args:", "    a, b, c: three", "", ":returns:",
             "    out: the sum of a\\_", "", ">>> f(|x|)"])

    def test_properties_have_no_type(self):
        lines = ["The path: `a`."]
        docstrings.process(None, "property", "", None, None, lines)
        self.assertEqual(lines, ["The path – ``a``."])


if __name__ == "__main__":
    unittest.main()
