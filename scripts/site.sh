#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/site.sh
# Builds the site of the documents, build/docs/html, with the C++ reference from the public headers
# and the Python reference from the package in .venv-python. Warnings are errors. Links to files that
# are no pages lead below the address QKV_REPOSITORY, if it is in the environment, else to copies.
# The last line counts the pages.
set -euo pipefail
source "$(dirname "$0")/env.sh"

.venv-python/bin/python -c "import qkv.torch" || {
  echo "site: the Python reference needs the package and PyTorch in .venv-python" >&2
  exit 1
}
scripts/docs_env.sh
mkdir -p build/docs
rm -rf build/docs/doxygen
scripts/quietly.sh Doxygen doxygen docs/site/Doxyfile
.venv/bin/python scripts/site/pages.py ${QKV_REPOSITORY:+"$QKV_REPOSITORY"}
scripts/quietly.sh site .venv-docs/bin/python -m sphinx --builder html --fail-on-warning \
  --keep-going --nitpicky --conf-dir docs/site --doctree-dir build/docs/doctrees \
  build/docs/source build/docs/html
echo "$(find build/docs/html -name '*.html' | wc -l) pages of the site: build/docs/html/index.html"
