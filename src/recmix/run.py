"""A run is a folder: what was asked, what happened, what was learned. Reading it needs no torch.

=====================  =========================================================================
``spec.json``          what was asked: method, options, data, training settings
``history.json``       one row per epoch
``status.json``        running, interrupted, failed or done, with the reason
``scores.json``        what `recmix evaluate` measured, by split and number of samples
``gap.json``           what `recmix evaluate --gap` measured
``weights.safetensors``    the weights of the best validation epoch
``checkpoint.safetensors`` everything needed to continue
``log.jsonl``          times and events, outside what must be reproducible
``order.json``         how the order was chosen, if it was left open (``order = "auto"``)
``preset.json``        all stages of a preset, in the folder of its last
=====================  =========================================================================
"""

from __future__ import annotations

import json
import math
import platform
import re
import shutil
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from recmix._version import __version__
from recmix.errors import ConfigError, RunError, unknown
from recmix.files import read_json, write_json

__all__ = ["CLIMBS", "FORMAT", "PRESET", "REUSE", "USE", "Run", "ScoreKey", "Spec", "Training"]

FORMAT = 1
"""Version of the folder's layout; a folder of a newer one is refused."""
PRESET = "preset.json"
"""Written before the run itself: the stages before it are in folders inside."""

REUSE = 2
"""How often a Gauss-Newton step's curvature serves again, by default."""


