# SPDX-License-Identifier: Apache-2.0
"""Writes docs/transformers-models.md: which models run with "qkv", are refused, or were not tried.

    python tests/python/models_page.py RESULTS [NAME...]

It judges all configurations, or those named, adds a line of JSON for each class to RESULTS, and
writes the page unless a class is "different". Configurations in RESULTS are not judged again.
test_every_model.py compares the page with what it finds.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import re
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

import every_model
import torch
import transformers
from every_model import Result
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

PAGE = Path(__file__).parents[2] / "docs" / "transformers-models.md"
SECONDS = 120  # the limit for all classes of one configuration, while the page is made


def _bound(dtype: torch.dtype) -> str:
    """The largest relative difference allowed, such as "1e-5"."""
    return f"{every_model.CLOSE[dtype]:.0e}".replace("e-0", "e-")


_SECTIONS = {
    "equal": (
        "Equal",
        "Outputs, gradients, weights and generated text are compared where `eager` has them and "
        f"they are finite. They differ by at most {_bound(torch.float64)} (float32: "
        f"{_bound(torch.float32)}) of the tensor's largest number, or, where numbers cancel to 0, "
        "by rounding. Rows of padding are not compared.",
    ),
    "refused": (
        "Refused",
        'A `ValueError` names the class when the model is made with or changed to "qkv". For an '
        "unsupported argument, the model's call raises it.",
    ),
    "as sdpa": (
        "Equal to sdpa",
        'Called alone, without a mask, this part of a model is causal with "sdpa" and "qkv", but '
        "not with `eager`. Inside its model, results are equal.",
    ),
    "no attention": (
        "Nothing to replace",
        "Equal, but no module of the small model calls Transformers' attention interface.",
    ),
    "not tried": (
        "Not tried",
        "Neither refused nor compared.",
    ),
}


class _LateError(BaseException):
    """The time limit's exception, which only `_judged_in_time` catches."""


def judged(name: str) -> List[Result]:
    """The results of all classes of one configuration."""
    try:
        classes = every_model.classes_of(name)
    except Exception as error:
        return [Result(name, "", "not tried", f"{type(error).__name__}: {error}")]
    if not classes:
        return [Result(name, "", "not tried", "the configuration has no model class")]
    return [every_model.judge(name, cls) for cls in classes]


def _judged_in_time(name: str) -> List[Result]:
    def stop(*_: Any) -> None:
        raise _LateError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return judged(name)
    except _LateError:
        return [Result(name, "", "not tried", f"not finished in {SECONDS} seconds")]
    finally:
        signal.alarm(0)


# ---- the page -----------------------------------------------------------------------------------


def reason(result: Result) -> str:
    """The reason why a class is refused or not tried, without words that name the class."""
    text = result.text.split(" | ")[0]
    if result.state == "refused":
        option = re.search(r"passes (\w+) to attention", text)
        if option:
            return f"passes `{option[1]}` to attention"
        if text.startswith("changed: "):
            return "a model may be made, not changed: a part with its own attention stays `eager`"
        return re.sub(r'.*attn_implementation="qkv": \w+ (.*?)(; use.*|$)', r"\1", text)
    package = re.search(r"requires the (\w+) library|No module named '(\w+)'", text)
    if package:
        return f"needs the package {package[1] or package[2]}"
    if "too large" in text:
        return "no small configuration was found: all too large"
    if text.endswith("NaN"):
        return "`eager` itself gives NaN"
    if "not reached" in text:
        return "no input reached its attention"
    if re.match(r"(small|short|as it is|\w+Error): ", text):
        return "no small configuration or no input for it was found"
    return text


def entries(results: List[Result]) -> Dict[str, Dict[str, Set[str]]]:
    """Configurations by state and reason, with the class if a configuration's states differ."""
    found: Dict[str, Dict[str, Set[str]]] = collections.defaultdict(
        lambda: collections.defaultdict(set)
    )
    by_name: Dict[str, List[Result]] = collections.defaultdict(list)
    for result in results:
        by_name[result.name].append(result)
    for name, group in by_name.items():
        alike = len({result.state for result in group}) == 1
        for result in group:
            key = "" if result.state in ("equal", "as sdpa", "no attention") else reason(result)
            found[result.state][key].add(f"`{name}`" if alike else f"`{name}` ({result.model})")
    return found


