#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv` with QKV_TARGET in the environment: the paths of calls, and the numbers of each.

usage: target_test.py PROGRAM [TEST ...]
"""

import json
import os
import unittest
import unittest.mock

import numpy as np
from program import Case

TARGETS = ("amx", "avx512bf16", "avx512", "avx2", "sse4", "amx-emulated", "reference")
# The prefix of each score's paths.
FAMILIES = {"dot": "dot", "scaled_dot": "dot", "cosine": "dot", "bilinear": "dot",
            "additive": "additive"}


class Targets(Case):
    def paths(self, target):
        """Returns the paths of each score's calls with any dtypes and options, forward and
        backward; None if the processor lacks the target."""
        env = {"QKV_TARGET": target}
        done = self.run_qkv("info", "--paths", "--json", code=None, env=env)
        if done.returncode != 0:
            self.assertIn(f'QKV_TARGET is "{target}"', done.err)
            return None
        paths = {}
        for path in json.loads(done.out)["paths"]:
            paths.setdefault(path["score"], set()).update((path["forward"], path["backward"]))
        return paths

    def attended(self, target):
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--causal", "--save", "out,lse,weights",
                     "-o", "out.npz", env={"QKV_TARGET": target})
        return dict(np.load(self.dir / "out.npz"))

    def test_the_requested_target_runs_and_agrees_with_the_reference(self):
        random = np.random.default_rng(1)
        for name, shape in (("q", (2, 50, 16)), ("k", (2, 70, 16)), ("v", (2, 70, 9))):
            np.save(self.dir / f"{name}.npy", random.normal(size=shape).astype(np.float32))
        want = self.attended("reference")
        ran = []
        for target in TARGETS:
            paths = self.paths(target)
            if paths is None:
                continue
            ran.append(target)
            for score, family in FAMILIES.items():
                name = target if target == "reference" else f"{family}/{target}"
                self.assertEqual(paths[score], {name})
            got = self.attended(target)
            self.assertEqual(sorted(got), sorted(want))
            for result in ("out", "lse", "weights"):
                self.near(got[result], want[result], 1e-5)
        self.assertIn("reference", ran)

    def machine(self, target=None):
        """Returns what `qkv info` says of the machine, with or without QKV_TARGET."""
        env = {"QKV_TARGET": target} if target else {}
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("QKV_TARGET", None)
            return json.loads(self.run_qkv("info", "--json", env=env).out)["machine"]

    def test_info_names_the_targets_and_the_one_in_use(self):
        machine = self.machine()
        targets = machine["CPU targets"].split()
        order = [target for target in TARGETS if target in targets]
        reason = machine.get("avx512bf16")
        if reason is not None:  # Intel's CPUs prefer avx512
            first = order.index("avx512bf16")
            order[first:first + 2] = reversed(order[first:first + 2])
            self.assertTrue(reason.startswith("available, but avx512 is preferred"))
        self.assertEqual(targets, order)
        self.assertEqual(targets[-1], "reference")
        self.assertEqual(machine["CPU target"], targets[0])
        for target in targets:
            self.assertEqual(self.machine(target),
                             {**machine, "CPU target": target})
        error = self.refuse(1, "info", env={"QKV_TARGET": "warp"})
        self.assertIn("targets are: " + ", ".join(targets), error)

    def test_an_unknown_target_is_an_error_that_lists_the_targets(self):
        np.save(self.dir / "q.npy", np.ones((2, 3), np.float32))
        error = self.refuse(1, "attend", "q.npy", "q.npy", "q.npy", env={"QKV_TARGET": "warp"})
        self.assertRegex(error, r'^(qkv: )?QKV_TARGET is "warp" .*targets are: .*\breference$')


if __name__ == "__main__":
    unittest.main()
