#!/usr/bin/env bash
# Build wheel and sdist of the last commit twice into dist/, and compare them to the byte.
set -euo pipefail
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)  # setuptools gives this time to the files of the wheel
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet build
rm -rf dist
for folder in "$PWD/dist" "$work/again"; do
    git clone --quiet . "$work/checkout"
    "$work/venv/bin/python" -m build --outdir "$folder" "$work/checkout" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    # An sdist has the time of its making in every file: packed again with that of the commit.
    for archive in "$folder"/*.tar.gz; do
        mkdir "$work/sdist" && tar -xzf "$archive" -C "$work/sdist"
        tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
            -C "$work/sdist" -cf - "$(ls "$work/sdist")" | gzip -n > "$archive"
        rm -rf "$work/sdist"
    done
    rm -rf "$work/checkout"
done
for file in dist/*; do
    cmp "$file" "$work/again/$(basename "$file")"
done
(cd dist && sha256sum -- *)
