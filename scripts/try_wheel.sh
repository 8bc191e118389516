#!/usr/bin/env bash
# Install a wheel with its declared dependencies in an empty environment, import every module, sample a problem.
# PYTHON chooses the interpreter, PIP_OPTIONS go to pip.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
# shellcheck disable=SC2086  # several options
"$folder/venv/bin/pip" install --quiet ${PIP_OPTIONS:-} -c "$here/../constraints.txt" "$wheel"
cd "$folder"
venv/bin/python "$here/import_all.py"
printf 'fields: [0.5, 0.0]\ncouplings: [[0, 1, 1.0]]\n' > problem.yaml
venv/bin/diabat sample problem.yaml
