# SPDX-License-Identifier: Apache-2.0
"""Tests the examples in the docstrings, and that everything public has a complete docstring."""

import doctest
import importlib
import inspect
import pathlib
import re

import pytest

import qkv

PACKAGE = pathlib.Path(qkv.__file__).parent


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The names of the modules that declare __all__.
MODULES = sorted(
    module_name(path)
    for path in PACKAGE.rglob("*.py")
    if "__all__ = [" in path.read_text(encoding="utf-8")
)


def imported(name):
    if name.startswith("qkv.torch"):
        pytest.importorskip("torch")
    return importlib.import_module(name)


def test_modules_were_found():
    assert {"qkv", "qkv._functions", "qkv._layers", "qkv.torch._sdpa"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    results = doctest.testmod(imported(name))
    assert results.attempted > 0
    assert results.failed == 0


def methods(value):
    """The public methods of a class by name, except those that PyTorch defines."""
    for name, function in inspect.getmembers(value, inspect.isfunction):
        if not name.startswith("_") and function.__module__.split(".")[0] == "qkv":
            yield name, function


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_explained(name):
    module = imported(name)
    for public in module.__all__:
        value = getattr(module, public)
        if not callable(value):
            continue
        assert inspect.getdoc(value), public
        for method, function in methods(value):
            assert inspect.getdoc(function), f"{public}.{method}"


def public_functions(module):
    """The public functions and methods by name, without NamedTuples: they lack sections."""
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isfunction(value):
            yield public, value
        elif inspect.isclass(value) and not issubclass(value, tuple):
            for method, function in methods(value):
                yield f"{public}.{method}", function


def missing_sections(function):
    """The sections that the docstring lacks, then the arguments that it does not name."""
    signature = inspect.signature(function)
    arguments = [name for name in signature.parameters if name != "self"]
    sections = ["Args:", "Raises:"] if arguments else []
    if signature.return_annotation not in (None, "None"):
        sections.append("Returns:")
    lines = [line.strip() for line in inspect.getdoc(function).splitlines()]
    missing = [section for section in sections if section not in lines]
    # Each argument must be named, but a line "options: " or "others: " names all of attention().
    words = set(re.findall(r"\w+", " ".join(lines)))
    if any(re.match(r"(.*\b)?(options|others): ", line) for line in lines):
        words |= set(inspect.signature(qkv.attention).parameters)
    return missing + [name for name in arguments if name not in words]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_say_arguments_results_and_errors(name):
    functions = dict(public_functions(imported(name)))
    found = {public: missing_sections(function) for public, function in functions.items()}
    assert found
    assert {public: missing for public, missing in found.items() if missing} == {}
