#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains the date model that is linked into the library: dates.safetensors, beside this script.
# Usage: app/translator/model/dates/train.sh [FOLDER]    from a checkout, after `make run`; the run stays in FOLDER
# The budget is in epochs, not in time, so that a new run on the same CPU target gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
export PATH=$PWD/build/release/bin:$PATH
here=app/translator/model/dates
folder=${1:-$(mktemp -d)}

qkv gen dates -n 50000 --seed 1 --split train -o "$folder/dates.tsv"
qkv gen dates -n 2000 --seed 2 --split train -o "$folder/valid.tsv"
qkv gen dates -n 2000 --seed 3 --split test -o "$folder/unseen.tsv"
qkv train "$folder/dates.tsv" -o "$folder/RUN" --valid "$folder/valid.tsv" --after 12e --seed 1 \
  --best loss
qkv score "$folder/RUN" "$folder/unseen.tsv"
cp "$folder/RUN/best.safetensors" "$here/dates.safetensors"
