# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings of the site; scripts/site.sh runs it."""

import importlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
# The package and what it imports are those of .venv-python; what Sphinx needs is found before.
sys.path.extend(map(str, (ROOT / ".venv-python" / "lib").glob("python3*/site-packages")))

import docstrings  # noqa: E402
from sphinx.util import logging  # noqa: E402

project = "qkv"
author = "the contributors of qkv"
copyright = author  # noqa: A001: Sphinx's name
release = ".".join(
    re.findall(r"#define QKV_VERSION_\w+ (\d+)", (ROOT / "include/qkv/version.h").read_text())[:3]
)
language = "en"

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
root_doc = "index"
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
exclude_patterns = ["files", "images"]
nitpicky = True
# Classes of other libraries, and results whose classes are not public.
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|os|re|torch)\..*"),
    ("py:.*", r"qkv\.(\w+\.)*_.*"),
    ("cpp:identifier", r"detail(::.*)?|DType(Of<T>)?::.*|(DTypeOf|Element)<T>|MPI_Comm"),
    ("cpp:identifier", r"u?int(32|64)_t|size_t|QKV_MAX_RANK"),
]

myst_heading_anchors = 6
myst_enable_extensions = ["html_image"]
# Each page of a header opens namespace qkv.
suppress_warnings = ["duplicate_declaration.cpp"]

breathe_projects = {"qkv": str(ROOT / "build/docs/doxygen/xml")}
breathe_default_project = "qkv"
breathe_show_include = False

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_param = False  # "q, k, v: ..." describes three parameters
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"qkv {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False


def find_missing(_app, env):
    """Warns of public names of the package that no page describes."""
    described = env.domains.python_domain.objects
    for module in ("qkv", "qkv.torch", "qkv.torch.nn", "qkv.mpi"):
        for name in importlib.import_module(module).__all__:
            if f"{module}.{name}" not in described and not name.startswith("__"):
                logging.getLogger(__name__).warning("no page describes %s.%s", module, name)


def setup(app):
    # Before napoleon, which has priority 500.
    app.connect("autodoc-process-docstring", docstrings.process, priority=100)
    app.connect("env-check-consistency", find_missing)
