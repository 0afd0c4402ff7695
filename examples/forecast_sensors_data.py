"""Write readings that stand in for your data: readings.csv and weights.csv.

20 sensors along a river measure the water level, a row per hour, for 30 days. Rain raises the level at a sensor, and
the wave then moves downstream, one sensor per hour.
"""

import numpy as np

rng = np.random.default_rng(0)
num_sensors, num_hours = 20, 30 * 24
wave = np.zeros((num_hours, num_sensors))  # centimeters above the normal level
for hour in range(1, num_hours):
    wave[hour, 1:] = 0.95 * wave[hour - 1, :-1]
    rain = rng.random(num_sensors) < 0.01
    wave[hour] += rain * rng.uniform(50, 150, num_sensors)
level = 20 + wave + rng.normal(0, 2, wave.shape)

# A row per hour; the first row names the sensors. An empty cell is a missing reading.
cells = [[f"{value:.1f}" for value in row] for row in level]
for hour, sensor in zip(rng.integers(0, num_hours, 50), rng.integers(0, num_sensors, 50), strict=True):
    cells[hour][sensor] = ""
with open("readings.csv", "w") as file:
    file.write(",".join(f"gauge{number}" for number in range(num_sensors)) + "\n")
    file.writelines(",".join(row) + "\n" for row in cells)

# A row and a column per sensor: row i, column j is the weight of the edge from sensor i to sensor j; 0 is no edge.
np.savetxt("weights.csv", np.eye(num_sensors, k=1), fmt="%g", delimiter=",")
