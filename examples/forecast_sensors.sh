#!/usr/bin/env bash
# Forecast: predict the next reading of every sensor from the last ones, and those of its neighbors.
#   bash examples/forecast_sensors.sh [FOLDER]     # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/forecast_sensors}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: readings.csv and weights.csv. Replace this line by your files.
python "$here/forecast_sensors_data.py"

# 2. Convert: a row of readings becomes a snapshot, a sensor a node, a weight above 0 an edge.
hpcgnn snapshots speeds readings.csv weights.csv sensors.h5 --overwrite

# 3. Partition: cut the sensors into 4 parts. The same parts serve 1 to 4 ranks.
hpcgnn partition sensors.h5 parts/ --parts 4 --overwrite

# 4. Train a GRU with graph convolutions, on windows of 2 snapshots; each has the last 2 readings of every sensor.
#    A missing reading is replaced by the last known one.
rm -rf run/
mpirun -np "$ranks" hpcgnn train --kind snapshots --task.kind regression --data.path parts/ --output.dir run/ \
    --model.kind gconv_gru --inputs.lags 2 --inputs.unknown last --sampling.window_size 2 --sampling.shuffle true \
    --train.batch_size 32 --train.epochs 6 --train.lr 0.02

# 5. Predict the readings of the next hour, from the last snapshot.
mpirun -np "$ranks" hpcgnn predict run/ --out forecast.csv

# 6. The result: the forecast, and its error on the test beside the simplest forecast, "the same as now".
python - <<'PYTHON'
import csv
import json

import numpy as np

readings = np.genfromtxt("readings.csv", delimiter=",", skip_header=1)
rows = list(csv.DictReader(open("forecast.csv")))
print("sensor       now  in one hour")
for row, now in list(zip(rows, readings[-1]))[:5]:
    print(f"{row['node']:8} {now:7.1f} {float(row[f'snapshot_{len(readings)}']):12.1f}")

metrics = [json.loads(line) for line in open("run/metrics.jsonl")]
error = next(line["test_mae_units"] for line in metrics if line["kind"] == "test")
test = readings[-len(readings) // 5 :]  # the last 20 % of the snapshots are the test
same = np.nanmean(np.abs(test[1:] - test[:-1]))
print(f"mean error on the test: {error:.1f} cm (the same as now: {same:.1f} cm)")
PYTHON
