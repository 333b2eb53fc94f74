"""The training loop: batches, schedule, validation, checkpoints, resume."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from recmix.core import Method, Optimizers
from recmix.data import ImageData
from recmix.errors import ConfigError, Interrupted, NonFiniteError
from recmix.evaluation import bounds
from recmix.files import write_json
from recmix.run import Run, Training
from recmix.training.batches import Batches
from recmix.training.checkpoint import State, load_checkpoint, save_checkpoint, save_weights
from recmix.training.progress import watch
from recmix.training.schedule import rate_factor, set_rate

__all__ = ["train"]

CHECK_EVERY = 100
"""On a GPU, batches between two looks at whether the losses are finite (a look waits for the device)."""
VALIDATION_SEED = 20201206
EVALUATION_BATCH = 500


def train(
    method: Method,
    data: ImageData,
    training: Training,
    *,
    continued: bool,
    run: Run | None = None,
    resume: bool = False,
    title: str = "training",
    progress: bool | None = None,
) -> State:
    """Train a method; afterwards it holds the weights of its best validation epoch.

    Args:
        method: moved in place.
        data: training and validation images.
        training: settings, with `epochs` and `learning_rate` filled in.
        continued: it starts from trained weights, which then count as epoch 0 in the choice of the best.
        run: where checkpoints go; without it nothing is written.
        resume: continue from the run's checkpoint if there is one.
        title: name in the progress bar.
        progress: see `recmix.training.progress.watch`.
    """
    epochs, learning_rate = training.epochs or 1, training.learning_rate or 1e-3
    device, dtype = method.model.centre.device, method.model.centre.dtype
    batches = Batches(data.x_train, device=device, dtype=dtype, binarise=data.dynamic)
    held_out = Batches(data.x_val, device=device, dtype=dtype)
    optimizers = method.optimizers(
        learning_rate,
        variance_rate=training.variance_rate,
        fresh_rate=training.fresh_rate if continued else 1.0,
    )
    set_rate(optimizers.values(), 1.0)
    if training.max_gradient_norm:
        _clip(optimizers, training.max_gradient_norm)
    generator = torch.Generator(device).manual_seed(training.seed)
    job = _Job(method, optimizers, generator, run)
    state = job.start(held_out, training, continued=continued, resume=resume)

    steps = batches.steps(training.batch_size)
    with (
        _stop_signals() as stop,
        _tensorboard(run, training) as board,
        watch(title, epochs, state.epoch, progress) as report,
    ):
        while state.epoch < epochs and not state.stopped:
            began = time.monotonic()
            set_rate(optimizers.values(), rate_factor(state.epoch, epochs, training))
            meter = _Meter(state, device)
            for x in batches.shuffled(
                training.batch_size,
                seed=training.seed,
                epoch=state.epoch,
                start=state.step,
                generator=generator,
            ):
                meter.add(method.step(x, optimizers, generator=generator), state.step)
                state.step += 1
                report(state.epoch + state.step / steps)
                if device.type == "cpu" or state.step % CHECK_EVERY == 0:
                    meter.check(job)
                if stop:
                    state.sums = meter.totals()
                    job.interrupt(stop[0])
            meter.check(job)
            row = job.end_epoch(meter, held_out, training)
            if state.epoch % training.checkpoint_every == 0 or state.epoch == epochs or state.stopped:
                job.save(seconds=time.monotonic() - began)
            board(row)
            report(state.epoch, f"validation {row['val_iwae']:.2f}, best {state.best_score:.2f}")
            if stop:
                job.interrupt(stop[0])
    return job.finish()


@dataclass
class _Job:
    """What a training holds in its hands, and how it is kept safe."""

    method: Method
    optimizers: Optimizers
    generator: torch.Generator
    run: Run | None
    state: State = field(default_factory=State)
    best: dict[str, Tensor] = field(default_factory=dict)

    def start(self, held_out: Batches, training: Training, *, continued: bool, resume: bool) -> State:
        """Take up a checkpoint, or begin."""
        run = self.run
        if run and resume and run.checkpoint.exists():
            self.state, self.best = load_checkpoint(
                run.checkpoint, self.method, self.optimizers, self.generator
            )
            self.state.stopped = ""
        elif continued:
            score = _validate(self.method, held_out, training.validation_samples)
            self.state.best_score = score["val_iwae"]
            self._keep_best()
        if run:
            run.set_status("running", epoch=self.state.epoch)
            device = str(self.method.model.centre.device)
            run.log("start", epoch=self.state.epoch, device=device, torch=torch.__version__)
        return self.state

    def end_epoch(self, meter: _Meter, held_out: Batches, training: Training) -> dict[str, float]:
        """Validate and add a row to the history: no times in it, the same seed gives the same row."""
        state = self.state
        rate = next(iter(self.optimizers.values())).param_groups[0]["lr"]
        row = {"epoch": state.epoch + 1, "learning_rate": float(rate)}
        row |= {name: total / state.step for name, total in meter.totals().items()}
        row |= _validate(self.method, held_out, training.validation_samples)
        for name in ("val_elbo", "val_iwae"):
            if not math.isfinite(row[name]):
                self.not_finite(name, f"the end of epoch {state.epoch + 1}")
        state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
        state.history.append(row)
        if row["val_iwae"] > state.best_score:
            state.best_score, state.best_epoch = row["val_iwae"], state.epoch
            self._keep_best()
        elif training.patience and state.epoch - state.best_epoch >= training.patience:
            state.stopped = f"no better validation bound for {training.patience} epochs"
        return row

    def save(self, **log: float) -> None:
        """Write the checkpoint and what a reader of the folder may want now."""
        if self.run is None:
            return
        save_checkpoint(
            self.run.checkpoint, self.method, self.optimizers, self.generator, self.state, self.best
        )
        write_json(self.run.folder / "history.json", self.state.history)
        if log:
            self.run.log("epoch", epoch=self.state.epoch, **log)

    def interrupt(self, signal_name: str) -> None:
        """Save, in the middle of an epoch if need be, then stop."""
        run, state = self.run, self.state
        at = f"epoch {state.epoch + 1}, batch {state.step}"
        if run is None:
            raise Interrupted(
                f"stopped by {signal_name} at {at}; nothing was saved: give an output folder"
            )
        self.save()
        run.set_status("interrupted", epoch=state.epoch, step=state.step, reason=signal_name)
        run.log("interrupted", epoch=state.epoch, step=state.step)
        raise Interrupted(
            f"stopped by {signal_name} at {at}; saved. "
            f"Continue with: recmix train --resume --out {run.folder}"
        )

    def not_finite(self, what: str, where: str) -> None:
        """Stop because a number is not one."""
        saved = "nothing was saved (no output folder was given)"
        if self.run:
            path = self.run.checkpoint
            saved = f"the last good checkpoint is {path}" if path.exists() else "no checkpoint yet"
            self.run.set_status("failed", epoch=self.state.epoch, reason=f"{what} not finite at {where}")
        raise NonFiniteError(
            f"{what} is not a finite number at {where}; {saved}. "
            "Try a smaller learning_rate, or max_gradient_norm=100"
        )

    def finish(self) -> State:
        """Leave the best weights in the method, and the run marked as done."""
        self.method.load_state_dict(self.best)
        if run := self.run:
            state, reason = self.state, self.state.stopped or "all epochs done"
            save_weights(run.weights, self.method, state.best_epoch)
            run.set_status(
                "done",
                epoch=state.epoch,
                best_epoch=state.best_epoch,
                best_validation=state.best_score,
                reason=reason,
            )
            run.log("done", epoch=state.epoch, reason=reason)
        return self.state

    def _keep_best(self) -> None:
        self.best = {k: v.detach().clone() for k, v in self.method.state_dict().items()}
        if self.run:
            save_weights(self.run.weights, self.method, self.state.best_epoch)


class _Meter:
    """Sums of the step's metrics over an epoch, and the first batch where one was not finite."""

    def __init__(self, state: State, device: torch.device) -> None:
        self.device = device
        self.names = list(state.sums)
        self.sums = self._tensor(list(state.sums.values()))
        self.first_bad = torch.full_like(self.sums, math.inf)

    def _tensor(self, values: list[float]) -> Tensor:
        return torch.tensor(values, device=self.device, dtype=torch.float64)

    def add(self, metrics: dict[str, Tensor], step: int) -> None:
        values = torch.stack(list(metrics.values())).to(torch.float64)
        if not self.names:
            self.names = list(metrics)
            self.sums = torch.zeros_like(values)
            self.first_bad = torch.full_like(values, math.inf)
        self.sums = self.sums + values
        self.first_bad = self.first_bad.minimum(torch.where(values.isfinite(), math.inf, step))

    def check(self, job: _Job) -> None:
        """Stop if a metric was not a finite number; this waits for the device."""
        for name, step in zip(self.names, self.first_bad.tolist(), strict=True):
            if step < math.inf:
                job.not_finite(name, f"batch {int(step) + 1} of epoch {job.state.epoch + 1}")

    def totals(self) -> dict[str, float]:
        return dict(zip(self.names, self.sums.tolist(), strict=True))


