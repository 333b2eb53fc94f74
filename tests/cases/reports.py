"""Stores of invented runs for the tests of the reports: the paper's rows, plausible scores."""

import json
import math
import random
import zlib
from pathlib import Path

from recmix.inference import Inference
from recmix.model.options import ModelOptions
from recmix.reports.published import published
from recmix.runs.scores import ScoreKey
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training

__all__ = ["SETTINGS", "add_run", "add_scores", "curve", "fill", "write"]

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
FEED_FORWARD = ("RESIDUAL",)


def write(path, content):
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def curve(last, best, spread, rng, epochs):
    """A history that rises to `last`, with noise."""
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
    method=None,
    options=None,
    training=None,
    inference=None,
    model=None,
    init="vae",
    rng=None,
):
    """Write one run folder as `recmix` and its grid would, and return its path.

    `options`, `training`, `inference` and `model` are added to the spec.
    """
    rng = rng or random.Random(hash((split, restart)))
    usual, option, _ = SETTINGS.get(label, (label.lower(), "order", None))
    used = Inference(**(inference or {}))
    validation = test + 1 if validation is None else validation
    continued = label != "VAE"
    rate = 1e-5 if continued else 5e-4
    spec = Spec(
        method=method or usual,
        label=label,
        shape=(1, 28, 28),
        options={**({} if setting is None else {option: setting, "eps_max": 0.1}), **(options or {})},
        model=ModelOptions(
            latent=latent, likelihood=likelihood, decoder_network=decoder_network, **(model or {})
        ),
        training=Training(
            **{"epochs": epochs, "learning_rate": rate, "seed": restart, **(training or {})}
        ),
        inference=used,
        data={"name": data, "kind": "named", "seed": split, "counts": {"train": 54000, "test": 10000}},
        init={"method": "vae", "label": "VAE", "run": f"runs/{init}", "weights": "294a413b5de8d3b6"}
        if continued
        else None,
        setting=None if setting is None else option,
    )
    name = (
        name or f"{zlib.crc32(repr((label, setting, data, latent, split, restart, spec)).encode()):08x}"
    )
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
        kind = "feed-forward" if label in FEED_FORWARD else "encoder"
        own = setting if method is None and label == "SA" else 0
        score = {"images": 10000, "samples": samples, "seed": 0, "inference": used.to_json()}
        score |= {"kind": "refined" if own + used.refine else kind, "steps": own + used.refine}
        score |= {"elbo": test - 20, "elbo_se": 1.1, "iwae": test, "iwae_se": 1.0, "weights": [0.9, 0.1]}
        score |= {"milliseconds": milliseconds, "batch": batch, "device": device}
        write(folder / "scores.json", {str(ScoreKey("test", samples, used)): score})
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


def add_scores(
    folder, *, part="test", samples=100, calibrated=False, noise=False, inference=None, **values
):
    """Add a score like the run's first one, with another inference and other values."""
    path = folder / "scores.json"
    scores = json.loads(path.read_text())
    used = Inference(**(inference or {}))
    score = {**next(iter(scores.values())), "inference": used.to_json(), "samples": samples}
    if used.refine:
        score |= {"kind": "refined", "steps": used.refine}
    named = used.uncalibrated if calibrated else used
    key = str(ScoreKey(part, samples, named, calibrated, noise))
    write(path, {**scores, key: {**score, **values}})
    return key


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
