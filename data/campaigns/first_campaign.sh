#!/usr/bin/env bash
# Everything useful that a machine with a GPU can say in one call of about nine minutes: environment, campaign with allocator histories,
# quality of the records, the planner's predictions against them, and replays of the histories as far as the time goes.
#
#   data/campaigns/first_campaign.sh OUT [SECONDS] [CAMPAIGN] [PYTHON] [WORK]
#
# SECONDS (480) are those of the campaign; the rest takes up to 60 more.  WORK (the same as OUT) gets the records and the histories.
# OUT gets env.json, campaign.txt, check.txt, validate.txt, and everything packed as results.tar.part-* of 15 MiB, 60 MiB at most:
# the histories that come first in the campaign, so that what is packed can be carried.  Put together with: cat results.tar.part-* | tar x
# Called again it goes on with the cases that are left; parts in OUT are unpacked first where WORK is empty.
set -uo pipefail
out=${1:?say the folder for the results}
seconds=${2:-480}
campaign=${3:-data/campaigns/first.toml}
python=${4:-python3}
work=${5:-$out}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out" "$work" && out=$(cd "$out" && pwd) && work=$(cd "$work" && pwd) && cd "$root" || exit 2
if [ -e "$out/results.tar.part-aa" ] && ! compgen -G "$work/*.jsonl" > /dev/null; then
  cat "$out"/results.tar.part-* | tar -C "$work" -xf - || exit 2
fi

"$python" -m measure env --json > "$out/env.json" || exit
history=--history
grep -q '"gpus": \[\]' "$out/env.json" && history=
[ "$work" -ef "$out" ] || cp "$out/env.json" "$work"

# New parts replace the old ones when they are complete.
pack() {
  local total=0 size file list="$work/.list" parts="$out/.parts"
  rm -rf "$parts" && mkdir "$parts"
  (cd "$work" && find . -maxdepth 1 -type f ! -name 'results.tar.part-*' ! -name '.*') > "$list"
  if [ -d "$work/histories" ]; then
    while read -r file; do
      size=$(stat -c %s "$work/histories/$file")
      total=$((total + size))
      [ "$total" -gt 57671680 ] && break
      echo "./histories/$file"
    done < <(ls -tr "$work/histories") >> "$list"
  fi
  tar -C "$work" -cf - -T "$list" | split -b 15M - "$parts/results.tar.part-" || return
  rm -f "$out"/results.tar.part-* && mv "$parts"/* "$out" && rmdir "$parts"
}

"$python" -m measure campaign "$campaign" --time-budget "${seconds}s" --out "$work" $history > "$out/campaign.txt"
code=$?
cat "$out/campaign.txt"
if ! compgen -G "$work/*.jsonl" > /dev/null; then
  exit "$code"
fi
"$python" -m measure check "$work/*.jsonl" > "$out/check.txt" 2>&1
pack
end=$((SECONDS + 45))
timeout 30 "$python" -m planner.cli.main validate "$work/*.jsonl" --rows > "$out/validate.txt" 2>&1
if [ -d "$work/histories" ]; then
  for file in $(ls -tr "$work/histories"); do
    left=$((end - SECONDS))
    [ "$left" -lt 5 ] && break
    grep -qsF "$file:" "$work/replays.txt" && continue
    echo "$file: $(timeout "$left" "$python" -m measure replay "$work/histories/$file" 2>&1 | tr '\n' ' ')" >> "$work/replays.txt"
  done
fi
[ "$work" -ef "$out" ] || cp "$out"/*.txt "$work"
pack
cat "$out/check.txt" "$out/validate.txt"
exit "$code"
