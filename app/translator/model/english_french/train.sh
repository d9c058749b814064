#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains the translator that is linked into the library: english_french.safetensors, beside this
# script.
# Usage: app/translator/model/english_french/train.sh PAIRS [FOLDER]   from a checkout, after `make run`; PAIRS is a
# file of lines "English, tab, French": fra.txt of fra-eng.zip from https://www.manythings.org/anki; the run stays in
# FOLDER. The budget is in updates, not in time, so that the same versions of qkv and SentencePiece give the same
# bytes again on the same CPU target. The linked file was made on 2026-11-24; later versions of qkv sum gradients in
# another order. The sizes keep the file below 4 MB with 16-bit numbers.
set -euo pipefail
pairs=$(realpath "${1:?usage: app/translator/model/english_french/train.sh PAIRS [FOLDER]}")
folder=${2:-$(mktemp -d)}
mkdir -p "$folder"
folder=$(realpath "$folder")
cd "$(dirname "$0")/../../../.."
export PATH=$PWD/build/release/bin:$PATH

qkv split "$pairs" --hold-out 2000 --valid 1000 --seed 1 -o "$folder/SPLIT"
qkv train "$folder/SPLIT/train.tsv" -o "$folder/RUN" --valid "$folder/SPLIT/valid.tsv" --valid-freq 500u \
  --tokenize subword --vocab 3400 --embedding 128 --tied-embeddings --hidden 192 --units 96 \
  --batch-tokens 4096 --seed 1 --keep 4 --after 8000u
qkv average "$folder/RUN" --last 4 --dtype f16 -o "$folder/english_french.safetensors"
qkv score "$folder/english_french.safetensors" "$folder/SPLIT/test.tsv" --beam 5
cp "$folder/english_french.safetensors" app/translator/model/english_french/
