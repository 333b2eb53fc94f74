"""The class `Model`: a trained method, and the inference with which its posterior is used."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recmix.api import model_explore, model_texts
from recmix.data import Examples, check_examples, check_values
from recmix.data.text_data import is_texts
from recmix.errors import ConfigError, RunError, memory_advice, shown, unknown
from recmix.evaluation.bounds import bounds
from recmix.evaluation.calibrate import EXAMPLES, calibrate
from recmix.evaluation.decompose import decompose
from recmix.evaluation.gap import Gap
from recmix.evaluation.latent_report import LatentReport, latent_report
from recmix.evaluation.tune import Frontier, best_refinement, tune
from recmix.exports.serialise import export
from recmix.inference import Inference
from recmix.methods.method import Method, infer, infer_no_grad
from recmix.model.latent import LatentModel
from recmix.model.vocabulary import Vocabulary
from recmix.posteriors import Posterior
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.hub import upload_run
from recmix.runs.spec import Spec
from recmix.training.build import Trained
from recmix.training.checkpoint import save_weights

__all__ = ["Model"]

CHUNK = 512
"""Examples that pass through a network at a time."""
NO_CALIBRATION = {"scale": 1.0, "slope": 0.0, "reference": 0.0}


class Model(nn.Module):
    """A trained model: a method, and the inference with which its posterior is used.

    It is an `nn.Module`: ``model(x)`` is the posterior of a batch, with gradients, and
    `state_dict`, `to`, `eval`, hooks and `torch.compile` work. The other methods take numpy arrays
    or tensors (B, ...) with the same range of values as the training data (uint8 images are divided
    by 255). They return tensors without gradients.

    Args:
        method: the trained method.
        spec: the options and data description that define the training run.
        history: the metrics of each epoch.
        folder: the folder in which the model is stored, or None.
        vocabulary: how texts are written as examples, if the model was trained on texts. Then all
            methods also take a list of texts as examples.
    """

    def __init__(
        self,
        method: Method,
        spec: Spec,
        history: Sequence[dict[str, float]] = (),
        folder: Path | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__()
        self.method = method
        self.spec = spec
        self.history = list(history)
        self.folder = folder
        self.vocabulary = vocabulary
        self.training = method.training

    @property
    def inference(self) -> Inference:
        """The refinement and calibration that are applied each time the posterior is used."""
        return self.spec.inference

    @property
    def latent_model(self) -> LatentModel:
        """The model p(x, z). If calibration has chosen the likelihood's noise, it has that noise."""
        return self.inference.model(self.method.model)

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return self.latent_model.centre.device

    def forward(self, x: Tensor) -> Posterior:
        """q(z | x) of a batch x (B, ...) on the model's device, with gradients."""
        return infer(self.method, x, self.inference)

    def refined(
        self,
        steps: int,
        *,
        how: str | None = None,
        restarts: int | None = None,
        reuse: int | None = None,
        checks: int | None = None,
        x: Any = None,
    ) -> Model:
        """The same model with every component of its posterior refined by a few steps.

        Nothing is trained and nothing is copied: the new model shares the weights of this one. If
        an option is None, its present value is kept. A calibration was fitted to the posterior
        before this refinement, so it is removed with a warning: call `calibrated` after `refined`.

        Args:
            steps: refinement steps from each component's mean; 0 removes the refinement.
            how: the kind of refinement: ``gauss-newton``, ``learned``, ``variational``, ``conjugate``
                (see `recmix.Inference`); or ``auto``, which chooses the kind, or none, on the
                validation examples x.
            restarts: number of starting points for each example, 1 to 9. The result with the
                highest estimate of log p(x) is used. A method with residual corrections uses
                restarts even if `steps` is 0.
            reuse: extra steps after each step that use the same curvature.
            checks: pairs of points at which the ELBO of each example is compared with that before
                the refinement; 0 does not compare.
            x: validation examples, only for ``auto``. Only the first thousand are used.
        """
        if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 0:
            raise ConfigError(
                f"steps must be a whole number of 0 or more, got {shown(steps)}: try 1, 2 or 4"
            )
        if how == "auto":
            if x is None:
                raise ConfigError("how = 'auto' chooses on validation examples: give them as x")
            base = replace(self.inference, **NO_CALIBRATION)
            found = best_refinement(self.method, self._first_examples(x), steps, base=base)
            steps, how = found.refine, found.how
        elif x is not None:
            raise ConfigError(f"x is for how = 'auto', got how = {how!r}: leave x out")
        given = {"refine": steps, "how": how, "restarts": restarts, "reuse": reuse, "checks": checks}
        made = self.using(**{name: value for name, value in given.items() if value is not None})
        if not self.inference.calibrated or made.inference.key == self.inference.key:
            return made
        warnings.warn(
            "the model was calibrated without this refinement, so its calibration is removed: call "
            "calibrated(x) after refined()",
            stacklevel=2,
        )
        return made.using(**NO_CALIBRATION)

    def calibrated(
        self,
        x: Any,
        samples: int = 100,
        *,
        noise: bool = False,
        seed: int = 0,
        memory: int | None = None,
    ) -> Model:
        """The same model with the scale of its posterior chosen on held-out examples.

        Encoders are overconfident on examples that they were not trained on. Two numbers are fitted
        to held-out examples: a factor of the posterior's standard deviations, and how much this
        factor grows for examples that the posterior explains worse. The estimate of the
        log-likelihood improves. The ELBO, for which the encoder was trained, falls.

        Args:
            x: held-out examples that no reported score uses; only the first thousand are used.
            samples: K of the IWAE-K bound that is maximised.
            noise: whether the likelihood's noise (its variance, or the temperature of its logits)
                is chosen too. The result is another model of the data: it has another p(x).
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
        """
        found = calibrate(
            self.method,
            self._first_examples(x),
            self.inference,
            samples=samples,
            seed=seed,
            memory=memory,
            noise=noise,
        )
        return self.using(**vars(found.inference))

    def frontier(
        self,
        x: Any,
        *,
        budget: float | str | None = None,
        milliseconds: float | None = None,
        samples: int = 100,
        seed: int = 0,
        memory: int | None = None,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> Frontier:
        """Measure the time and the IWAE-K bound of all possible refinements on this machine.

        Args:
            x: validation examples (B, ...); only the first thousand are used.
            budget: time limit as a multiple of the time of the encoder's own posterior.
            milliseconds: time limit in milliseconds per example; give this or `budget`.
            samples: K of the IWAE-K bound.
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
            report: function that is called with the work done and the whole work.

        Returns:
            All measured refinements, and the best one within the time limit.
        """
        return tune(
            self.method,
            self._first_examples(x),
            budget=budget,
            milliseconds=milliseconds,
            samples=samples,
            seed=seed,
            memory=memory,
            base=self.inference,
            report=report,
        )

    def tuned(
        self, x: Any, *, budget: float | str | None = None, milliseconds: float | None = None, **how: Any
    ) -> Model:
        """The same model with the refinement that has the best IWAE bound within a time limit.

        Args:
            x: validation examples (B, ...); only the first thousand are used.
            budget: time limit as a multiple of the time of the encoder's own posterior, such as 30
                or "30x". There is a warning if no refinement is fast enough.
            milliseconds: time limit in milliseconds per example; give this or `budget`.
            **how: further arguments of `frontier`.
        """
        found = self.frontier(x, budget=budget, milliseconds=milliseconds, **how)
        fastest, own = found.smallest_budget, found.encoder.milliseconds
        if fastest is not None and fastest * own > found.limit:
            warnings.warn(
                f"no refinement fits the limit of {found.limit:.3g} ms per example, so the posterior is "
                "not refined: the smallest limit with a refinement is "
                f"budget={math.ceil(1.1 * fastest)}, or milliseconds={1.1 * fastest * own:.3g}",
                stacklevel=2,
            )
        chosen = found.winner.inference
        return self.using(how=chosen.how, refine=chosen.refine)

    def using(self, **options: Any) -> Model:
        """The same model with some options of its `Inference` changed; the weights are shared.

        >>> import numpy as np
        >>> from recmix.api import fit
        >>> model = fit("vae", np.random.default_rng(0).random((30, 1, 8, 8), np.float32), epochs=1)
        >>> model.using(refine=2, scale=1.2).inference.key
        'gauss-newton,refine=2,reuse=2,restarts=1,checks=1,scale=1.2,slope=0.0,reference=0.0'
        """
        for name in options:
            if name not in vars(self.inference):
                raise ConfigError(unknown("option of Inference", name, vars(self.inference)))
        inference = replace(self.inference, **options)
        spec = replace(self.spec, inference=inference)
        return Model(self.method, spec, self.history, None, self.vocabulary)

    def posterior(self, x: Any) -> Posterior:
        """q(z | x) of examples x (B, ...), without gradients."""
        with memory_advice("give fewer examples at a time, or lower restarts or the number of steps"):
            return infer_no_grad(self.method, self._examples(x), self.inference)

    @torch.no_grad()
    def log_joint(self, x: Any, z: Any) -> Tensor:
        """log p(x, z) of S latent points for each example, (S, B).

        Args:
            x: examples (B, ...).
            z: latent points (S, B, D), for D latent dimensions.
        """
        x, z = self._examples(x), self._latents(z)
        if z.ndim != 3 or z.shape[1] != len(x):
            latent = self.latent_model.latent
            raise ConfigError(f"z must be (samples, {len(x)}, {latent}), got {tuple(z.shape)}")
        return self.latent_model.log_joint(x, z)

    def log_likelihood(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> Tensor:
        """Estimate log p(x) of each example by the IWAE bound with `samples` samples, (B,) in nats.

        The expected value of the estimate is a lower bound of log p(x).

        Args:
            x: examples (B, ...).
            samples: number of importance samples of q(z | x) per example.
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
        """
        return self.bounds(x, samples, seed=seed, memory=memory)[1]

    def elbo(self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None) -> Tensor:
        """The ELBO of each example, estimated from `samples` samples of q(z | x), (B,) in nats.

        Args:
            x: examples (B, ...).
            samples: number of samples of q(z | x) per example.
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
        """
        return self.bounds(x, samples, seed=seed, memory=memory)[0]

    def bounds(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ELBO and the IWAE bound of each example from the same samples, (B,) each, in nats.

        Args:
            x: examples (B, ...).
            samples: number of samples of q(z | x) per example.
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        how: dict[str, Any] = {"samples": samples, "generator": generator, "memory": memory}
        parts = [bounds(self.method, part, self.inference, **how) for part in self._chunks(x)]
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
        """Measure the gap between the ELBO and log p(x) on examples x, and its causes; see `Gap`.

        Args:
            x: examples (B, ...).
            train: training examples to compare with, if any.
            name: name of x in the result.
            samples: importance samples per example for the estimate of log p(x).
            check: largest number of examples whose log p(x) is checked by annealed importance
                sampling.
            seed: seed of all random noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
            report: function that is called with the number of examples done, training examples
                included.
        """
        settings: dict[str, Any] = {"samples": samples, "check": check, "seed": seed, "memory": memory}
        examples = self._examples(x)
        found = decompose(self.method, examples, self.inference, name=name, report=report, **settings)
        if train is None:
            return found
        other = decompose(
            self.method,
            self._examples(train),
            self.inference,
            name="train",
            report=lambda done: report(len(examples) + done),
            **settings,
        )
        return replace(found, train=other)

    def latent_report(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> LatentReport:
        """Measure how well the model predicts examples x, and how much of x its z holds.

        The result has the negative log-likelihood, the parts of the ELBO, the mutual information of x
        and z, the active units and, for tokens, the perplexity; see `LatentReport`.

        Args:
            x: examples (B, ...), at least two.
            samples: number of samples of q(z | x) per example.
            seed: seed of the sampling noise.
            memory: bytes for the decoder's activations at a time; by default a value that suits the
                device.
        """
        stored = isinstance(x, Examples) and x.shape[1:] == self.spec.shape
        examples = x if stored else self._examples(x)
        return latent_report(
            self.method, examples, self.inference, samples=samples, seed=seed, memory=memory
        )

    @torch.no_grad()
    def reconstruct(self, x: Any) -> Tensor:
        """Reconstruct examples x (B, ...): E[x | z] with z at the mean of q(z | x), (B, ...)."""
        means = [infer_no_grad(self.method, part, self.inference).mean for part in self._chunks(x)]
        return torch.cat([self.latent_model.decode(mean) for mean in means])

    @torch.no_grad()
    def sample(self, n: int = 64, *, seed: int | None = None) -> Tensor:
        """Draw n points z from the prior, and return E[x | z] of each, (n, ...).

        Args:
            n: number of points.
            seed: seed of the draws; None for new points each time.
        """
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
            raise ConfigError(f"sample needs a positive whole number of examples, got {n!r}")
        generator = torch.Generator(self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return self.latent_model.sample(n, generator=generator)

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """E[x | z] for latent points z (..., D): (..., *shape), where `shape` is that of one example."""
        return self.latent_model.decode(self._latents(z))

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """The texts as examples (N, ...), for a model that was trained on texts.

        Unknown words become ``<unknown>``. A text that is empty or too long is an error.
        """
        return model_texts.encode_texts(self, texts)

    def decode_texts(self, x: Any) -> list[str]:
        """The texts of examples (N, ...); "" for an example that is no valid text."""
        return model_texts.decode_texts(self, x)

    def sample_texts(self, n: int = 16, *, seed: int | None = None) -> list[str]:
        """Draw n texts from the model: z from the prior, then x from p(x | z).

        Args:
            n: number of texts.
            seed: seed of the draws; None for new texts each time.
        """
        return model_texts.sample_texts(self, n, seed=seed)

    def reconstruct_texts(self, texts: Sequence[str]) -> list[str]:
        """Reconstruct each text: return a likely text under p(x | z), with z at the mean of q(z | x)."""
        return model_texts.reconstruct_texts(self, texts)

    def export(
        self,
        folder: str | Path | None = None,
        *,
        format: str = "onnx",
        fuse: bool = True,
        overwrite: bool = False,
    ) -> Path:
        """Write the posterior and the decoder as files that run without recmix; see `recmix.exports`.

        Args:
            folder: folder for the files; by default one named after the format, in the model's folder.
            format: ``onnx``, ``torchscript`` or ``pt2``.
            fuse: if possible, evaluate the networks of a mixture as one network.
            overwrite: whether to replace an existing export.

        Returns:
            The folder with the files.
        """
        return export(self._trained(), folder, format=format, fuse=fuse, overwrite=overwrite)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the spec, the weights and the history into a folder that `recmix.load` reads.

        Args:
            folder: the folder to write.
            overwrite: whether to replace a run that the folder already holds.

        Returns:
            The folder.
        """
        run = Run(folder)
        if self.folder is not None and run.folder.resolve() == self.folder.resolve():
            return run.folder
        if run.exists and not overwrite:
            raise RunError(f"{run.folder} already holds a run: give another folder, or overwrite=True")
        run.create(self.spec, overwrite=overwrite, vocabulary=self.vocabulary)
        save_weights(run.weights, self.method.state_dict(), len(self.history))
        write_json(run.folder / "history.json", self.history)
        run.set_status("done", epoch=len(self.history), reason="saved")
        return run.folder

    def explore(self, data: Any = None, **how: Any) -> None:
        """Show the model in the browser, until Ctrl-C or until the notebook cell is interrupted.

        Args:
            data: examples to show: an array, a tensor, texts, a name, a path or a `Data`; by default
                those of the run's own data, if they can be loaded again. The test part is shown if
                there is one.
            **how: further arguments of `recmix.explore.serve`, such as port; ``browser=False`` only
                prints the address.
        """
        model_explore.explore(self, data, **how)

    def push_to_hub(self, repo: str, **how: Any) -> str:
        """Upload the model to the Hugging Face Hub, and return its address for `recmix.load`.

        If the model has a folder, the scores in this folder are uploaded, too.

        Args:
            repo: the repository, ``user/name``.
            **how: further arguments of `recmix.runs.hub.upload_run`: private, revision, licence,
                message, token.
        """
        if self.folder is not None:
            return upload_run(self.folder, repo, **how)
        with tempfile.TemporaryDirectory() as place:
            return upload_run(self.save(Path(place) / "run"), repo, **how)

    def __repr__(self) -> str:
        options = "".join(f", {k}={v}" for k, v in self.spec.options.items())
        model = self.spec.model
        used = f", inference: {self.inference.key}" if self.inference.key else ""
        return f"<recmix {self.spec.method}{options}, latent={model.latent}, {model.likelihood}{used}>"

    def _trained(self) -> Trained:
        return Trained(self.method, self.spec, self.history, self.folder, self.vocabulary)

    def _latents(self, z: Any) -> Tensor:
        z = torch.as_tensor(z, dtype=self.latent_model.centre.dtype, device=self.device)
        if z.ndim < 2 or z.shape[-1] != self.latent_model.latent:
            raise ConfigError(f"z must be (..., {self.latent_model.latent}), got {tuple(z.shape)}")
        return z

    def _examples(self, x: Any) -> Tensor:
        if is_texts(x):
            return self.encode_texts(x)
        model = self.method.model
        like = model.centre
        on_device = isinstance(x, Tensor) and x.is_cuda and x.is_floating_point()
        if on_device and tuple(x.shape[1:]) == model.shape and len(x) and bool(x.isfinite().all()):
            return x.detach().to(like.device, like.dtype)  # without a copy to the host
        fields = None if model.fields is None else model.fields.shapes
        checked = check_examples(x, what="x", shape=model.shape, fields=fields)
        check_values(checked, model.likelihood.requirement, model.likelihood.name)
        examples = torch.as_tensor(checked, device=like.device).to(like.dtype)
        return examples / 255 if checked.dtype == np.uint8 else examples

    def _first_examples(self, x: Any) -> Tensor:
        """The first thousand of the examples, if there are more."""
        if isinstance(x, Mapping):
            return self._examples({name: part[:EXAMPLES] for name, part in x.items()})
        return self._examples(x[:EXAMPLES] if hasattr(x, "__getitem__") else x)

    def _chunks(self, x: Any) -> list[Tensor]:
        if isinstance(x, Examples):
            return [self._examples(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
        return list(self._examples(x).split(CHUNK))
