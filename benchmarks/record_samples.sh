#!/usr/bin/env bash
# Records everything the samples, the calibration and the README need, on a machine with an NVIDIA GPU.
# usage: benchmarks/record_samples.sh OUT [STEP...]      (no STEP: all of them)
#   WHEELS=.whl   folder of wheels for what the machine lacks: nvtx, cupti-python, pyelftools, platformdirs,
#                 SQLAlchemy (without it no trace is scrubbed, and none leaves the machine)
#   DEBS=.debs    folder with Debian's libdw1 and libelf1 packages, which the nsys of Nsight Compute needs
#   BUDGET_S=450  no step starts after that
# A step that fails is reported and the next one runs. OUT gets summary.txt, calibration.json and results.tar.gz
# (logs, traces, sidecars; the traces scrubbed of environment, paths, host and user).
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:?usage: benchmarks/record_samples.sh OUT [STEP...]}" && cd "$1" && pwd)
shift
steps=${*:-doctor calibrate chain variants triton profile_chain profile_sweep profile_cupti tests shapes}
budget_s=${BUDGET_S:-450}
work=$(mktemp -d)
results=$work/results
mkdir -p "$results"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 COLUMNS=160 NO_COLOR=1 TERM=dumb
export TRACEKIT_CACHE=$work/cache
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
python=${PYTHON:-python3}

wheels=${WHEELS:-.whl}
if compgen -G "$wheels/*.whl" >/dev/null; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" "$wheels"/*.whl
  export PYTHONPATH=$PYTHONPATH:$work/site
fi
debs=${DEBS:-.debs}
if compgen -G "$debs/*.deb" >/dev/null; then
  for deb in "$debs"/*.deb; do dpkg -x "$deb" "$work/debs"; done
  for folder in "$work"/debs/usr/lib/*-linux-gnu "$work"/debs/lib/*-linux-gnu; do
    [[ -d $folder ]] && export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
fi

# the commands without the rest of the command line, which wants packages that a bare machine lacks
cat >"$work/tracekit_commands.py" <<'PY'
import contextlib
import sys

import typer

from tracekit import cli_capture, cli_scrub
from tracekit.errors import TracekitError

with contextlib.suppress(ImportError):
    import tracekit.cli  # where it can be imported, it says how to read the white space
app = typer.Typer(pretty_exceptions_enable=False)
cli_capture.register(app)
app.command()(cli_scrub.scrub)
try:
    app()
except TracekitError as error:
    sys.exit(f"tracekit: {error}")
PY
tracekit() { "$python" "$work/tracekit_commands.py" "$@"; }
workload() { "$python" -m "workloads.$1" "${@:2}"; }

step_doctor() {
  tracekit doctor
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw --format=csv
  "$python" -m pip list 2>/dev/null | grep -iE '^(cupy|cuda|nvidia-cuda|nvtx|cupti|triton|torch|typer|numpy) *|^(cupy|cuda|nvidia)-'
}
step_chain() { workload pdl_chain --result "$results/pdl_chain.result.json"; }
step_variants() {
  local failed=0
  for options in "--trigger early" "--trigger none" "--manual-graph" "--read-only-weights" "--read-only-weights --trigger early"; do
    echo "== pdl_chain $options"
    # shellcheck disable=SC2086
    workload pdl_chain $options --result "$results/pdl_chain${options// /}.result.json" || failed=1
  done
  return $failed
}
step_triton() { workload triton_pdl_chain --result "$results/triton_pdl_chain.result.json"; }
step_calibrate() {
  tracekit calibrate --force -o "$out/calibration.json" && "$python" -c '
import json, sys
curve = json.load(open(sys.argv[1]))["curve"]
for p in curve:
    gap = p["device_gap_ns"]
    print(p["mode"], p["layer_bytes"], round(p["period_ns"]["median"], 1), gap and gap["median"])' "$out/calibration.json"
}
step_shapes() {
  for shape in "512 32" "512 16" "256 32" "1024 8"; do
    set -- $shape
    echo "== block $1, blocks an SM $2"
    workload boundary_sweep --smallest-kib 65536 --no-eager --no-stamps --repeats 3 --block "$1" --blocks-per-sm "$2"
  done
}
step_profile_chain() { tracekit profile pdl_chain --backend nsys --force -o "$results/pdl_chain.sqlite"; }
step_profile_sweep() {
  tracekit profile boundary_sweep --backend nsys --force -o "$results/boundary_sweep.sqlite" \
    --layers 50 --passes 4 --largest-mib 64
}
step_profile_cupti() {
  tracekit profile pdl_chain --backend cupti --no-untraced --force -o "$results/pdl_chain_cupti.sqlite"
}
step_tests() { "$python" -m pytest -o filterwarnings=default -p no:cacheprovider -m gpu -q -rs -s --tb=short tests/gpu; }

# seconds a step may take: together they fit the budget, each alone cannot eat it
declare -A limits=(
  [doctor]=60 [calibrate]=150 [chain]=40 [variants]=75 [triton]=60 [profile_chain]=90 [profile_sweep]=90
  [profile_cupti]=60 [tests]=200 [shapes]=60
)
SECONDS=0
run_step() {
  local name=$1 began=$SECONDS code
  if ((SECONDS > budget_s)); then
    echo "SKIP $name: $SECONDS s of $budget_s s are used" | tee -a "$out/summary.txt"
    return
  fi
  # a process group of its own, which the limit ends as a whole
  timeout --kill-after=5 "${limits[$name]:-60}" bash -uo pipefail -c "step_$name" >"$results/$name.log" 2>&1
  code=$?
  ((code == 124)) && echo "record_samples: stopped after ${limits[$name]:-60} s" >>"$results/$name.log"
  { ((code == 0)) && echo -n "PASS" || echo -n "FAIL($code)"; echo " $name, $((SECONDS - began)) s"; } | tee -a "$out/summary.txt"
  tail -n "$( ((code == 0)) && echo 40 || echo 60)" "$results/$name.log" | cut -c1-220
}

export python work results out
export -f tracekit workload
: >"$out/summary.txt"
for name in $steps; do
  if declare -F "step_$name" >/dev/null; then
    export -f "step_$name"
    run_step "$name"
  else
    echo "FAIL(2) $name: no such step" | tee -a "$out/summary.txt"
  fi
done

for trace in "$results"/*.sqlite; do
  [[ -e $trace ]] || continue
  if tracekit scrub "$trace" "$trace.scrubbed"; then mv "$trace.scrubbed" "$trace"; else rm -f "$trace"; fi
done
tar -C "$work" -czf "$out/results.tar.gz" results
ls -l "$results" "$out"
echo "== summary, $SECONDS s"
cat "$out/summary.txt"
rm -rf "$work"
! grep -q '^FAIL' "$out/summary.txt"
