"""Stores of made-up runs for the tests of the reports: the paper's rows, believable figures."""

import json
import math
import random
from dataclasses import asdict
from pathlib import Path

from recmix.reports.published import published
from recmix.runs.options import Training
from recmix.runs.spec import Spec

SETTINGS = {
    "VAE": ("vae", None, [None]),
    "VAE+": ("vae", None, [None]),
    "SA": ("sa", "steps", [1, 2, 4, 8]),
    "IAF": ("iaf", "flows", [1, 2, 4, 8]),
    "HF": ("hf", "flows", [1, 2, 4, 8]),
    "ME": ("me", "order", [2, 3, 4, 5]),
    "RME": ("rme", "order", [2, 3, 4, 5]),
}
TIMES = {"VAE": 0.08, "VAE+": 0.08, "SA": 2.1, "IAF": 0.12, "HF": 0.11, "ME": 0.09, "RME": 0.1}


def write(path, content):
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def curve(last, best, spread, rng, epochs):
    """A history that rises to `last` and wobbles."""
    rows = []
    for epoch in range(1, epochs + 1):
        bound = last - spread * math.exp(-4 * epoch / epochs) + rng.gauss(0, 0.01 * spread)
        rows.append(
            {
                "epoch": epoch,
                "learning_rate": 1e-5,
                "loss": -bound - 20,
                "elbo": bound + 20,
                "val_elbo": bound - 12,
                "val_iwae": best if epoch == epochs else min(bound, best),
            }
        )
    return rows


def add_run(
    store,
    label="RME",
    setting=5,
    *,
    data="mnist",
    latent=20,
    split=0,
    restart=0,
    test=945.0,
    validation=None,
    milliseconds=0.1,
    epochs=20,
    batch=128,
    samples=100,
    status="done",
    name=None,
    job=True,
    decoder_network="conv",
    likelihood="gaussian",
    device="NVIDIA H200",
    rng=None,
):
    """Write one run folder as `recmix` and its grid would, and return its path."""
    rng = rng or random.Random(hash((split, restart)))
    method, option, _ = SETTINGS.get(label, (label.lower(), "order", None))
    validation = test + 1 if validation is None else validation
    continued = label != "VAE"
    spec = Spec(
        method=method,
        latent=latent,
        likelihood=likelihood,
        shape=(1, 28, 28),
        decoder_network=decoder_network,
        options={} if setting is None else {option: setting, "eps_max": 0.1},
        training=Training(epochs=epochs, learning_rate=1e-5 if continued else 5e-4, seed=restart),
        data={"name": data, "kind": "named", "seed": split, "counts": {"train": 54000, "test": 10000}},
        init={"method": "vae", "run": "vae", "weights": "294a413b5de8d3b6"} if continued else None,
        setting=None if setting is None else option,
    )
    name = name or f"{abs(hash((label, setting, data, latent, split, restart, decoder_network))):016x}"
    folder = Path(store) / name
    folder.mkdir(parents=True)
    write(folder / "spec.json", spec.to_json())
    if job:
        entry = {"label": label, "setting": setting, "data": data, "latent": latent, "split": split}
        entry |= {"restart": restart, "network": "conv", "decoder_network": decoder_network}
        entry |= {"digest": name, "dependency": None, "continued": continued}
        write(folder / "job.json", entry)
    state = {"status": status, "epoch": epochs, "reason": "all epochs done"}
    if status == "done":
        state |= {"best_epoch": epochs, "best_validation": validation}
    write(folder / "status.json", state)
    spread = abs(test) * 0.02
    write(folder / "history.json", curve(validation - 0.01 * spread, validation, spread, rng, epochs))
    if status == "done" and test is not None:
        score = {"images": 10000, "samples": samples, "seed": 0, "elbo": test - 20, "elbo_se": 1.1}
        score |= {"iwae": test, "iwae_se": 1.0, "weights": [0.9, 0.1], "milliseconds": milliseconds}
        write(folder / "scores.json", {f"test/{samples}": score | {"batch": batch, "device": device}})
    host = {"python": "3.11.7", "machine": "x86_64"}
    start = {"event": "start", "epoch": 0, "device": device, "torch": "2.13.0", "host": host}
    lines = [{"time": "2026-11-15T08:30:08+0000", **start}]
    for epoch in range(1, epochs + 1):
        seconds = round(rng.uniform(0.8, 1.2), 6)
        lines.append(
            {"time": f"2026-11-15T08:{30 + epoch // 60:02d}:{epoch % 60:02d}+0000", "event": "epoch"}
            | {"epoch": epoch, "seconds": seconds}
        )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "log.jsonl").write_text(text, encoding="utf-8")
    return folder


def fill(store, *, sets=("mnist", "omniglot"), dims=(20, 50), splits=8, restarts=2, rows=None, seed=0):
    """A whole grid: every row of the paper on some data sets, around the paper's figures."""
    rng = random.Random(seed)
    count = 0
    for data in sets:
        for latent in dims:
            shift = {split: rng.gauss(0, 1.5) for split in range(splits)}
            vae = published("log_likelihood", data, latent, "VAE")
            base = vae.mean if vae else 24.0
            for label, (_, _, settings) in SETTINGS.items():
                for setting in settings:
                    if rows is not None and (label, setting) not in rows:
                        continue
                    known = published("log_likelihood", data, latent, label, setting)
                    mean = base + 11 if label == "VAE+" else known.mean if known else base + 2
                    time = TIMES[label] * (setting or 1) ** (1 if label == "SA" else 0.35)
                    for split in range(splits):
                        for restart in range(restarts):
                            test = mean + shift[split] + rng.gauss(0, 0.9)
                            add_run(
                                store,
                                label,
                                setting,
                                data=data,
                                latent=latent,
                                split=split,
                                restart=restart,
                                test=test,
                                validation=test + rng.gauss(3, 0.8),
                                milliseconds=time * rng.uniform(0.95, 1.05),
                                epochs=120 if label == "VAE" else 20,
                                name=f"{rng.getrandbits(64):016x}",
                                rng=rng,
                            )
                            count += 1
    return count


__all__ = ["SETTINGS", "add_run", "asdict", "curve", "fill", "write"]
