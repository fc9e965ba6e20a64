#!/usr/bin/env bash
# The walk of the README, for real: a language model loaded as a frozen plan says, and everything that follows from it.
# Every command is printed before it runs; what it leaves lies in build/demo.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$PWD/.venv/bin:$PATH" TALLY_LEDGER=build/demo/tally.db TALLY_STATE_DIR="$PWD/build/demo/state"
model=build/sample
demo=build/demo
say() { printf '\n# %s\n' "$*"; }
run() {
  local word line='$'
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_@~./=:,-]+$ ]] || word="\"$word\""  # no word here holds a quote, a dollar or a backslash
    line+=" $word"
  done
  printf '%s\n' "$line"
  "$@"
}

rm -rf "$demo"
mkdir -p "$demo"

say "The sample model: real weights, converted once to safetensors, offline afterwards."
run python -m realizer.sample "$model"

say "Draft a plan for this model on this machine; make a reference with the unplanned model; freeze both into one digest."
run tally plan draft "$model" -o "$demo/draft.json"
run tally reference "$demo/draft.json" --checkpoint "$model" --prompt "The capital of France is" -o "$demo/reference.safetensors"
run tally plan freeze "$demo/draft.json" --reference "$demo/reference.safetensors" -o "$demo/plan.json"
run tally plan show "$demo/plan.json"

say "Carry the plan out, judge it, and answer a prompt with the very model that was proven."
run tally realize "$demo/plan.json" --checkpoint "$model" --reference "$demo/reference.safetensors" \
  --prompt "The capital of France is" --answer-tokens 2

say "Read it back: the folded state, and where host memory went, from the events alone."
run tally replay @latest
run tally query "select label, rss_anon, rss_shmem from memory_samples where run_id = (select run_id from runs order by opened_at desc limit 1)"

say "Carry it out a second time and lay the two runs side by side."
run tally realize "$demo/plan.json" --checkpoint "$model" --reference "$demo/reference.safetensors"
run tally compare @latest~1 @latest

say "Seal the evidence, and judge it again from the file alone: no ledger, no torch, no network."
run tally keygen -o "$demo/demo.pem" --no-passphrase
run tally export @latest --key "$demo/demo.pem" -o "$demo/evidence.json"
run tally verify "$demo/evidence.json" --key "$demo/demo.pub"
run tally report "$demo/evidence.json" --key "$demo/demo.pub" -o "$demo/report.html"

say "To go on by hand: . .venv/bin/activate; export TALLY_LEDGER=$demo/tally.db TALLY_STATE_DIR=$(printf %q "$TALLY_STATE_DIR"); tally runs; tally --help"
