# SPDX-License-Identifier: Apache-2.0
"""Lists of names as options, and tables in Markdown: shared by the scripts beside it."""

import argparse


def names_of(known):
    """The type of an option: names among `known`, separated by commas."""

    def parse(text):
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return parse


def line_of(cells):
    return f"| {' | '.join(cells)} |"


def head_of(cells):
    """The lines above those of a table."""
    return [line_of(cells), line_of(["---"] * len(cells))]
