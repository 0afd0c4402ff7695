"""Write events that stand in for your data: events.csv, a row per event, in order of time.

Users 0 to 99 buy items 1000 to 1049. Every user has a taste that drifts: one in seven purchases is a new item, the
others repeat one of the last three items of this user.
"""

import numpy as np

rng = np.random.default_rng(0)
num_users, num_items, num_events = 100, 50, 6000
activity = rng.pareto(1.5, num_users) + 0.1  # few users buy much
recent = {user: [] for user in range(num_users)}
with open("events.csv", "w") as file:
    file.write("src,dst,time\n")
    for number in range(num_events):
        user = int(rng.choice(num_users, p=activity / activity.sum()))
        if not recent[user] or rng.random() < 0.15:
            item = (user // 10) * 5 + int(rng.integers(0, 15))  # ten users share a group of items
        else:
            item = int(rng.choice(recent[user]))
        recent[user] = [*recent[user], item % num_items][-3:]
        file.write(f"{user},{1000 + item % num_items},{60 * number}\n")
