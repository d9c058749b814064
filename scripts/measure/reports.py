# SPDX-License-Identifier: Apache-2.0
"""Lists of names as options, and measured rows as JSON, for several scripts."""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

from bursts import cpu_name

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def names_of(known):
    """Returns the argparse type of an option that takes names of `known`, separated by commas."""

    def parse(text):
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return parse


def commit():
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match="]
    try:
        done = subprocess.run(describe, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return "unknown"
    return done.stdout.strip() or "unknown"


class Report:
    """Measured rows. Each is printed when it is added; write() makes a file for bench/results,
    which scripts/benchmarks.py reads."""

    def __init__(self, **about):
        script = pathlib.Path(sys.argv[0]).resolve()
        if script.is_relative_to(CHECKOUT):
            script = script.relative_to(CHECKOUT)
        self.about = {
            "command": " ".join(["python", str(script), *sys.argv[1:]]),
            "commit": commit(),
            "date": str(datetime.date.today()),
            "cpu": cpu_name(),
            **about,
        }
        self.rows = {}
        print("; ".join(f"{name} {value}" for name, value in self.about.items()), flush=True)

    def add(self, name, **figures):
        """Adds a row. Each figure is a number (seconds, operations or bytes per second, a ratio), a
        text, or a dictionary of these."""
        self.rows[name] = {key: value for key, value in figures.items() if value is not None}
        print(name, *(f"{key}={shown(value)}" for key, value in self.rows[name].items()), sep="  ",
              flush=True)

    def write(self, path):
        text = json.dumps({**self.about, "rows": self.rows}, indent=1, ensure_ascii=False)
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def shown(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{key}:{shown(each)}" for key, each in value.items())
    if isinstance(value, list):
        return "..".join(shown(each) for each in value)
    return str(value)
