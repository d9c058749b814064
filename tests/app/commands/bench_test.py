# SPDX-License-Identifier: Apache-2.0
"""Tests of what `qkv bench` prints. They do not check how fast anything is.

usage: bench_test.py PROGRAM [unittest arguments]
"""

import json
import unittest

from program import Case


class Bench(Case):
    def rows(self, *groups):
        done = self.run_qkv("bench", *groups, "--quick", "--json")
        return json.loads(done.out)

    def test_the_table_has_a_line_for_each_row_and_says_what_its_columns_mean(self):
        done = self.run_qkv("bench", "small", "--quick")
        lines = done.out.splitlines()
        head = next(n for n, line in enumerate(lines) if line.startswith("row "))
        self.assertEqual(lines[head].split(),
                         "row n time spread clock rate scratch figure target".split())
        self.assertEqual([line.split()[0] for line in lines[head + 1:head + 3]],
                         ["small/plan", "small/attention"])
        self.assertIn("spread: (best - median) / best", done.out)
        self.assertIn("QUICK", done.out)

    def test_json_has_facts_and_rows_by_name(self):
        report = self.rows("small", "options")
        for key in "command commit date cpu compiler cpu_target threads quick rows".split():
            self.assertIn(key, report)
        self.assertTrue(report["quick"])
        self.assertEqual(report["command"], "qkv bench small options --quick")
        names = [f"options/{name}"
                 for name in "dropout mask soft-cap bias alibi key-lengths padding padding-nan "
                              "far-apart".split()]
        self.assertEqual(list(report["rows"]), [*names, "small/plan", "small/attention"])
        for name, row in report["rows"].items():
            self.assertIn(row["verdict"], ("none", "noisy"), name)
            self.assertIsNone(row["target"], name)  # targets hold only without --quick
            self.assertGreater(row["n"], 0)
            self.assertGreater(row["median"], 0)
            self.assertGreaterEqual(row["spread"], 0)
            self.assertIn(row["clock"], ("wall", "cpu"))
        self.assertIn("seconds", report["rows"]["small/plan"])
        self.assertIn("ratio_to_plain", report["rows"]["options/bias"])

    def test_every_group_gives_right_results(self):
        groups = ("forward backward options custom values decode many threads additive bilinear "
                  "dense small widths").split()
        report = self.rows(*groups, "--threads", 2)
        for group in groups:
            self.assertTrue(any(name.startswith(group + "/") for name in report["rows"]), group)
        self.assertNotIn("wrong", [row["verdict"] for row in report["rows"].values()])
        self.check_gradients(report["rows"])
        self.check_units(report["rows"])
        self.check_products(report["rows"])

    def check_gradients(self, rows):
        self.assertEqual(rows["backward/T64-D64"]["work"], 10 * 64 * 64 * 64)
        self.assertEqual(rows["backward/T64-D64-causal"]["work"], 10 * 64 * 65 / 2 * 64)
        self.assertEqual(rows["backward/T64-D64-threads"]["threads"], 2)
        self.assertIn("share_of_peak", rows["backward/T64-D64-threads"])
        for name in "dropout mask soft-cap bias decay".split():
            self.assertIn("ratio_to_plain", rows[f"backward/{name}"])
        for name in "alibi-0.5 alibi-0.5-backward soft-cap soft-cap-backward".split():
            self.assertIn("ratio_to_harmless", rows[f"values/{name}"])

    def check_units(self, rows):
        for name in ("additive/T64-U32-D64", "additive/T64-U32-D64-backward"):
            row = rows[name]
            self.assertEqual(row["work"], 64 * 64 * 32)
            self.assertEqual(row["units_per_second"], row["rate"])
            self.assertEqual(row["matrix"], 4 * row["work"])
        self.assertEqual(rows["additive/T64-U32-D64-threads"]["threads"], 2)
        self.assertIn("share_of_rate", rows["additive/translator-D64-share"])
        self.assertIn("1.1 multiply-adds", rows["additive/translator-D16-share"]["note"])
        self.assertEqual(rows["additive/speech-step-D64-memory"]["path"],
                         rows["additive/speech-step-D64"]["path"])
        self.assertIn("ratio_to_plain", rows["bilinear/T64-D128-backward"])

    def check_products(self, rows):
        for product in "forward input weight".split():
            row = rows[f"dense/4x7x4-{product}"]
            self.assertEqual(row["work"], 2 * 4 * 7 * 4)
            self.assertIn("share_of_peak", row)
            self.assertEqual(rows[f"dense/12x5x6-{product}-threads"]["threads"], 2)
        self.assertEqual(rows["dense/4x7x4-packed"]["work"], 2 * 4 * 7 * 4)
        forward = rows["dense/gru-B2-T4-I32-H64-forward"]["work"]
        self.assertEqual(forward, 2 * 2 * 4 * 3 * 64 * (32 + 64))
        self.assertEqual(rows["dense/gru-B2-T4-I32-H64-backward"]["work"], 2 * forward)

    def test_pages_stand_beside_the_same_keys_in_one_piece(self):
        rows = self.rows("decode", "--page", 128, "--threads", 1)["rows"]
        names = list(rows)
        self.assertEqual(names[:3], [f"decode/T512-G8-D64-queries1{order}"
                                     for order in ("", "-by-token", "-pages128")])
        self.assertNotIn("wrong", [row["verdict"] for row in rows.values()])
        self.assertEqual({row["work"] for row in list(rows.values())[:3]},
                         {2 * 2 * 8 * 512 * 64 * 4})

    def test_one_thread_has_nothing_to_share(self):
        self.assertEqual(self.rows("threads", "--threads", 1)["rows"], {})

    def test_files_get_what_their_extensions_say(self):
        done = self.run_qkv("bench", "small", "--quick", "-o", "a.json", "-o", "a.txt")
        self.assertIn("small/plan", json.loads((self.dir / "a.json").read_text())["rows"])
        self.assertIn("small/plan", (self.dir / "a.txt").read_text())
        self.assertIn("small/plan", done.out)


if __name__ == "__main__":
    unittest.main()
