"""`Job`: the training of one model, with its state, its training step and its checkpoints."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from recmix.data import Data
from recmix.errors import Interrupted, NonFiniteError
from recmix.evaluation import bounds
from recmix.methods.curvature_training import CurvatureTraining
from recmix.methods.method import ELBO, Method, Objective, Optimizers
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.training_options import Training
from recmix.training.augment import Augment
from recmix.training.average import Average
from recmix.training.batches import Batches, mix
from recmix.training.checkpoint import State, load_checkpoint, save_checkpoint, save_weights
from recmix.training.meter import Meter
from recmix.training.request import Callback
from recmix.training.resume import how_to_resume
from recmix.training.schedule import KLWeight, clip_gradients, rate_factor, set_rate
from recmix.training.suspicious import fell
from recmix.training.world import world

__all__ = ["Job"]

VALIDATION_SEED = 20201206
EVALUATION_BATCH = 500


class Job:
    """The training of one model: its method, data, optimisers, random generator and state.

    Args:
        training: training options, with `epochs` and `learning_rate` filled in.
        objective: what one training step maximises, such as the ELBO. Its `inference` says how the
            posterior is refined in validation.
        continued: whether the method has trained weights at the start. Then these weights are
            validated as epoch 0, and can be selected as the best.
        resume: whether to continue from the checkpoint in the run folder, if there is one.
    """

    def __init__(
        self,
        method: Method,
        data: Data,
        training: Training,
        *,
        objective: Objective = ELBO,
        continued: bool = False,
        run: Run | None = None,
        resume: bool = False,
        title: str = "training",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        centre = method.model.centre
        self.method = method
        self.objective = objective
        self.training = training
        self.callbacks = list(callbacks)
        self.continued = continued
        self.world = world()
        self.run = run
        self.out = run if self.world.writer else None
        self.resume = resume
        self.title = title
        self.device = centre.device
        self.epochs = training.epochs or 1
        self.batches = Batches(
            data.x_train, device=centre.device, dtype=centre.dtype, binarise=data.dynamic
        )
        self.held_out = Batches(data.x_val, device=centre.device, dtype=centre.dtype)
        self.steps = self.batches.steps(training.batch_size)
        self.kl_weight = None
        if training.changes_kl:
            self.kl_weight = KLWeight(training.kl_warmup, self.steps, like=centre)
            self.objective = dataclasses.replace(
                objective, kl_weight=self.kl_weight.value, free_bits=training.free_bits
            )
        method.model.requires_grad_(training.train == "all")
        self.trainer = CurvatureTraining(method) if training.train == "curvature" else method
        self.augment = None
        if training.augment or training.decoder_samples:
            self.augment = Augment(
                method,
                augment=training.augment,
                decoder_samples=training.decoder_samples,
                kind=data.kind,
            )
        self.generator = torch.Generator(centre.device).manual_seed(training.seed)
        self.state = State()
        self.best: dict[str, Tensor] = {}
        self.average = Average(method, training.weight_average) if training.weight_average else None
        self.meter = Meter(centre.device)
        self._first_score = math.nan  # validation bound before training; not known after a resume
        self._written = -1  # epoch of the best weights on disk
        self._order = torch.zeros(0, dtype=torch.int64)
        self._stream: Iterator[Tensor] | None = None
        self._training_mode()
        self.optimizers: Optimizers = self.trainer.optimizers(
            training.learning_rate or 1e-3,
            variance_rate=training.variance_rate,
            fresh_rate=(training.fresh_rate or 1.0) if continued else 1.0,
            optimizer=training.optimizer,
        )
        if self.world.size > 1:
            self.world.average_gradients(self.optimizers)
        if training.max_gradient_norm:
            clip_gradients(self.optimizers.values(), training.max_gradient_norm)

    @property
    def averages(self) -> dict[str, Tensor]:
        """The moving averages of the weights, {name: tensor}; empty if weights are not averaged."""
        return self.average.tensors() if self.average else {}

    @property
    def active(self) -> bool:
        """Whether the training has epochs left and has not been stopped early."""
        return self.state.epoch < self.epochs and not self.state.stopped

    @property
    def outcome(self) -> dict[str, Any]:
        """The best epoch, its validation bound, and why the training ended."""
        return {
            "epoch": self.state.epoch,
            "best_epoch": self.state.best_epoch,
            "best_validation": self.state.best_score,
            "reason": self.state.stopped or "all epochs done",
        }

    def start(self) -> None:
        """Load the checkpoint to resume from, if there is one; otherwise prepare a new training."""
        run = self.run
        if run and self.resume and run.checkpoint.exists():
            self.state, self.best = load_checkpoint(
                run.checkpoint, self.method, self.optimizers, self.generator, self.averages
            )
            if run.status()["status"] == "done":  # now with more epochs
                self.state.stopped = ""
        else:
            if self.continued:
                self.method.eval()
                self.trainer.prepare(next(self.held_out.in_order(EVALUATION_BATCH)))
                self._training_mode()
            _, self._first_score = self.validation().tolist()
            if self.continued:
                self.state.best_score = self._first_score
                self._keep_best()
        self.world.wait()
        if run := self.out:
            run.set_status("running", epoch=self.state.epoch)
            threads = torch.get_num_threads()
            about = {"device": str(self.device), "torch": torch.__version__, "threads": threads}
            run.log("start", epoch=self.state.epoch, **about)

    def begin_epoch(self) -> None:
        """Prepare the next epoch: set the learning rate and the random order of the examples."""
        factor = rate_factor(self.state.epoch, self.epochs, self.training)
        set_rate(self.optimizers.values(), factor)
        if self.kl_weight is not None:
            self.kl_weight.begin(self.state.epoch)
        order = self.batches.order(
            self.training.batch_size, seed=self.training.seed, epoch=self.state.epoch
        )
        if self.world.size > 1:  # the noise must not depend on the number of processes before
            order = self.world.share(order)
            where = (self.state.epoch, self.state.step, self.world.rank)
            self.generator.manual_seed(mix(self.training.seed, *where))
        self.meter.begin(self.state.step, self.state.sums)
        if not self.batches.resident:
            self._stream = self.batches.stream(order[self.state.step :])
        elif self._order.shape == order.shape:
            self._order.copy_(order)
        else:
            self._order = order.to(self.device)

    def step(self) -> None:
        """Train on the next batch, without waiting for the device.

        A counter on the device selects the examples of the batch, so a CUDA graph can capture the
        step.
        """
        if self._stream is None:
            rows = self._order.index_select(0, self.meter.step).squeeze(0)
            x = self.batches.take(rows)
        else:
            x = next(self._stream)
        if self.batches.binarise:
            x = torch.bernoulli(x, generator=self.generator)
        if self.augment is not None:
            x = self.augment(x, self.generator)
        if self.kl_weight is not None:
            self.kl_weight.update(self.meter.step)
        metrics = self.trainer.step(
            x, self.optimizers, objective=self.objective, generator=self.generator
        )
        self.meter.add(metrics)
        if self.average is not None:
            self.average.update()

    def check(self) -> None:
        """Raise NonFiniteError if a metric of this epoch, such as the loss, was NaN or infinite.

        This waits for the device.
        """
        self.world.smallest(self.meter.first_bad)
        if found := self.meter.not_finite():
            name, step = found
            self._not_finite(name, f"batch {step + 1} of epoch {self.state.epoch + 1}")

    def validation(self) -> Tensor:
        """Compute the means of the ELBO and the IWAE bound over the validation examples, (2,).

        The noise is the same at each call. This does not wait for the device. If several processes
        train the model, only the process of rank 0 computes the bounds and sends them to the others.
        """
        if self.world.size == 1:
            return self._bounds()
        return self.world.agree(self._bounds() if self.world.writer else torch.zeros(2))

    def _bounds(self) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(VALIDATION_SEED)
        samples = self.training.validation_samples
        with self._averaged():
            self.method.eval()
            parts = [
                bounds(self.method, x, self.objective.inference, samples=samples, generator=generator)
                for x in self.held_out.in_order(EVALUATION_BATCH)
            ]
            self._training_mode()
        return torch.stack([torch.cat(column).double().mean() for column in zip(*parts, strict=True)])

    def _training_mode(self) -> None:
        """Set the method to training mode.

        A decoder that is not trained stays in evaluation mode, without dropout.
        """
        self.method.train()
        if self.training.train != "all":
            self.method.model.eval()

    def end_epoch(self, validation: Tensor) -> dict[str, float]:
        """Finish an epoch: store its metrics, keep the best weights, and decide whether to stop early.

        Args:
            validation: means of the ELBO and the IWAE bound over the validation examples, (2,), from
                the method `validation`.

        Returns:
            The metrics of the epoch, {name: value}, which are added to the history. They include no
            computing times, so the same seed gives the same metrics.
        """
        state, training = self.state, self.training
        rate = (training.learning_rate or 0) * rate_factor(state.epoch, self.epochs, training)
        row = {"epoch": state.epoch + 1, "learning_rate": rate}
        row |= {name: total / state.step for name, total in self._totals().items()}
        for name, bound in zip(("val_elbo", "val_iwae"), validation.tolist(), strict=True):
            row[name] = bound
            if not math.isfinite(bound):
                self._not_finite(name, f"the end of epoch {state.epoch + 1}")
        state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
        state.history.append(row)
        since = max(state.best_epoch, training.kl_warmup)  # the bound may fall while the KL is warmed up
        if row["val_iwae"] > state.best_score or training.keep_weights == "last":
            state.best_score, state.best_epoch = row["val_iwae"], state.epoch
            self._keep_best()
        elif training.patience and state.epoch - since >= training.patience:
            state.stopped = f"no better validation bound for {training.patience} epochs"
        if self.world.writer:
            for callback in self.callbacks:
                callback(state.epoch, dict(row))
        return row

    def _totals(self) -> dict[str, float]:
        """Return the sum of each metric over the epoch, averaged over the processes."""
        self.world.sum(self.meter.sums)
        self.meter.sums /= self.world.size
        return self.meter.totals()

    def save(self, **log: float) -> None:
        """Write the checkpoint, the best weights and the history into the run folder.

        Args:
            **log: numbers to write into the log of the run, such as the seconds of the epoch.
        """
        if self.out is None:
            return
        save_checkpoint(
            self.out.checkpoint,
            self.method,
            self.optimizers,
            self.generator,
            self.state,
            self.best,
            self.averages,
        )
        if self.best and self._written != self.state.best_epoch:
            save_weights(self.out.weights, self.best)
            self._written = self.state.best_epoch
        write_json(self.out.folder / "history.json", self.state.history)
        self.out.set_status("running", epoch=self.state.epoch)  # true also after a kill
        if log:
            self.out.log("epoch", epoch=self.state.epoch, **log)

    def interrupt(self, signal_name: str) -> str:
        """Save the training after a signal, even within an epoch; return a message for the user.

        Without a run folder nothing is saved, and the message says so.
        """
        run, state = self.run, self.state
        at = f"epoch {state.epoch + 1}, batch {state.step}"
        if run is None:
            return f"stopped by {signal_name} at {at}; nothing was saved: give an output folder"
        if state.step:
            state.sums = self._totals()
        self.save()
        if self.out:
            run.set_status("interrupted", epoch=state.epoch, step=state.step, reason=signal_name)
            run.log("interrupted", epoch=state.epoch, step=state.step)
        return f"stopped by {signal_name} at {at}; saved. Continue with: {how_to_resume(run)}"

    def finish(self) -> None:
        """Load the best weights into the method and mark the run as done in its folder."""
        warning = ""
        if self.world.writer:
            rate = self.training.learning_rate or 0
            warning = fell(self._first_score, self.state.best_score, self.state.history, rate)
        self.method.load_state_dict(self.best)
        self.method.model.requires_grad_(True)
        for p in self.method.parameters():
            p.grad = None
        if run := self.out:
            save_weights(run.weights, self.best)
            write_json(run.folder / "history.json", self.state.history)
            run.set_status("done", **self.outcome)
            run.log("done", epoch=self.state.epoch, reason=self.outcome["reason"])
        self.world.wait()
        if warning:
            warnings.warn(warning, stacklevel=2)  # the last statement, as a warning may be an error

    def _keep_best(self) -> None:
        with self._averaged():
            self.best = {k: v.detach().clone() for k, v in self.method.state_dict().items()}

    def _averaged(self) -> AbstractContextManager[None]:
        """Context in which the method has its averaged weights, if the training averages weights."""
        return nullcontext() if self.average is None else self.average.in_place()

    def fail(self, reason: str) -> str:
        """Mark the run as failed, and return a text that tells the user how to continue the training.

        Args:
            reason: why the training failed, such as too little memory; it is stored in the run folder.
        """
        if self.run is None:
            return "Nothing was saved: give an output folder."
        self._set_failed(reason)
        if not self.run.checkpoint.exists():
            return "There is no checkpoint yet."
        return (
            "Options other than engine and device need a new training. With more free memory, or on "
            "another device, the same training continues from its last checkpoint: "
            f"{how_to_resume(self.run)}"
        )

    def _set_failed(self, reason: str) -> None:
        if self.out:
            self.out.set_status("failed", epoch=self.state.epoch, reason=reason)
            self.out.log("failed", epoch=self.state.epoch, reason=reason)

    def _not_finite(self, what: str, where: str) -> NoReturn:
        saved = "nothing was saved (no output folder was given)"
        if self.run:
            path = self.run.checkpoint
            saved = f"the last good checkpoint is {path}" if path.exists() else "no checkpoint yet"
            self._set_failed(f"{what} not finite at {where}")
        raise NonFiniteError(
            f"{what} is not a finite number at {where}; {saved}. "
            "Try a smaller learning_rate, or max_gradient_norm=100"
        )


def stop_all(jobs: list[Job], signal_name: str) -> NoReturn:
    """Save every training after a signal such as SIGTERM, then raise Interrupted with a message."""
    messages = [job.interrupt(signal_name) for job in jobs]
    raise Interrupted("\n".join(messages))