def _wrapped(names: Set[str]) -> List[str]:
    """The names, with one line for each first letter."""
    lines: Dict[str, List[str]] = collections.defaultdict(list)
    for name in sorted(names):
        lines[name[1]].append(name)
    return [", ".join(line) + "  " for line in lines.values()]


def rendered(results: List[Result]) -> str:
    names_of = entries(results)
    counts = collections.Counter(result.state for result in results)
    page = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# Which models of Transformers run",
        "",
        f"Transformers {transformers.__version__}: {len({r.name for r in results})} configurations "
        f"with {len(results)} classes. A configuration's classes are its model and, if any, its "
        "text generator; a configuration without a class counts as one. Numbers in parentheses "
        "count configurations. `tests/python/models_page.py` writes this page.",
        "",
        "Models are small, in float64 or, if required, float32. Their random parameters are large "
        "enough for attention to affect the results. Where a configuration's classes are in "
        "different lists, each is named in parentheses.",
        "",
    ]
    for state, (title, text) in _SECTIONS.items():
        page += [
            f"## {title}: {counts[state]} {'class' if counts[state] == 1 else 'classes'}",
            "",
            text,
            "",
        ]
        for key, names in sorted(names_of[state].items()):
            if key:
                page += [f"**{key[0].upper()}{key[1:]}** ({len(names)}):  "]
            page += [*_wrapped(names), ""]
        if state == "equal":
            page += _notes(results)
    return "\n".join(page).rstrip() + "\n"


def _notes(results: List[Result]) -> List[str]:
    """Notes on what is not tested in classes that are equal."""
    equal = [r for r in results if r.state == "equal"]
    missed = {r.model: m[1] for r in equal if (m := re.search(r"not reached: ([^)]*)", r.text))}
    silent = sorted(r.model for r in equal if every_model.NO_WEIGHTS in r.text.split("; "))
    models: Dict[str, List[str]] = collections.defaultdict(list)
    for model, modules in sorted(missed.items()):
        models[modules].append(model)
    lines = ["These models have attention modules that no input reached:", ""]
    lines += [f"{', '.join(names)}: {modules}  " for modules, names in models.items()]
    if silent:
        lines += ["", f"Models that return no weights, even if requested: {', '.join(silent)}."]
    return [*lines, ""]


def written() -> Tuple[str, Dict[str, str]]:
    """The version of Transformers that the page is for, and each entry with its section."""
    text = PAGE.read_text()
    titles = {title: state for state, (title, _) in _SECTIONS.items()}
    states: Dict[str, str] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        state = titles[part.split(":")[0]]
        for line in part.splitlines():
            if line.startswith("`"):  # a line that lists names
                for name, model in re.findall(r"`([\w.-]+)`(?: \((\w+)\))?", line):
                    states[f"{name} {model}".strip()] = state
    version = re.search(r"Transformers ([\d.]+):", text)
    return (version[1] if version else ""), states


def main() -> None:
    path = Path(sys.argv[1])
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result(*json.loads(line)) for line in lines]
    done = {result.name for result in results}
    names = [n for n in sys.argv[2:] or CONFIG_MAPPING_NAMES if n not in done]
    with (
        multiprocessing.get_context("spawn").Pool(maxtasksperchild=20) as pool,
        path.open("a") as out,
    ):
        for group in pool.imap_unordered(_judged_in_time, names):
            for result in group:
                print(result.state, result.name, result.model)
                out.write(json.dumps(list(result)) + "\n")
            out.flush()
            results += group
    wrong = [result for result in results if result.state == "different"]
    if wrong:
        sys.exit("\n".join(f"{r.name} {r.model}: {r.text}" for r in wrong))
    PAGE.write_text(rendered(results))


if __name__ == "__main__":
    main()
