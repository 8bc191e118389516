#!/usr/bin/env bash
# Build wheel and sdist twice into dist/ and compare them to the byte.  The time of every file is that of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet build
rm -rf dist
for folder in dist "$tools/again"; do
    git clone --quiet . "$tools/checkout"
    find "$tools/checkout" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    "$tools/venv/bin/python" -m build --outdir "$folder" "$tools/checkout" > /dev/null
    rm -rf "$tools/checkout"
done
for file in dist/*; do
    cmp "$file" "$tools/again/$(basename "$file")"
done
sha256sum dist/*
