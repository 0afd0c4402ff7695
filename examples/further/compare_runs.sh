#!/usr/bin/env bash
# A hyperparameter search: compare learning rates over two seeds, stop a run, resume it on more ranks, start from it.
#   bash examples/further/compare_runs.sh [FOLDER]         # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
folder=${1:-runs/compare_runs}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: a partition set. Replace this line by yours.
rm -rf parts/
python -c "import hpcgnn; hpcgnn.make_synthetic_graph('parts', num_nodes=5000)"
options=(--recipe sage --data.path parts/ --model.layers 2 --model.hidden 32 --sampling.fanouts '[10, 5]'
    --train.batch_size 64 --train.epochs 8)

# 2. Sweep: two learning rates, each with two seeds. The table has mean and standard deviation over the seeds.
rm -rf sweep/ stopped/ tuned/
mpirun -np "$ranks" hpcgnn train "${options[@]}" --each train.lr=0.01,0.001 --each train.seed=0,1 \
    --output.dir sweep/ > sweep.log
hpcgnn report sweep/ --format text

# 3. Stop: one of these runs again, which writes a checkpoint and ends at a signal.
mpirun -np "$ranks" hpcgnn train "${options[@]}" --train.lr 0.01 --train.seed 0 --output.dir stopped/ > stopped.log 2>&1 &
until [[ -s stopped/metrics.jsonl ]]; do sleep 0.02; done
kill -USR1 $!
wait $! || echo "stopped with exit code $?"

# 4. Resume it on one rank more. The result is the one of the sweep.
mpirun -np "$((ranks + 1))" hpcgnn train --resume stopped/ > resumed.log

# 5. Start from its weights, with a smaller step, and stop when validation no longer improves.
mpirun -np "$ranks" hpcgnn train "${options[@]}" --init stopped/ --train.lr 0.0005 --train.early_stopping_patience 2 \
    --output.dir tuned/ > tuned.log

# 6. The result.
grep --no-filename 'best epoch' sweep/lr=0.01,seed=0/log/rank-0.log stopped/log/rank-0.log tuned/log/rank-0.log
