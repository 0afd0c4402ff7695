#!/usr/bin/env bash
# A temporal graph that grows, as in a cron job: append new events, score them, train on with the weights so far.
#   bash examples/further/append_events.sh [FOLDER]        # RANKS=4 in front of it: four MPI ranks
#   EVENTS=FILE.csv STEPS=10 in front of it: other events, and the last tenth of them in ten steps; OPTIONS: of train
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
events=$([[ -z ${EVENTS:-} ]] || realpath "$EVENTS")
folder=${1:-runs/append_events}
ranks=${RANKS:-2}
steps=${STEPS:-2}
read -ra more <<< "${OPTIONS:-}"
mkdir -p "$folder"
cd "$folder"

# 1. Data: a row per event with src, dst and time, in order of time. Nine tenths of them are there at the beginning.
if [[ -z $events ]]; then
    python "$here/../tgn_on_events_data.py"
    events=events.csv
fi
total=$(($(wc -l < "$events") - 1))
old=$((total * 9 / 10))
lines() { head -n 1 "$events" && sed "1d;$(($2 + 1))q" "$events" | tail -n +"$(($1 + 1))"; } # of events $1 .. $2 - 1

# 2. The beginning: convert, partition and train. The test has as many of the newest events as a step appends.
lines 0 "$old" > old.csv
hpcgnn convert --preset csv-temporal --set events=old.csv --overwrite old.h5
rm -rf parts/ run-*/ whole*/ table.csv
hpcgnn partition old.h5 parts/ --parts 8 > partition.log
share=$(python -c "print(0.1 / $steps)")
options=(--recipe tgn --data.path parts/ --data.val_ratio "$share" --data.test_ratio "$share"
    --comm.threads 1 --train.batch_size 200 "${more[@]}")
mpirun -np "$ranks" hpcgnn train "${options[@]}" --train.epochs 1 --output.dir run-0/ > run-0.log

TIMEFORMAT="%U %S"
timed() { # processor seconds of a command, whose output goes to a file
    local seconds
    seconds=$({ time "${@:2}" > "$1"; } 2>&1)
    python -c "print(round(sum(map(float, '$seconds'.split()[-2:])), 1))"
}
anew() {
    hpcgnn convert --preset csv-temporal --set events=all.csv --overwrite all.h5
    hpcgnn partition all.h5 all-parts/ --parts 8 --overwrite
}
for ((step = 1; step <= steps; step++)); do
    # 3. New events arrive: append them. For comparison, all events so far are converted and partitioned anew.
    last=$((old + (total - old) * step / steps))
    lines $((old + (total - old) * (step - 1) / steps)) "$last" > new.csv
    lines 0 "$last" > all.csv
    appended=$(timed append.log hpcgnn append parts/ new.csv)
    compared=$(timed anew.log anew)

    # 4. Score the new events with the first model, and with the newest one, which has not seen them.
    mpirun -np "$ranks" hpcgnn evaluate run-0/ --data.path parts/ --comm.threads 1 > first.json
    mpirun -np "$ranks" hpcgnn evaluate "run-$((step - 1))/" --data.path parts/ --comm.threads 1 \
        > newest.json

    # 5. Train an epoch more, on all events up to the newest ones.
    mpirun -np "$ranks" hpcgnn train "${options[@]}" --init "run-$((step - 1))/" --train.epochs 1 \
        --output.dir "run-$step/" > "run-$step.log"
    python - "$step" "$appended" "$compared" >> table.csv <<'PYTHON'
import json
import os
import re
import sys

step, appended, compared = sys.argv[1:]
size = sum(os.path.getsize(f"parts/{name}") for name in os.listdir("parts"))
nodes = re.search(r"new nodes: node ([\d,]+)", open("append.log").read())[1].replace(",", "")
cuts = [re.search(r"^ +8 +\d+ +([\d.]+)", open(name).read(), re.M)[1] for name in ("append.log", "anew.log")]
first, newest = (json.loads(open(f"{name}.json").read().splitlines()[-1]) for name in ("first", "newest"))
after = [json.loads(line) for line in open(f"run-{step}/metrics.jsonl")][-1]
scores = [f"{result['test_ap']:.4f}" for result in (first, newest, after)]
print(step, nodes, appended, compared, size, *cuts, *scores, sep=",")
PYTHON
done

# 6. For comparison, all events in one go: one epoch, and as many epochs as all runs above have together.
for epochs in 1 $((steps + 1)); do
    mpirun -np "$ranks" hpcgnn train "${options[@]}" --train.epochs "$epochs" --output.dir "whole-$epochs/" > whole.log
done

# 7. The result.
echo "step,new nodes,append (s),anew (s),bytes,cut,cut anew,AP of the first model,AP before training on,AP after"
cat table.csv
grep --no-filename 'best epoch' "whole-1/log/rank-0.log" "whole-$((steps + 1))/log/rank-0.log"