class ScoreKey(NamedTuple):
    """What a score is called: images, K of IWAE-K, and how the posterior was used if not as trained.

    >>> str(ScoreKey("test", 100, refine=2, calibrated=True))
    'test/100/refine 2/calibrated'
    >>> ScoreKey.parse("val/5")
    ScoreKey(part='val', samples=5, refine=None, calibrated=False)
    """

    part: str
    samples: int
    refine: int | None = None  # Gauss-Newton steps
    calibrated: bool = False

    def __str__(self) -> str:
        steps = "" if self.refine is None else f"/refine {self.refine}"
        return f"{self.part}/{self.samples}{steps}" + "/calibrated" * self.calibrated

    @classmethod
    def parse(cls, text: str) -> ScoreKey | None:
        """The inverse of `str`; None for what is no such key."""
        form = r"(\w+)/(\d{1,9})(?:/refine (\d{1,3}))?(/calibrated)?"
        if not (found := re.fullmatch(form, text, re.ASCII)):
            return None
        part, samples, steps, wide = found.groups()
        return cls(part, int(samples), None if steps is None else int(steps), wide is not None)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How parameters are moved. `None` means: by stage, the paper's value.

    The first stage (no `init`) is the paper's: Adam, 5e-4, up to 2000 epochs. The second stage
    (`init` given) is short and slow: 1e-6, up to 20 epochs.

    Args:
        epochs: passes over the training images (2000, then 20).
        batch_size: images per update.
        optimizer: ``adam``, or ``muon``: the networks' matrices move by the orthogonal part of their
            gradient. It takes fewer epochs at a rate of about 1e-3, and overfits sooner.
        learning_rate: the optimiser's (5e-4, then 1e-6).
        schedule: ``constant``, ``cosine`` or ``linear`` annealing down to `final_rate`.
        final_rate: the learning rate at the end of annealing, as a share of the first.
        warmup: epochs over which the learning rate rises to its value.
        patience: stop after this many epochs without a better validation bound; 0 never stops.
        validation_samples: K of the validation bound (IWAE-K) that picks the best epoch.
        keep: the epoch whose weights are kept: ``best`` by that bound, or ``last``, for a decoder that
            still learns when its encoder has begun to overfit; nothing stops it early then.
        variance_rate: how much faster the likelihood's variance moves than the networks.
        fresh_rate: in the second stage, how much faster parameters move that do not come from `init`
            (500 for the random components of me: the first stage's rate; 1 for others).
        objective: what the decoder is moved up: ``elbo``, or ``iwae`` under the method's posterior.
        objective_samples: K of that IWAE-K.
        refine: Gauss-Newton steps from each component's mean in the posterior that is scored and that
            the decoder learns from (1, 2, 4); the encoders learn as they would without.
        reuse: how often the curvature of such a step, and of those of `distil_steps`, serves again.
        starts: climbs for each component, 1 to 9, from its mean and from points on the ray through it
            (0.8, 1.2, 0.6, 1.4 … times the mean), of which the best counts; for `distil_steps` as well.
            Chains of residual corrections begin there too where they are used, but not in training.
        widen: how much wider the posterior is scored than it is, see `Posterior.widened`;
            `Fitted.calibrated` finds it, and the next two, on held-out images.
        widen_tilt: and e to this times as wide for each nat that log p(x, mean) falls short of
        widen_at: which it has where `widen` is meant.
        moves: what is trained: ``all``, or ``encoder`` alone while the decoder stands still.
        augment: share of each batch that is replaced by images turned, scaled, sheared and shifted a
            little; only where the encoder alone moves, for they are not the data.
        dreams: share of each batch that is replaced by what the decoder makes of points near the
            data's; only where the encoder alone moves.
        distil: share of distillation in what the encoders move down, 0 to 1: samples of their own
            posterior, refined, teach them; the decoder moves as it would without.
        distil_steps: Gauss-Newton steps of that refinement.
        average: decay of a moving average of the weights, one step of it for each update, such as 0.999;
            the averages are what is validated, kept and saved. 0 for none.
        max_gradient_norm: clip each update's gradient to this norm; 0 leaves it alone.
        seed: initial weights, order of the data, noise.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` …
        dtype: ``float32`` or ``float64``.
        engine: ``auto``, ``eager``, ``graph`` (the whole update as a CUDA graph) or ``compile`` (a
            graph of fewer kernels, slower to begin).
        checkpoint_every: epochs between checkpoints.
        tensorboard: also write event files for TensorBoard into the run's folder.
    """

    epochs: int | None = None
    batch_size: int = 128
    optimizer: str = "adam"
    learning_rate: float | None = None
    schedule: str = "constant"
    final_rate: float = 0.01
    warmup: int = 0
    patience: int = 50
    validation_samples: int = 5
    keep: str = "best"
    variance_rate: float = 20.0
    fresh_rate: float | None = None
    objective: str = "elbo"
    objective_samples: int = 5
    refine: int = 0
    reuse: int = REUSE
    starts: int = 1
    widen: float = 1.0
    widen_tilt: float = 0.0
    widen_at: float = 0.0
    moves: str = "all"
    augment: float = 0.0
    dreams: float = 0.0
    distil: float = 0.0
    distil_steps: int = 2
    average: float = 0.0
    max_gradient_norm: float = 0.0
    seed: int = 0
    device: str = "auto"
    dtype: str = "float32"
    engine: str = "auto"
    checkpoint_every: int = 1
    tensorboard: bool = False

    def __post_init__(self) -> None:
        positive = (
            "epochs",
            "batch_size",
            "learning_rate",
            "validation_samples",
            "checkpoint_every",
            "distil_steps",
            "widen",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        for name in (
            "warmup",
            "patience",
            "max_gradient_norm",
            "variance_rate",
            "fresh_rate",
            "seed",
            "refine",
            "reuse",
        ):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("widen", "widen_tilt", "widen_at"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name} must be a finite number, got {getattr(self, name)}")
        if not 1 <= self.starts <= MOST_STARTS:
            raise ConfigError(
                f"starts is the number of climbs of each component, 1 to {MOST_STARTS}; "
                f"got {self.starts}"
            )
        if self.schedule not in SCHEDULES:
            raise ConfigError(unknown("schedule", self.schedule, SCHEDULES))
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(unknown("optimizer", self.optimizer, OPTIMIZERS))
        if self.dtype not in DTYPES:
            raise ConfigError(unknown("dtype", self.dtype, DTYPES))
        if self.objective not in OBJECTIVES:
            raise ConfigError(unknown("objective", self.objective, OBJECTIVES))
        if self.moves not in MOVES:
            raise ConfigError(unknown("value of moves", self.moves, MOVES))
        if self.keep not in KEEPS:
            raise ConfigError(unknown("value of keep", self.keep, KEEPS))
        for name in ("augment", "dreams"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a share of the batch, 0 to 1; got {getattr(self, name)}")
        if self.augment + self.dreams > 1:
            raise ConfigError(
                "augment and dreams are shares of one batch, at most 1 together; "
                f"got {self.augment} and {self.dreams}"
            )
        if (self.augment or self.dreams) and self.moves != "encoder":
            raise ConfigError(
                'augment and dreams make images that are not data: they need moves = "encoder", so that '
                "the decoder does not learn them"
            )
        if not 0 <= self.distil <= 1:
            raise ConfigError(
                f"distil is a share of what the encoders move down, 0 to 1; got {self.distil}"
            )
        if not 0 <= self.average < 1:
            raise ConfigError(
                "average is the decay of a moving average of the weights, from 0 (none) to below 1, "
                f"such as 0.999; got {self.average}"
            )
        if self.engine not in ENGINES:
            raise ConfigError(unknown("engine", self.engine, ENGINES))
        if not 0 <= self.final_rate <= 1:
            raise ConfigError(
                f"final_rate is a share of the learning rate, 0 to 1; got {self.final_rate}"
            )


MOST_STARTS = 9
USE = ("refine", "reuse", "starts", "widen", "widen_tilt", "widen_at")
"""How a trained method's posterior is used."""
CLIMBS = ("reuse", "starts")
"""How Gauss-Newton steps are taken: of no account to a run that trains without them."""
SCHEDULES = ("constant", "cosine", "linear")
OPTIMIZERS = ("adam", "muon")
OBJECTIVES = ("elbo", "iwae")
MOVES = ("all", "encoder")
KEEPS = ("best", "last")
ENGINES = ("auto", "eager", "graph", "compile")
DTYPES = ("float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that defines a run, as plain values.

    Args:
        method: name of the method.
        options: the method's own options.
        latent: dimension of z.
        likelihood: ``gaussian`` or ``bernoulli``.
        network: ``conv``, ``dense`` or ``own`` for a user's modules.
        decoder_network: the same for the decoder.
        shape: (C, H, W) of an image.
        training: how it is trained.
        data: what the data said of itself, and where it was read from.
        init: the run it started from, or nothing.
        setting: which of the options the tables vary (order, steps, flows), if any.
        auto: the options by which one was chosen (``order = "auto"``), as they were asked, and why it
            was chosen so; `options` holds what was chosen. For a step of such a choice, of which.
    """

    method: str
    latent: int
    likelihood: str
    shape: tuple[int, int, int]
    network: str = "conv"
    decoder_network: str = "conv"
    options: dict[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    data: dict[str, Any] = field(default_factory=dict)
    init: dict[str, Any] | None = None
    setting: str | None = None
    auto: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"format": FORMAT, "recmix": __version__, **asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, content: Any, where: str = "spec") -> Spec:
        """The inverse of `to_json`; refuses a newer format and unknown fields."""
        if not isinstance(content, dict) or "method" not in content:
            raise RunError(f"{where} is not the spec of a run: expected a JSON object with 'method'")
        check_format(content.get("format", 0), where)
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in content.items() if k not in ("format", "recmix")}
        for key in values:
            if key not in known:
                raise RunError(f"{where}: {unknown('field', key, known)}")
        try:
            values["training"] = Training(**values.get("training", {}))
            values["shape"] = tuple(values["shape"])
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise RunError(f"{where} is incomplete or damaged: {error}") from error


def check_format(found: Any, where: str) -> None:
    """Refuse what a newer version wrote."""
    if not isinstance(found, int) or found < 1:
        raise RunError(f"{where} has no format number: it was not written by recmix, or is damaged")
    if found > FORMAT:
        raise RunError(
            f"{where} has format {found}, newer than this version of recmix reads ({FORMAT}): "
            "upgrade recmix to open it"
        )


class Run:
    """The folder of one run.

    >>> import tempfile
    >>> run = Run(Path(tempfile.mkdtemp()) / "vae")
    >>> run.exists
    False
    """

    FILES = (
        "spec.json",
        "history.json",
        "status.json",
        "scores.json",
        "gap.json",
        "log.jsonl",
        "order.json",
        "weights.safetensors",
        "checkpoint.safetensors",
    )

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / "spec.json").exists()

    @property
    def weights(self) -> Path:
        """The best weights."""
        return self.folder / "weights.safetensors"

    @property
    def checkpoint(self) -> Path:
        """The last state of training."""
        return self.folder / "checkpoint.safetensors"

    def create(self, spec: Spec, *, overwrite: bool = False) -> None:
        """Make the folder for a new run; refuses one that already holds something."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file: give the name of a folder")
        if self.exists:
            if not overwrite:
                raise RunError(
                    f"{self.folder} already holds a run: continue it with --resume (resume=True), "
                    "replace it with --overwrite (overwrite=True), or give another folder"
                )
            self.clear()
        elif self.folder.exists() and any(p.name in self.FILES for p in self.folder.iterdir()):
            raise RunError(f"{self.folder} holds part of a run without its spec: give another folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not make the folder {self.folder}: {error.strerror}") from error
        write_json(self.folder / "spec.json", spec.to_json())

    def clear(self) -> None:
        """Remove the files of a run, and nothing else."""
        for name in (*self.FILES, PRESET):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)

    def spec(self) -> Spec:
        """What was asked."""
        if not self.exists:
            raise RunError(f"{self.folder} does not hold a run (no spec.json in it)")
        path = self.folder / "spec.json"
        return Spec.from_json(read_json(path), str(path))

    def history(self) -> list[dict[str, float]]:
        """One row per epoch so far."""
        path = self.folder / "history.json"
        rows: list[dict[str, float]] = read_json(path) if path.exists() else []
        return rows

    def status(self) -> dict[str, Any]:
        """How far it is, and why it stopped."""
        path = self.folder / "status.json"
        state: dict[str, Any] = read_json(path) if path.exists() else {"status": "new"}
        return state

    def set_status(self, status: str, **more: Any) -> None:
        """Record how the run stands."""
        write_json(self.folder / "status.json", {"status": status, **more})

    def scores(self) -> dict[str, Any]:
        """What was measured, by ``split/samples``."""
        path = self.folder / "scores.json"
        found: dict[str, Any] = read_json(path) if path.exists() else {}
        return found

    def add_score(self, key: str, score: dict[str, Any]) -> None:
        """Add one measurement to the scores."""
        write_json(self.folder / "scores.json", {**self.scores(), key: score})

    def log(self, event: str, **more: Any) -> None:
        """Append one line to the log: what happened when, on which machine."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **more}
        if event == "start":
            line["host"] = {"python": platform.python_version(), "machine": platform.machine()}
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
