#!/usr/bin/env bash
# Associative recall: softmax fails, couplings solve it, so does a quantum anneal; then the fidelity of the couplings.
# Kernels compile beside the first training, in small forms of the commands that come; their output goes to a file.
set -euo pipefail
rm -rf demo
mkdir demo

compile() {
  local small="task.num_train=64 task.num_validation=8 task.num_test=8 training.max_epochs=1"
  diabat train recall-exact $small output=demo/compiling/exact
  diabat train recall-dqa $small output=demo/compiling/dqa
  diabat fidelity recall-fidelity fidelity.instances=1 fidelity.queries=2 fidelity.num_reads=10 fidelity.checkpoint=null
}

echo "Compiling kernels beside the first training, once per machine (demo/compiling.log) ..."
compile >demo/compiling.log 2>&1 &
compiling=$!
trap 'kill $compiling 2>/dev/null || true' EXIT  # also if a command below fails
diabat train recall-softmax
diabat train recall-exact
diabat train recall-dqa
python -m experiments.recall_figure demo
if kill -0 $compiling 2>/dev/null; then echo "Waiting for the last kernels ..."; fi
wait $compiling || { tail -n 5 demo/compiling.log >&2; exit 1; }
rm -rf demo/compiling
diabat fidelity recall-fidelity --figure demo/fidelity.png
echo "Figures and runs are in demo/."