def _validate(method: Method, held_out: Batches, samples: int) -> dict[str, float]:
    """Mean validation bounds, always from the same noise."""
    generator = torch.Generator(held_out.device).manual_seed(VALIDATION_SEED)
    method.eval()
    parts = [
        bounds(method, x, samples=samples, generator=generator)
        for x in held_out.in_order(EVALUATION_BATCH)
    ]
    method.train()
    elbo, iwae = (torch.cat(column).double().mean() for column in zip(*parts, strict=True))
    return {"val_elbo": float(elbo), "val_iwae": float(iwae)}


@contextmanager
def _stop_signals() -> Iterator[list[str]]:
    """A list that receives the name of SIGINT or SIGTERM; a second one stops at once."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handler(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _tensorboard(run: Run | None, training: Training) -> Iterator[Any]:
    """A function that writes a row of the history to TensorBoard, or nowhere."""
    if not (run and training.tensorboard):
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("tensorboard is not installed: pip install 'recmix[track]'") from error
    writer = SummaryWriter(str(run.folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def write(row: dict[str, float]) -> None:
        for name, value in row.items():
            writer.add_scalar(name, value, row["epoch"])  # type: ignore[no-untyped-call]

    try:
        yield write
    finally:
        writer.close()  # type: ignore[no-untyped-call]


def _clip(optimizers: Optimizers, norm: float) -> None:
    def hook(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    for optimizer in optimizers.values():
        optimizer.register_step_pre_hook(hook)
