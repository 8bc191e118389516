#!/usr/bin/env bash
# Run a command as on an older x86 processor: scripts/limited_isa.sh avx2|sse4 COMMAND...
# torch, MKL, oneDNN, numpy, its BLAS and numba are each told what to use.
set -euo pipefail

beyond=()  # targets of numpy, which refuses names of those that this processor lacks
excluded() { if grep -qw "$1" /proc/cpuinfo; then beyond+=("$2"); fi; }
excluded avx512bw X86_V4
excluded avx512_vbmi2 AVX512_ICL
excluded avx512_fp16 AVX512_SPR

case ${1-} in
avx2)
    export ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
    export OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma
    ;;
sse4)
    excluded avx2 X86_V3
    export ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41
    export OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES=
    ;;
*)
    echo "expected avx2 or sse4, got '${1-}'" >&2
    exit 2
    ;;
esac
# torch's compiler would load what it compiled for other instructions.
export NPY_DISABLE_CPU_FEATURES="${beyond[*]}" TORCHINDUCTOR_CACHE_DIR="${TMPDIR:-/tmp}/torchinductor-$1-$(id -u)"
"${@:2}"
