"""A trained model as a user holds it: numpy or torch in, answers in nats and pixels out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recmix.accelerate.captured import Captured
from recmix.data import Images, check_images
from recmix.errors import ConfigError
from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import IMAGES as CALIBRATED_ON
from recmix.evaluation.calibrate import calibrate
from recmix.evaluation.decompose import decompose
from recmix.evaluation.gap import Gap
from recmix.methods.method import Method
from recmix.model.latent import LatentModel
from recmix.posteriors.posterior import Posterior
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.spec import Spec
from recmix.training.build import build, pick_device
from recmix.training.checkpoint import load_weights, save_weights

__all__ = ["AT_ONCE", "Fitted", "load"]


AT_ONCE = 512
"""Images that pass through a network at a time."""


class Fitted:
    """A trained method with its spec and history.

    Images are numpy arrays or tensors (B, C, H, W) in [0, 1] (uint8 counts as value / 255); results are
    tensors on the CPU or the model's device, without gradients. For gradients use `method` itself.

    Args:
        method: the trained method.
        spec: what it was asked to be.
        history: one row per epoch.
        folder: where it is stored, if it is.
    """

    def __init__(
        self,
        method: Method,
        spec: Spec,
        history: Sequence[dict[str, float]] = (),
        folder: Path | None = None,
    ) -> None:
        self.method = method.eval()
        self._form = Captured(self.method)
        self.spec = spec
        self.history = list(history)
        self.folder = folder

    @property
    def model(self) -> LatentModel:
        """p(x, z)."""
        return self.method.model

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.centre.device

    def to(self, device: str) -> Fitted:
        """Move to a device."""
        self.method.to(pick_device(device))
        return self

    def refined(self, steps: int, *, starts: int | None = None, reuse: int | None = None) -> Fitted:
        """The same model with every component of its posterior refined by Gauss-Newton steps.

        Nothing is trained and nothing is copied: the refined model shares the weights of this one.

        Args:
            steps: damped Gauss-Newton steps from each component's mean; 0 takes refinement away.
            starts: climbs of each component, 1 to 9, from its mean and from points beside it, of which
                the best counts; for latent spaces where one climb often ends on the wrong hill. A chain
                of residual corrections begins from so many points too, even without any step.
            reuse: how often the curvature of a step serves again. Both stay as they are if not given.
        """
        if steps < 0:
            raise ConfigError(f"steps must not be negative, got {steps}: try 1, 2 or 4")
        given = {"refine": steps, "starts": starts, "reuse": reuse}
        return self._used(**{name: value for name, value in given.items() if value is not None})

    def widened(self, factor: float, *, tilt: float = 0.0, at: float = 0.0) -> Fitted:
        """The same model with a wider posterior: standard deviations `factor` times as large.

        Where an image says little they are less so, and never larger than the prior's, see
        `Posterior.widened`. Nothing is trained and nothing is copied, as with `refined`.

        Args:
            factor: above 1 wider, below 1 narrower.
            tilt: if not 0, the factor grows by that of e to `tilt` for each nat by which log p(x, mean)
                falls short of `at`.
            at: log p(x, mean), in nats, of the images that `factor` is meant for.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise ConfigError(f"factor must be a positive number, got {factor}")
        for name, value in (("tilt", tilt), ("at", at)):
            if not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number, got {value}")
        return self._used(widen=float(factor), widen_tilt=float(tilt), widen_at=float(at))

    def calibrated(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> Fitted:
        """The same model, its posterior as wide as makes IWAE-`samples` of held-out images highest.

        An encoder is surer of images it has not seen than it may be, most of all of those it explains
        badly. Two numbers, how much wider its posterior should be and how much more so for each nat that
        an image fits worse, are fitted here to images that it was not trained on and that nothing is
        reported on: validation images. The log-likelihood is then estimated with fewer losses; the
        ELBO, for which the encoder was trained, falls.

        Args:
            x: held-out images; the first thousand are used.
            samples: K of IWAE-K that the width is for.
            seed: of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default what suits the device.
        """
        images = self._images(x[:CALIBRATED_ON])
        found = calibrate(self.method, images, samples=samples, seed=seed, memory=memory)
        return self.widened(found.factor, tilt=found.tilt, at=found.at)

    def _used(self, **how: Any) -> Fitted:
        """This model with its posterior used in another way: the weights are shared."""
        method = copy.copy(self.method)
        for name, value in how.items():
            setattr(method, name, value)
        spec = replace(self.spec, training=replace(self.spec.training, **how))
        return Fitted(method, spec, self.history, None)

    @torch.no_grad()
    def posterior(self, x: Any) -> Posterior:
        """q(z | x)."""
        return self._form(self._images(x))

    @torch.no_grad()
    def log_joint(self, x: Any, z: Any) -> Tensor:
        """log p(x, z) for z (S, B, D): (S, B), the quantity every bound is made of."""
        x = self._images(x)
        z = torch.as_tensor(z, dtype=self.model.centre.dtype, device=self.device)
        if z.ndim != 3 or z.shape[1:] != (len(x), self.model.latent):
            raise ConfigError(
                f"z must be (samples, {len(x)}, {self.model.latent}), got {tuple(z.shape)}"
            )
        return self.model.log_joint(x, z)

    def log_likelihood(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> Tensor:
        """IWAE-`samples` lower bound of log p(x), (B,) in nats."""
        return self.bounds(x, samples, seed=seed, memory=memory)[1]

    def elbo(self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None) -> Tensor:
        """ELBO estimated from `samples` samples, (B,) in nats."""
        return self.bounds(x, samples, seed=seed, memory=memory)[0]

    def bounds(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """ELBO and IWAE-`samples` from the same samples, (B,) each."""
        generator = torch.Generator(self.device).manual_seed(seed)
        parts = [
            bounds(self.method, part, samples=samples, generator=generator, memory=memory)
            for part in self._parts(x)
        ]
        elbo, iwae = (torch.cat(column) for column in zip(*parts, strict=True))
        return elbo, iwae

    def gap(
        self,
        x: Any,
        *,
        train: Any = None,
        name: str = "test",
        samples: int = 1000,
        check: int = 20,
        seed: int = 0,
        memory: int | None = None,
        report: Callable[[int], None] = lambda done: None,
    ) -> Gap:
        """How much inference loses on images x, and where: see `Gap`.

        Args:
            x: images.
            train: training images to compare with, if any.
            name: what x is called in the result.
            samples: importance samples for log p(x).
            check: images whose log p(x) is checked by annealed importance sampling, at most.
            seed: of all noise.
            memory: bytes for the decoder's activations at a time; by default what suits the device.
            report: called with the number of images done, training images among them.
        """
        settings: dict[str, Any] = {"samples": samples, "check": check, "seed": seed, "memory": memory}
        images = self._images(x)
        found = decompose(self.method, images, name=name, report=report, **settings)
        if train is None:
            return found
        other = decompose(
            self.method,
            self._images(train),
            name="train",
            report=lambda done: report(len(images) + done),
            **settings,
        )
        return replace(found, train=other)

    @torch.no_grad()
    def reconstruct(self, x: Any) -> Tensor:
        """The mean image of the posterior mean, (B, C, H, W)."""
        parts = [self.model.decode(self._form(part).mean) for part in self._parts(x)]
        return torch.cat(parts)

    @torch.no_grad()
    def sample(self, n: int = 64, *, seed: int | None = None) -> Tensor:
        """Mean images of n draws from the prior, (n, C, H, W)."""
        if n < 1:
            raise ConfigError(f"sample needs a positive number of images, got {n}")
        generator = torch.Generator(self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return self.model.sample(n, generator=generator)

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """Mean images of z: (..., D) -> (..., C, H, W)."""
        z = torch.as_tensor(z, dtype=self.model.centre.dtype, device=self.device)
        if z.ndim < 2 or z.shape[-1] != self.model.latent:
            raise ConfigError(f"z must be (..., {self.model.latent}), got {tuple(z.shape)}")
        return self.model.decode(z)

    def export(
        self,
        folder: str | Path | None = None,
        *,
        format: str = "onnx",
        fuse: bool = True,
        overwrite: bool = False,
    ) -> Path:
        """Write posterior and decoder as files that run without recmix; see `recmix.export`."""
        from recmix.exports import export

        return export(self, folder, format=format, fuse=fuse, overwrite=overwrite)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write spec, weights and history into a folder that `recmix.load` reads."""
        run = Run(folder)
        if self.folder is not None and run.folder.resolve() == self.folder.resolve():
            return run.folder
        run.create(self.spec, overwrite=overwrite)
        save_weights(run.weights, self.method.state_dict(), len(self.history))
        write_json(run.folder / "history.json", self.history)
        run.set_status("done", epoch=len(self.history), reason="saved")
        return run.folder

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.spec.options.items())
        return f"<recmix {self.spec.method}({options}) latent={self.spec.latent} {self.spec.likelihood}>"

    def _images(self, x: Any) -> Tensor:
        if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 4:
            x = x.detach()
            if x.is_cuda and _good(x, self.spec.shape):
                return torch.as_tensor(x, dtype=self.model.centre.dtype, device=self.device)
        checked = check_images(x, what="x", shape=self.spec.shape)
        images = torch.as_tensor(checked, device=self.device).to(self.model.centre.dtype)
        return images / 255 if checked.dtype == np.uint8 else images

    def _parts(self, x: Any) -> list[Tensor]:
        if isinstance(x, Images):
            return [self._images(x[i : i + AT_ONCE]) for i in range(0, len(x), AT_ONCE)]
        return list(self._images(x).split(AT_ONCE))


def _good(x: Tensor, shape: tuple[int, int, int]) -> bool:
    """Whether a tensor on a GPU holds images of this shape."""
    if tuple(x.shape[1:]) != shape or not len(x):
        return False
    low, high = torch.stack(x.aminmax()).tolist()
    return bool(low >= 0 and high <= 1)


def load(
    folder: str | Path,
    *,
    device: str = "auto",
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
) -> Fitted:
    """A trained run from its folder. Nothing in the folder is executed.

    Args:
        folder: written by `fit`, `Fitted.save` or ``recmix train``.
        device: where to put it.
        encoder: a module of the class it was trained with, if that was the user's own.
        decoder: the same for the decoder.
    """
    run = Run(folder)
    spec = run.spec()
    spec = Spec.from_json(spec.to_json() | {"training": {**vars(spec.training), "device": device}})
    with torch.random.fork_rng():  # the weights drawn here are replaced at once
        method = build(spec, encoder=encoder, decoder=decoder)
    load_weights(run.weights, method)
    return Fitted(method, spec, run.history(), run.folder)
