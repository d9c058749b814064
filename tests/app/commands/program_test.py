#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the program `qkv` as its users see it: messages, exit codes, files, pipes.

usage: program_test.py PROGRAM [TEST ...]
"""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import unittest

import numpy as np
from program import CHECKOUT, PATIENCE, PROGRAM, Case, unread


class Hostile(Case):
    """Word vector files in unusual but valid forms."""

    def vectors(self, text):
        return self.run_qkv("words", "cat", "--vectors", self.file("v.txt", text)).out

    def test_unusual_files_are_read(self):
        plain = self.vectors("the 1 2\ncat 3 4\n")
        for text in ("the 1 2\ncat 3 4", "the 1 2\r\ncat 3 4\r\n", "\ufeffthe 1 2\ncat 3 4\n",
                     "2 2\nthe 1 2\ncat 3 4\n"):
            self.assertEqual(self.vectors(text), plain, repr(text))


class Outputs(Case):
    """Files are written atomically; pipes may close."""

    def test_no_room_half_way(self):
        self.file("out.npz", "old")
        text = " ".join(f"w{i}" for i in range(100))
        self.refuse(4, "words", text, "-o", "out.npz",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
        self.assertEqual((self.dir / "out.npz").read_bytes(), b"old")
        self.assertEqual(self.names(), ["out.npz"])

    def test_a_closed_pipe_ends_quietly_and_keeps_the_file(self):
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run([PROGRAM, "words", "a b", "-o", "out.npz"], stdout=write_end,
                              stderr=subprocess.PIPE, cwd=self.dir, timeout=PATIENCE, check=False)
        os.close(write_end)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.names(), ["out.npz"])

    def test_interrupt(self):
        with subprocess.Popen([PROGRAM, "words", "cat", "--vectors", "-"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdin.write(b"the 1 2\n" * 100000)
            process.stdin.flush()
            self.wait_until(lambda: unread(process.stdin) == 0)
            self.wait_until_it_waits(process)
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=PATIENCE)
            process.stdin.close()
            self.assertEqual((code, process.stdout.read()), (130, b""))

    def test_interrupt_while_waiting_for_arrays(self):
        np.save(self.dir / "k.npy", np.ones((2, 2)))
        os.mkfifo(self.dir / "fifo")
        for arguments in (["view", "-"], ["stats", "-"], ["attend", "-", "k.npy"],
                          ["attend", "k.npy", "k.npy", "--mask", "-"], ["view", "fifo"],
                          ["inspect", "--as", "npz", "-"], ["inspect", "fifo"],
                          ["translate", "fifo", "x"], ["score", "fifo", "x"],
                          ["words", "a b", "--score", "bilinear", "--params", "fifo"]):
            for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
                with subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.PIPE, cwd=self.dir,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                    self.wait_until_it_waits(process)
                    process.send_signal(number)
                    try:
                        got = process.wait(timeout=PATIENCE)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        got = "still waiting"
                    process.stdin.close()
                    self.assertEqual((got, process.stdout.read()), (code, b""), arguments)

    def test_outputs_that_are_symbolic_links(self):
        (self.dir / "there").mkdir()
        os.symlink("there/new.npz", self.dir / "link.npz")
        self.run_qkv("words", "a b", "-o", "link.npz")
        self.assertTrue((self.dir / "link.npz").is_symlink())
        self.assertEqual(os.listdir(self.dir / "there"), ["new.npz"])


    def test_interrupt_while_another_program_draws(self):
        """A renderer that never ends is killed, and leaves no files."""
        (self.dir / "bin").mkdir()
        program = self.dir / "bin" / "rsvg-convert"
        os.mkfifo(self.dir / "bin" / "fifo")
        fifo = os.open(self.dir / "bin" / "fifo", os.O_RDWR)  # kept open, so that its reader waits
        self.addCleanup(os.close, fifo)
        program.write_text("#!/bin/sh\necho $$ >pid.tmp && mv pid.tmp pid\nexec cat bin/fifo\n")
        program.chmod(0o755)
        path = f"{program.parent}:{os.environ['PATH']}"
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with subprocess.Popen([PROGRAM, "words", "a b", "-o", "o.png"], cwd=self.dir,
                                  env={**os.environ, "PATH": path}, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as process:
                self.wait_until((self.dir / "pid").exists)
                process.send_signal(number)
                try:
                    ended = process.wait(timeout=PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
                self.assertEqual((ended, process.stdout.read(), process.stderr.read()),
                                 (code, b"", b""))
            child = int((self.dir / "pid").read_text())
            self.assertRaises(ProcessLookupError, os.kill, child, 0)
            (self.dir / "pid").unlink()
            self.assertEqual(self.names(), ["bin"])


class CommandLine(Case):
    def test_help_has_examples(self):
        commands = [["--help"], *([name, "--help"] for name in self.commands())]
        for arguments in commands:
            done = self.run_qkv(*arguments)
            self.assertEqual(done.err, "")
            self.assertGreaterEqual(len(re.findall(r"^  .*\bqkv ", done.out, re.M)), 2, arguments)
        self.assertIn("Spelling vectors", self.run_qkv("words", "--help").out)

    def test_examples_of_the_help_run(self):
        """A shell runs the examples, with their files; those of demo and bench are shortened."""
        random = np.random.default_rng(0)
        arrays = {name: random.normal(size=(2, 4, 6, 8)) for name in "qkv"}
        np.savez(self.dir / "qkv.npz", **arrays)
        for name, array in arrays.items():
            np.save(self.dir / f"{name}.npy", array)
        # The attention file is the first one that docs/pictures.md makes.
        pictures = (CHECKOUT / "docs/pictures.md").read_text(encoding="utf-8")
        numpy = re.search(r"(?m)^```python\n((?:(?!```).*\n)*.*a\.npz.*\n)```", pictures)
        subprocess.run([sys.executable, "-c", numpy[1]], cwd=self.dir, check=True)
        words = "the cat walked on street".split()
        for name in ("glove.6B.50d.txt", "words.txt"):
            self.file(name, "".join(f"{word}{' 0.5' * 50}\n" for word in words))
        environment = {"PATH": f"{os.path.dirname(os.path.abspath(PROGRAM))}:{os.environ['PATH']}"}
        for command in ([], *([name] for name in self.commands())):
            text = self.run_qkv(*command, "--help").out
            for line in re.findall(r"(?m)^  (?:.*\| )?(qkv .*)$", text.split("Examples:\n")[1]):
                shorter = {"qkv demo": " --tokens 64", "qkv bench": " --quick"}
                line += next((end for begin, end in shorter.items()
                              if line.startswith(begin) and end.split()[0] not in line), "")
                done = subprocess.run(line, shell=True, cwd=self.dir, capture_output=True,
                                      env={**os.environ, **environment}, timeout=PATIENCE, check=False)
                # Long tasks show progress, a picture of a part has notes, and translations by a
                # model of few updates may be cut off.
                messages = re.sub(rb"(?m)^qkv: ((bench|gen|reading \S+|score|train|translate|a\.npz): .*|"
                                  rb".* reached --most-tokens .*)\n", b"", done.stderr)
                self.assertEqual((done.returncode, messages), (0, b""), line)

    def test_the_picture_of_the_documents_is_what_its_command_draws(self):
        page = (CHECKOUT / "docs/pictures.md").read_text(encoding="utf-8")
        words = re.search(r'(?m)^\$ qkv words "([^"]*)" -o words.svg', page)
        self.run_qkv("words", words[1], "-o", "words.svg")
        want = (CHECKOUT / "docs/images/words.svg").read_bytes()
        self.assertEqual((self.dir / "words.svg").read_bytes(), want)

    def test_version_is_the_header_s(self):
        header = (CHECKOUT / "include/qkv/version.h").read_text(encoding="utf-8")
        numbers = re.findall(r"#define QKV_VERSION_\w+ (\d+)", header)
        self.assertEqual(self.run_qkv("--version").out, "qkv " + ".".join(numbers) + "\n")

    def test_help_lists_the_formats_that_the_command_writes(self):
        """The formats in the help are those that the error of an unknown extension names."""
        built = json.loads(self.run_qkv("info", "--json").out)["build"]["writes"]
        arguments = {"attend": "qk", "words": "a", "view": "a", "stats": "a", "curve": "r",
                     "translate": "rt", "score": "rd"}
        found = set()
        for command in self.commands():
            listed = re.search(r"--format (\S+)", self.run_qkv(command, "--help").out)
            if listed:
                error = self.refuse(2, command, *arguments.get(command, ""), "-o", "a.unknown")
                valid = re.findall(r"\.(\w+)", error.split("valid: ")[1])
                self.assertEqual(listed[1].split("|"), valid, command)
                error = self.refuse(2, command, *arguments.get(command, ""), "-o", "-", "--format", "?")
                self.assertEqual(re.findall(r"\w+", error.split("valid: ")[1]), valid, command)
                found.update(valid)
        self.assertEqual(found, set(re.findall(r"\.(\w+)", built)))
        self.assertGreater(found, {"svg", "npz", "json"})

    def test_usage_shows_what_may_be_left_out(self):
        usages = {}
        for command in self.commands():
            text = self.run_qkv(command, "--help").out
            usages[command] = re.search(r"(?m)^Usage: qkv \w+ \[OPTIONS\] ?(.*)$", text)[1]
        self.assertEqual({command: usage for command, usage in usages.items() if "[" in usage},
                         {"attend": "Q K [V]", "translate": "[RUN] [TEXT]", "score": "[RUN] DATA",
                          "bench": "[GROUP]"})
        self.assertEqual({command for command, usage in usages.items() if not usage}, {"info", "demo"})

    def test_an_unknown_option_has_a_short_message(self):
        for command in self.commands():
            line = self.refuse(2, command, "--unknown-option")
            self.assertLessEqual(len(line), len("qkv: \n") + 220)
            self.assertRegex(line, r'^qkv: unknown option "--unknown-option"(.*; )options: --help, --')
        self.assertRegex(self.refuse(2, "attend", "--unknown-option"),
                         r", --[\w-]+ and \d+ more; see qkv attend --help\n$")

    def test_common_options_on_either_side(self):
        want = self.run_qkv("words", "a b").out
        self.assertEqual(self.run_qkv("--threads", 2, "--quiet", "words", "a b").out, want)
        self.assertEqual(self.run_qkv("words", "a b", "--threads", 2, "--quiet").out, want)


class Progress(Case):
    """Progress on standard error while two words are read from a file of some megabytes."""

    def read(self, *arguments, **options):
        with open(self.dir / "v.txt", "w", encoding="utf-8") as file:
            numbers = " 0.123456" * 300
            file.writelines(f"w{i}{numbers}\n" for i in range(2000))
        return self.run_qkv("words", "w7 w1999", "--vectors", "v.txt", *arguments, **options)

    def test_lines_where_there_is_no_terminal(self):
        lines = self.read("--progress", "always").err.splitlines()
        self.assertGreaterEqual(len(lines), 1)
        for line in lines:
            self.assertRegex(line, r"^qkv: reading v\.txt: \d+ % of 5\.4 MB$")
        self.assertIn(" 100 % ", lines[-1])

    def test_silence_where_it_is_unwanted(self):
        for arguments in (["--progress", "never"], ["--quiet"], ["--progress", "auto", "--quiet"]):
            self.assertEqual(self.read(*arguments).err, "", arguments)

    def test_one_line_on_a_terminal(self):
        self.read("--quiet")
        shown = self.on_terminal("words", "w7 w1999", "--vectors", "v.txt", "--progress", "always",
                                 stream="stderr")
        self.assertNotIn(b"\n", shown)
        self.assertRegex(shown, rb"^\rqkv: reading v\.txt: \d+ % of 5\.4 MB\x1b\[K")
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)


    def test_a_line_never_wraps_on_a_narrow_terminal(self):
        self.read("--quiet")
        shown = self.on_terminal("words", "w7 w1999", "--vectors", "v.txt", "--progress", "always",
                                 stream="stderr", size=(24, 10))
        lines = [part.removesuffix("\x1b[K") for part in shown.decode().split("\r")]
        self.assertEqual(max(map(len, lines)), 9, lines)
        self.assertNotIn("\n", shown.decode())


class Info(Case):
    def test_says_what_was_built(self):
        text = self.run_qkv("info").out
        version = self.run_qkv("--version").out.split()[1]
        self.assertRegex(text, rf"(?m)^version +{re.escape(version)}$")
        for name in ("compiler", "build", "libzip", "utf8proc", "sentencepiece",
                     "processor", "threads", "writes"):
            self.assertRegex(text, rf"(?m)^{name} +\S")
        self.assertRegex(text, r"(?m)^writes .*\.npz.*\.svg")

    def test_json_says_the_same(self):
        report = json.loads(self.run_qkv("info", "--json").out)
        lines = dict(re.split("  +", line, maxsplit=1)
                     for line in self.run_qkv("info").out.splitlines() if line)
        self.assertEqual({**report["build"], **report["machine"]}, lines)

    def gpus(self, driver):
        """Returns the GPUs that `qkv info` reports with a driver of tests/cuda instead of CUDA's;
        "" if the program has no CUDA kernels."""
        folder = pathlib.Path(PROGRAM).parents[1] / "tests" / "cuda" / driver
        self.assertTrue((folder / "libcuda.so.1").is_file(), folder)
        report = json.loads(self.run_qkv("info", "--json", env={"LD_LIBRARY_PATH": str(folder)}).out)
        gpus = {name: text for name, text in report["machine"].items() if name.startswith("GPU")}
        if report["build"]["CUDA kernels"] == "none":
            self.assertEqual(gpus, {"GPU": "none: this build has no CUDA kernels (QKV_CUDA)"})
            return ""
        self.assertRegex(report["build"]["CUDA kernels"], r"^by nvcc 1[2-9]\.[0-9.]+$")
        return gpus

    def test_lists_gpus(self):
        gpus = self.gpus("devices")
        if gpus:
            self.assertEqual(gpus, {
                "GPU 0": "NVIDIA H100 80GB HBM3, compute capability 9.0, 79 GiB, 132 multiprocessors",
                "GPU 1": "Tesla T4, compute capability 7.5, 15 GiB, 40 multiprocessors; cannot be used: "
                         "the kernels need 8.0",
                "GPU 2": "NVIDIA A100-SXM4-40GB, compute capability 8.0, 40 GiB, 108 multiprocessors"})

    def test_says_why_there_is_no_gpu(self):
        for driver, reason in (("no_device", "the CUDA driver finds no device"),
                               ("stub", "starting the CUDA driver: CUDA_ERROR_STUB_LIBRARY (CUDA driver is a stub library)"),
                               ("without_launch", "the CUDA driver is too old: libcuda.so.1 has no function cuLaunchKernel")):
            gpus = self.gpus(driver)
            if gpus:
                self.assertEqual(gpus, {"GPU": f"none: {reason}"})

    def test_the_machines_own_gpus(self):
        machine = json.loads(self.run_qkv("info", "--json").out)["machine"]
        gpus = {name: text for name, text in machine.items() if name.startswith("GPU")}
        self.assertTrue(gpus)
        for name, text in gpus.items():
            self.assertRegex(f"{name}: {text}", r"^GPU( \d+: .+, compute capability \d+\.\d, \d+ GiB, "
                                                r"\d+ multiprocessors(; .*)?|: none: [^\n]+)$")

    def test_threads_are_those_the_process_may_use(self):
        report = json.loads(self.run_qkv("info", "--json").out)
        self.assertEqual(int(report["machine"]["threads"]), len(os.sched_getaffinity(0)))

    def test_says_when_pngs_cannot_be_drawn(self):
        self.assertIn("librsvg2-bin", self.run_qkv("info", env={"PATH": ""}).out)

    def test_every_kind_of_call_has_a_path(self):
        paths = json.loads(self.run_qkv("info", "--paths", "--json").out)["paths"]
        kinds = {(path["score"], path["options"], path["dtype"]) for path in paths}
        self.assertEqual(len(kinds), len(paths))
        scores, options, dtypes = (set(column) for column in zip(*kinds))
        self.assertEqual(scores, {"dot", "scaled_dot", "bilinear", "additive", "cosine"})
        self.assertTrue({"float32", "float64", "bfloat16", "float16"} < dtypes)
        self.assertTrue({"plain", "causal", "packed", "dropout", "user's score"} < options)
        self.assertEqual(len(paths), len(scores) * len(options) * len(dtypes))
        for path in paths:
            self.assertTrue(path["forward"] and path["backward"])
        table = self.run_qkv("info", "--paths").out.split("\nscore ")[1]
        self.assertEqual(len(table.splitlines()), 2 + len(scores) * len(options))


class Streams(Case):
    """Output to a closed pipe, to a full disk and, if binary, to a terminal."""

    COMMANDS = (["demo", "--tokens", "64"], ["words", "a b"], ["words", "a b", "--json"], ["words", "a b", "-o", "-"],
                ["gen", "dates", "--quiet"], ["info"], ["info", "--paths", "--json"], ["--help"], ["--version"])

    def run_into(self, output, arguments):
        return subprocess.run([PROGRAM, *arguments], stdout=output, stderr=subprocess.PIPE,
                              cwd=self.dir, timeout=PATIENCE, check=False)

    def test_a_closed_pipe_ends_quietly(self):
        for arguments in self.COMMANDS:
            read_end, write_end = os.pipe()
            os.close(read_end)
            done = self.run_into(write_end, arguments)
            os.close(write_end)
            self.assertEqual((done.returncode, done.stderr), (0, b""), arguments)

    def test_a_full_disk_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for arguments in self.COMMANDS:
            with open("/dev/full", "wb") as full:
                done = self.run_into(full, arguments)
            self.assertEqual(done.returncode, 4, arguments)
            self.assertEqual(done.stderr.count(b"\n"), 1, arguments)

    def test_binary_results_are_not_for_terminals(self):
        try:
            main, terminal = os.openpty()
        except OSError as error:
            self.skipTest(f"no pseudo-terminal here: {error}")
        done = self.run_into(terminal, ["words", "a b", "-o", "-"])
        os.close(terminal)
        os.close(main)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"npz is not for terminals", done.stderr)


class Colours(Case):
    """The colours that `qkv view` and `qkv demo` print: none, of 8 bits or of 24 bits."""

    def setUp(self):
        super().setUp()
        np.savez(self.dir / "a.npz", attn=np.full((2, 2), 0.5))

    def kind(self, shown):
        """Returns the bits of the colours in the output: 24, 8 or 0."""
        self.assertFalse(b";48;5;" in shown and b";48;2;" in shown)
        return 24 if b";48;2;" in shown else 8 if b";48;5;" in shown else 0

    def test_follow_the_terminal(self):
        for env, kind in [
                ({"TERM": "xterm"}, 8), ({"TERM": "xterm-256color"}, 8), ({"TERM": "screen"}, 8),
                ({"TERM": "xterm", "COLORTERM": "truecolor"}, 24),
                ({"TERM": "xterm", "COLORTERM": "24bit"}, 24),
                ({"TERM": "xterm", "COLORTERM": "yes"}, 8),
                ({"TERM": "xterm-direct"}, 24), ({"TERM": "xterm-kitty"}, 24),
                ({"TERM": "alacritty"}, 24), ({"TERM": "foot"}, 24), ({"TERM": "wezterm"}, 24),
                ({"TERM": "xterm-ghostty"}, 24),
                ({"TERM": "xterm", "NO_COLOR": ""}, 8), ({"TERM": "xterm", "NO_COLOR": "1"}, 0),
                ({"TERM": "tmux-256color"}, 8), ({"TERM": "rxvt-unicode-256color"}, 8),
                ({"TERM": "screen.xterm-256color"}, 8), ({"TERM": "st-256color"}, 8),
                ({"TERM": "dumb", "COLORTERM": "truecolor"}, 0), ({"TERM": ""}, 0), ({}, 0),
                # Terminals that show fewer colours than a map needs, or none.
                ({"TERM": "vt100"}, 0), ({"TERM": "vt100", "COLORTERM": "truecolor"}, 0),
                ({"TERM": "vt102"}, 0), ({"TERM": "vt220-8bit"}, 0), ({"TERM": "ansi"}, 0),
                ({"TERM": "linux"}, 0), ({"TERM": "screen.linux"}, 0), ({"TERM": "cygwin"}, 0),
                ({"TERM": "xterm-mono"}, 0), ({"TERM": "xterm-16color"}, 0),
                ({"TERM": "unknown"}, 0), ({"TERM": "nobody-knows"}, 0), ({"TERM": "xtermish"}, 0),
                # The name is not known, but COLORTERM tells the colours.
                ({"TERM": "nobody-knows", "COLORTERM": "truecolor"}, 24)]:
            self.assertEqual(self.kind(self.on_terminal("view", "a.npz", env=env)), kind, env)
            if kind == 0:
                shown = self.on_terminal("view", "a.npz", "--color", "auto", env=env)
                self.assertNotIn(b"\x1b", shown, env)

    def test_a_flag_wins(self):
        for env in ({"TERM": "xterm"}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {}):
            for flag, kind in (("always", 24), ("never", 0)):
                for arguments in (["--color", flag, "view", "a.npz"],
                                  ["view", "a.npz", "--color", flag]):
                    shown = self.on_terminal(*arguments, env=env)
                    self.assertEqual(self.kind(shown), kind, (env, flag))
                    piped = self.run_qkv(*arguments, env=env).stdout
                    self.assertEqual(self.kind(piped), kind, (env, flag))
        self.assertEqual(self.kind(self.run_qkv("view", "a.npz", env={"TERM": "xterm"}).stdout), 0)

    def test_of_the_demonstration(self):
        for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            shown = self.on_terminal("demo", "--tokens", "64", env={"TERM": "xterm", **env})
            self.assertEqual(b"\x1b[" in shown, coloured, env)
        self.assertIn("\x1b[", self.run_qkv("demo", "--tokens", "64", "--color", "always").out)

    def test_tables_of_the_demonstration_fit(self):
        for columns, heads in (("200", [4]), ("80", [2, 2]), ("40", [1, 1, 1, 1])):
            shown = self.on_terminal("demo", "--tokens", "64", env={"COLUMNS": columns, "TERM": "dumb"})
            rows = [line for line in shown.decode().split("\n") if line.startswith("1 the ")]
            self.assertEqual([len(row.split()[2:]) // 6 for row in rows], heads)
            self.assertLessEqual(max(len(row.rstrip()) for row in rows), int(columns))


if __name__ == "__main__":
    unittest.main()
