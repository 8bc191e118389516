#!/usr/bin/env bash
# Install a wheel with its declared dependencies in an empty environment, import every module, run every command.
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
diabat() { echo "diabat $*"; venv/bin/diabat "$@" > out.log 2>&1 || { cat out.log; exit 1; }; }
diabat --version
diabat backends
diabat config list
diabat config show recall-exact
for backend in exact banded mean_field tempering dqa refine; do diabat sample problem.yaml "sampler.backend=$backend"; done
diabat fidelity problem.yaml
diabat train recall-exact task.num_train=64 task.num_validation=8 task.num_test=8 training.max_epochs=1 output=run
diabat evaluate run
diabat explain run --couplings
diabat anneal show boltzmann-8
diabat anneal export boltzmann-8 problem.yaml --output circuit.qasm
diabat heads analyse --help
diabat warm-up
