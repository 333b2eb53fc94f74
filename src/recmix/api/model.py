"""The class `Model`: a trained method, with settings that refine and calibrate its posterior."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recmix.api.evaluates import evaluates
from recmix.api.improvable_posterior import ImprovablePosterior
from recmix.data import ArrayExamples, Data, Examples, load_again
from recmix.errors import ConfigError, RunError, check_arguments
from recmix.evaluation.bounds import bounds
from recmix.evaluation.decompose import decompose
from recmix.evaluation.gap import Gap
from recmix.evaluation.latent_report import LatentReport, latent_report
from recmix.explore.serve import serve
from recmix.exports.serialise import export
from recmix.methods.method import infer_no_grad
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.hub import upload_run
from recmix.training.build import Trained
from recmix.training.checkpoint import save_weights

__all__ = ["Model"]


class Model(ImprovablePosterior):
    """A trained model: a method, with settings that refine and calibrate its posterior.

    It is an `nn.Module`: ``model(x)`` is the posterior of a batch, with gradients, and
    `state_dict`, `to`, `eval`, hooks and `torch.compile` work. The other methods take numpy arrays
    or tensors (B, ...) with the same range of values as the training data (uint8 images are divided
    by 255). They return tensors without gradients. They evaluate in evaluation mode, also if a loop of
    your own has set the networks to training mode by ``vae.train()``; ``model.train()`` changes this.

    Args:
        method: the trained method.
        spec: the options and data description that define the training run.
        history: the metrics of each epoch.
        folder: the folder in which the model is stored, or None.
        vocabulary: converts texts to examples and back, if the model was trained on texts. Then all
            methods of this class also take a list of texts as examples.
    """

    @evaluates
    @torch.no_grad()
    def log_joint(self, x: Any, z: Any) -> Tensor:
        """Return log p(x, z) in nats for S latent points of each example, (S, B).

        Args:
            x: examples (B, ...).
            z: latent points (S, B, D), for D latent dimensions.
        """
        x, z = self._examples(x), self._latents(z)
        if z.ndim != 3 or z.shape[1] != len(x):
            latent = self.latent_model.latent
            raise ConfigError(f"z must be (samples, {len(x)}, {latent}), got {tuple(z.shape)}")
        return self.latent_model.log_joint(x, z)

    @check_arguments
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

    @check_arguments
    def elbo(self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None) -> Tensor:
        """The ELBO of each example, estimated from `samples` samples of q(z | x), (B,) in nats.

        The arguments are those of `log_likelihood`.
        """
        return self.bounds(x, samples, seed=seed, memory=memory)[0]

    @check_arguments
    @evaluates
    def bounds(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ELBO and the IWAE bound of each example from the same samples, (B,) each, in nats.

        The arguments are those of `log_likelihood`.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        how: dict[str, Any] = {"samples": samples, "generator": generator, "memory": memory}
        parts = [bounds(self.method, part, self.inference, **how) for part in self._chunks(x)]
        elbo, iwae = (torch.cat(column) for column in zip(*parts, strict=True))
        return elbo, iwae

    @check_arguments
    @evaluates
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

    @check_arguments
    @evaluates
    def latent_report(
        self, x: Any, samples: int = 100, *, seed: int = 0, memory: int | None = None
    ) -> LatentReport:
        """Measure how well the model predicts examples x, and how much its z says about x.

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

    @evaluates
    @torch.no_grad()
    def reconstruct(self, x: Any) -> Tensor:
        """Reconstruct examples x (B, ...): E[x | z] with z at the mean of q(z | x), (B, ...)."""
        means = [infer_no_grad(self.method, part, self.inference).mean for part in self._chunks(x)]
        return torch.cat([self.latent_model.decode(mean) for mean in means])

    @check_arguments
    @evaluates
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

    @evaluates
    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """Return E[x | z], (..., *shape of an example), for latent points z (..., D)."""
        return self.latent_model.decode(self._latents(z))

    @check_arguments
    def export(
        self,
        folder: str | Path | None = None,
        *,
        format: str = "pt2",
        fuse: bool = True,
        overwrite: bool = False,
    ) -> Path:
        """Write the posterior and the decoder as files that run without recmix; see `recmix.exports`.

        Args:
            folder: folder for the files; by default one named after the format, in the model's folder.
            format: ``pt2``, ``onnx`` or ``torchscript``.
            fuse: if possible, evaluate the networks of a mixture as one network.
            overwrite: whether to replace an existing export.

        Returns:
            The folder with the files.
        """
        return export(self._trained(), folder, format=format, fuse=fuse, overwrite=overwrite)

    @check_arguments
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the options (spec), the weights and the history into a folder that `recmix.load` reads.

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
        save_weights(run.weights, self.method.state_dict())
        write_json(run.folder / "history.json", self.history)
        run.set_status("done", epoch=len(self.history), reason="saved")
        return run.folder

    @evaluates
    def explore(self, data: Any = None, **how: Any) -> None:
        """Show the model in the browser, until Ctrl-C or until the notebook cell is interrupted.

        Args:
            data: examples to show: an array, a tensor, texts, a name, a path or a `Data`; by default
                those of the run's own data, if they can be loaded again. The test part is shown if
                there is one.
            **how: further arguments of `recmix.explore.serve`, such as port; ``browser=False`` only
                prints the address.
        """
        name = self.spec.label or self.spec.method
        if isinstance(data, str | Path):
            data = load_again(data, self.spec.data, vocabulary=self.vocabulary, shape=self.spec.shape)
        if isinstance(data, Data):
            self._check_columns(data.columns, data.name)
            data = data.x_val if data.x_test is None else data.x_test
        if data is not None and not isinstance(data, Examples):
            data = ArrayExamples(self._examples(data).float().numpy(force=True))
        serve({name: self}, **{"browser": True, **how}, examples=None if data is None else {name: data})

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
