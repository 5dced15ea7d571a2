"""Reads a folder of event files with TensorBoard itself and prints what it sees.

Usage: tensorboard_reads.py FOLDER
Prints one JSON object: {tag: [[step, value, wall_time], ...]}. Exits with 3 where TensorBoard is not installed.
"""

import json
import sys

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    sys.exit(3)

events = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
seen = {tag: [[p.step, p.value, p.wall_time] for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps(seen))
