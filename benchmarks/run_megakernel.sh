#!/usr/bin/env bash
# The megakernel on one GPU, in under eight minutes: tests, sanitizers, a thousand delayed runs, variants beside the
# PDL chain. Everything goes to $1; the last lines are a short table. A part that fails does not stop the others.
#
#   bash benchmarks/run_megakernel.sh OUT_FOLDER [python]
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: run_megakernel.sh OUT_FOLDER [python]}
python=${2:-python3}
mkdir -p "$out"
verdicts=()

# part NAME SECONDS COMMAND...: run it with a limit, keep its output, remember how it went
part() {
  local name=$1 seconds=$2 began=$SECONDS code=0 left=$((480 - SECONDS))
  shift 2
  if [ $left -lt 5 ]; then
    verdicts+=("$(printf '%-17s NOT RUN: no time left' "$name")")
    return 1
  fi
  [ "$seconds" -le $left ] || seconds=$left
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1 || code=$?
  verdicts+=("$(printf '%-17s %-10s %4d s' "$name" "$([ $code = 0 ] && echo PASS || echo "FAIL($code)")" $((SECONDS - began)))")
  return $code
}

# Small enough for a sanitizer, which makes kernels a hundred times slower; the watchdog must not take that for a hang.
small=(-m workloads.megakernel --layers 6 --size 2048 --blocks 8 --workers 8 --rotate 1 --timeout-ms 60000
  --forwards 1 --repeats 1)

part variants 150 "$python" -m benchmarks.megakernel_variants --out "$out"
part chaos 40 "$python" -m workloads.megakernel --rotate 1 --chaos 1000 --forwards 1 --repeats 1 \
  --result "$out/chaos.json"
part chaos_queue 25 "$python" -m workloads.megakernel --deps block --rotate 1 --schedule queue --workers 132 \
  --prefetch weights --chaos 1000 --forwards 1 --repeats 1
for signal in lean flags data cluster push; do
  deps=layer blocks=64 vector=1
  case $signal in data) deps=block ;; cluster | push) blocks=16 vector=4 ;; esac
  part "chaos_$signal" 25 "$python" -m workloads.megakernel --signal $signal --deps $deps --blocks $blocks \
    --vector $vector --rotate 1 --prefetch weights --chaos 1000 --forwards 1 --repeats 1
done
part tests 90 "$python" -m pytest tests/gpu/test_megakernel.py -m gpu -rs -p no:cacheprovider -W ignore
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
  # not the API's errors: cuda-bindings asks for driver functions that do not exist, and is told so
  check=("$sanitizer" --report-api-errors no --error-exitcode 9 --tool)
  for tool in memcheck racecheck synccheck; do
    part "$tool" 45 "${check[@]}" "$tool" "$python" "${small[@]}"
    for signal in flags data cluster push; do
      deps=$([ $signal = data ] && echo block || echo layer)
      part "${tool}_$signal" 30 "${check[@]}" "$tool" "$python" "${small[@]}" --signal $signal --deps "$deps" \
        --prefetch weights
    done
  done
  part racecheck_q 45 "${check[@]}" racecheck "$python" "${small[@]}" --schedule queue
else
  verdicts+=("sanitizer    NOT FOUND")
fi

echo "== variants; the lines \"sample:\" record sample traces where there is nsys"
sed -n '/us a layer/,$p' "$out/variants.log" || true
tail -n 2 "$out/variants.log" | grep -i error || true
echo "== chaos, tests, sanitizers"
grep -h "delays" "$out"/chaos*.log || tail -n 1 "$out/chaos.log"
tail -n 1 "$out/tests.log"  # "skipped" here: the tests found no GPU and say nothing
grep -h "ERROR SUMMARY\|RACECHECK SUMMARY" "$out"/*check*.log 2>/dev/null || true
printf '%s\n' "${verdicts[@]}" | tee "$out/verdicts.txt"
(cd "$out" && tar czf logs.tgz ./*.log && rm -f ./*.log) # few files: some machines hand back only eight
