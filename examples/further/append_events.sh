#!/usr/bin/env bash
# A temporal graph that grows, as in a cron job: append new events, score them, train on with the weights so far.
#   bash examples/further/append_events.sh [FOLDER]        # RANKS=4 in front of it: four MPI ranks
# In front of it, too: EVENTS=FILE.csv STEPS=10, for the last tenth of these events in ten steps; OPTIONS, of train;
# COMPARE=1, to compare with partitioning anew, with the first model, and with training in one go.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
events=$([[ -z ${EVENTS:-} ]] || realpath "$EVENTS")
folder=${1:-runs/append_events}
ranks=${RANKS:-2}
steps=${STEPS:-2}
read -ra more <<< "${OPTIONS:---memory.dim 32 --model.hidden 32 --model.time_dim 16}"
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
lines 0 "$old" > old.csv

# 2. The beginning: convert, partition and train. The test has as many of the newest events as a step appends.
hpcgnn convert --preset csv-temporal --set events=old.csv --overwrite old.h5
rm -rf parts/ run-*/ whole-*/ compared/
mkdir compared
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
    # 3. New events arrive: append them.
    last=$((old + (total - old) * step / steps))
    lines $((old + (total - old) * (step - 1) / steps)) "$last" > new.csv
    seconds=$(timed append.log hpcgnn append parts/ new.csv)

    # 4. Score the new events with the newest model, which has not seen them. Then train on for an epoch.
    mpirun -np "$ranks" hpcgnn evaluate "run-$((step - 1))/" --comm.threads 1 > before.json
    mpirun -np "$ranks" hpcgnn train "${options[@]}" --init "run-$((step - 1))/" --train.epochs 1 \
        --output.dir "run-$step/" > "run-$step.log"

    # For comparison: partition all events so far anew, and score the new ones with the first model.
    if [[ -n ${COMPARE:-} ]]; then
        lines 0 "$last" > all.csv
        timed compared/anew.log anew > compared/seconds
        mpirun -np "$ranks" hpcgnn evaluate run-0/ --comm.threads 1 > compared/first.json
    fi

    # 5. The result of the step.
    python - "$step" "$seconds" <<'PYTHON'
import json
import os
import re
import sys


def read(name):
    return open(name).read()


def cut_of(log):
    return float(re.search(r"^ +8 +\d+ +([\d.]+)", read(log), re.M)[1])


def test_ap(name):
    return json.loads(read(name).splitlines()[-1])["test_ap"]


step, seconds = sys.argv[1:]
new = re.search(r"new nodes: node ([\d,]+)", read("append.log"))[1]
size = sum(os.path.getsize(f"parts/{name}") for name in os.listdir("parts"))
print(f"step {step}: append {seconds} s, new nodes {new}, bytes written {size}, cut {cut_of('append.log'):.4f}")
print(f"step {step}: AP of the new events {test_ap('before.json'):.4f}, with an epoch more ", end="")
print(f"{test_ap(f'run-{step}/metrics.jsonl'):.4f}")
if os.path.exists("compared/seconds"):
    anew = f"anew {read('compared/seconds').strip()} s, cut {cut_of('compared/anew.log'):.4f}"
    print(f"step {step}: {anew}; AP of the first model {test_ap('compared/first.json'):.4f}")
PYTHON
done
if [[ -n ${COMPARE:-} ]]; then
    for epochs in 1 $((steps + 1)); do
        mpirun -np "$ranks" hpcgnn train "${options[@]}" --train.epochs "$epochs" --output.dir "whole-$epochs/" > whole.log
        echo "all events, epochs: $epochs; $(grep --only-matching 'test ap.*' "whole-$epochs/log/rank-0.log")"
    done
fi
