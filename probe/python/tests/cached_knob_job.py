"""A training loop over files with a cache, which a collector turns: cached_knob_job.py FOLDER WORKERS.

It trains slowly until the folder UNTIL has a file "0".
"""

import json
import os
import sys
import time

import torch
from cached_sets import Augmented, fill

import stallscope


def main():
    torch.set_num_threads(1)
    folder, workers = sys.argv[1] + "/files", int(sys.argv[2])
    turned = os.path.join(os.environ["UNTIL"], "0")
    fill(folder)

    def got(cache, epochs):
        torch.manual_seed(3)
        loader = stallscope.DataLoader(
            Augmented(folder), batch_size=4, shuffle=True, num_workers=workers, **({"cache": cache} if cache else {})
        )
        batches = []
        for _ in range(epochs):
            for batch in loader:
                batches.append([part.tolist() for part in batch])
                # Long enough to be turned meanwhile.
                time.sleep((0.01 if os.path.exists(turned) else 0.2) if cache else 0)
        return batches, loader

    cached, loader = got("8MiB", 8)
    print(json.dumps({"scenario": "knob", "same": cached == got(None, 8)[0], "figures": loader.cache_figures()}))


if __name__ == "__main__":
    main()
