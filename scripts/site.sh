#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/site.sh
# Builds the site of the documents, build/docs/html, with the C++ reference from the public headers
# and the Python reference from the package in .venv-python. Warnings are errors. Links to files
# that are not pages lead below the address QKV_REPOSITORY, if it is in the environment, else to
# copies. The last line counts the pages. If a tool or package is missing, a message names it, and
# the script exits with 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"

lack() {
  echo "site: not built: there is no $1" >&2
  exit 77
}
for package in qkv torch; do
  compgen -G ".venv-python/lib/python3*/site-packages/$package/__init__.py" >/dev/null ||
    lack "$package in .venv-python"
done
command -v doxygen >/dev/null || lack Doxygen
scripts/docs_env.sh || lack .venv-docs
mkdir -p build/docs
rm -rf build/docs/doxygen build/docs/html
scripts/quietly.sh Doxygen doxygen docs/site/Doxyfile
.venv/bin/python scripts/site/pages.py ${QKV_REPOSITORY:+"$QKV_REPOSITORY"}
scripts/quietly.sh site .venv-docs/bin/python -m sphinx --builder html --fresh-env \
  --fail-on-warning --nitpicky --conf-dir docs/site --doctree-dir build/docs/doctrees \
  build/docs/source build/docs/html
echo "$(find build/docs/html -name '*.html' | wc -l) pages of the site: build/docs/html/index.html"
