"""Whether rates above those of the pilot are better, on validation images of MNIST with 20 dimensions.

    python docs/larger_rates.py docs/results/larger_rates.json --data-root ROOT

The largest rate of the pilot, 3e-4, was the best one for several rows. This script trains a VAE as
docs/columns.py does, but with fewer epochs, and trains some rows on with that rate and with a larger
one. It reads no test images and needs no GPU: on two CPU cores it takes about half an hour. A trial that
is in the file is not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from columns import FIRST, SECOND, START
from study import read, read_json, say, write

import recmix

EPOCHS = 60
"""Epochs of the VAE."""
SPLIT = 0
ROWS: dict[str, dict[str, Any]] = {
    "VAE+": {"method": "vae"},
    "IAF(2)": {"method": "iaf", "flows": 2},
    "HF(4)": {"method": "hf", "flows": 4},
    "IWAE(5)": {"method": "iwae", "samples": 5},
}
RATES: dict[str, list[dict[str, float]]] = {
    "VAE+": [{"learning_rate": 3e-4}, {"learning_rate": 1e-3}],
    "IAF(2)": [
        {"learning_rate": 3e-4, "fresh_rate": 3},
        {"learning_rate": 1e-3, "fresh_rate": 1},
        {"learning_rate": 1e-3, "fresh_rate": 3},
    ],
    "HF(4)": [
        {"learning_rate": 3e-4, "fresh_rate": 10},
        {"learning_rate": 1e-3, "fresh_rate": 3},
    ],
    "IWAE(5)": [{"learning_rate": 3e-4}, {"learning_rate": 1e-3}],
}
"""The rates to try; the first of each row are those of the columns (docs/results/rates.json)."""


def main() -> None:
    """Train the VAE and the trials that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON file of the results")
    parser.add_argument("--data-root", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/larger_rates"), help="folder of the VAE")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the VAE")
    parser.add_argument("--second", type=int, default=8, help="epochs of each trial")
    parser.add_argument(
        "--images", type=int, default=None, help="only so many of each part, for a trial"
    )
    given = parser.parse_args()
    data = read("mnist", SPLIT, given.data_root, test=False, most=given.images)
    vae = recmix.fit(
        "vae", data, latent=20, seed=SPLIT, epochs=given.epochs, out=given.out, resume=True, **FIRST
    )
    content = read_json(given.file) or {"epochs of the VAE": given.epochs, "rows": []}
    if "start" not in content:  # the bound of the VAE, estimated as in the trials
        model = recmix.fit(data=data, init=vae, epochs=1, seed=SPLIT, **START, **SECOND)
        content["start"] = model.history[0]["val_iwae"]
        write(given.file, content)
    say(f"VAE {content['start']:.2f}")
    for name, options in ROWS.items():
        for rates in RATES[name]:
            if any(row["row"] == name and row["rates"] == rates for row in content["rows"]):
                continue
            how = {"epochs": given.second, "seed": SPLIT, **SECOND}
            model = recmix.fit(data=data, init=vae, **options, **rates, **how)
            curve = [round(row["val_iwae"], 2) for row in model.history]
            content["rows"].append({"row": name, "rates": rates, "curve": curve})
            write(given.file, content)
            say(name, rates, f"best {max(curve):.2f}")


if __name__ == "__main__":
    main()
