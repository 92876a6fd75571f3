#!/usr/bin/env bash
# Everything useful that a machine with a GPU can say in one call of about nine minutes: environment, campaign with allocator histories,
# quality of the records, replays of the histories, and the planner's predictions against the records.
#
#   data/campaigns/first_campaign.sh OUT [SECONDS] [CAMPAIGN] [PYTHON]
#
# OUT gets the records (*.jsonl), env.json, campaign.txt, check.txt, validate.txt, replays.txt, and all of that with the histories in
# results.tar.part-* of at most 15 MiB each (cat them together), packed before the slow part and again at the end.  Terms by history need
# no GPU: plan validate 'OUT/*.jsonl' --rows --history.  Called again with the same OUT it goes on with the cases that are left.
set -uo pipefail
out=${1:?say the folder for the results}
seconds=${2:-480}
campaign=${3:-data/campaigns/first.toml}
python=${4:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$root" || exit 2

"$python" -m measure env --json > "$out/env.json" || exit
history=--history
grep -q '"gpu_id": null' "$out/env.json" && history=
"$python" -m measure campaign "$campaign" --time-budget "${seconds}s" --out "$out" $history > "$out/campaign.txt"
code=$?
cat "$out/campaign.txt"
[ "$code" -eq 0 ] || exit "$code"
pack() {
  rm -f "$out"/results.tar.part-*
  tar -C "$out" --exclude='results.tar.part-*' -cf - . | split -b 15M - "$out/results.tar.part-"
}
"$python" -m measure check "$out/*.jsonl" > "$out/check.txt" 2>&1
"$python" -m planner.cli.main validate "$out/*.jsonl" --rows > "$out/validate.txt" 2>&1
pack
if [ -d "$out/histories" ]; then
  for file in "$out"/histories/*.jsonl.gz; do
    echo "$(basename "$file"): $(timeout 60 "$python" -m measure replay "$file" 2>&1 | tr '\n' ' ')"
  done > "$out/replays.txt"
  pack
fi
cat "$out/validate.txt"
