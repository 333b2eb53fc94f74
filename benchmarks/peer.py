"""pythae, the library that recmix is compared with, around the same networks.

It is not a dependency: its source is in a separate folder. If a package that pythae imports is missing,
a few lines here replace it. None of them runs while pythae is timed, except a progress bar that shows
nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

PACKAGES = ("pythae", "imageio")
INSTALL_SECONDS = 120


def install(folder: Path) -> str:
    """Install pythae's source into a folder. Returns why that failed; empty if it worked."""
    if os.environ.get("RECMIX_OFFLINE", "") not in ("", "0"):
        return "RECMIX_OFFLINE is set and no --peer folder was given"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--retries", "1", "--timeout", "10", "--no-deps", "--target", str(folder), *PACKAGES]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return (
            f"pip needed more than {INSTALL_SECONDS} s for pythae: give --peer a folder with its source"
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"pip could not install pythae ({last}): give --peer a folder with its source"
    return ""


def has(folder: Path) -> bool:
    """Whether the folder contains pythae's source."""
    return (folder / "pythae" / "__init__.py").exists()


class Peer:
    """pythae, imported from a folder.

    Args:
        folder: contains the package ``pythae``.
    """

    def __init__(self, folder: Path) -> None:
        for name in [n for n in sys.modules if n.split(".")[0] == "pythae"]:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        try:
            with _replacements(), _quiet():
                self.models = importlib.import_module("pythae.models")
                self.trainers = importlib.import_module("pythae.trainers")
                self.networks = importlib.import_module("pythae.models.nn")
                self.outputs = importlib.import_module("pythae.models.base.base_utils")
                self.datasets = importlib.import_module("pythae.data.datasets")
        finally:
            sys.path.remove(str(folder))
        self.version = _version(folder)

    def vae(self, encoder: nn.Module, decoder: nn.Module, *, latent: int, shape: tuple[int, ...]) -> Any:
        """pythae's VAE around these networks, with a Gaussian likelihood of unit variance."""
        output = self.outputs.ModelOutput

        class Encoder(self.networks.BaseEncoder):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = encoder

            def forward(self, x: Tensor) -> Any:
                mean, log_variance = self.net(x).chunk(2, -1)
                return output(embedding=mean, log_covariance=log_variance)

        class Decoder(self.networks.BaseDecoder):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = decoder

            def forward(self, z: Tensor) -> Any:
                return output(reconstruction=self.net(z))

        config = self.models.VAEConfig(
            input_dim=tuple(shape), latent_dim=latent, reconstruction_loss="mse"
        )
        return self.models.VAE(config, encoder=Encoder(), decoder=Decoder())

    @contextlib.contextmanager
    def training(
        self, model: Any, images: Tensor, *, batch: int, learning_rate: float, cuda: bool
    ) -> Iterator[Callable[[], None]]:
        """A function that trains one epoch with pythae's own trainer and data loader."""
        before = dict(os.environ)  # pythae's configuration adds MASTER_ADDR and MASTER_PORT
        with tempfile.TemporaryDirectory(prefix="recmix-peer-") as folder, _quiet():
            try:
                trainer = self.trainers.BaseTrainer(
                    model=model,
                    train_dataset=self.datasets.BaseDataset(images, images.new_zeros(len(images))),
                    training_config=self.trainers.BaseTrainerConfig(
                        output_dir=folder,
                        per_device_train_batch_size=batch,
                        learning_rate=learning_rate,
                        no_cuda=not cuda,
                    ),
                )
                trainer.prepare_training()
                yield lambda: trainer.train_step(1)
            finally:
                for name in os.environ.keys() - before.keys():
                    del os.environ[name]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Show no log lines and no progress bars."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with open(os.devnull, "w", encoding="utf-8") as null, contextlib.redirect_stderr(null):
            yield
    finally:
        logging.disable(before)


def _version(folder: Path) -> str:
    for found in folder.glob("pythae-*.dist-info"):
        return found.name.removeprefix("pythae-").removesuffix(".dist-info")
    return "unknown"


@contextlib.contextmanager
def _replacements() -> Iterator[None]:
    """While pythae is imported, replace modules that it imports and that are not installed."""
    added = []
    for name, make in REPLACEMENTS.items():
        if importlib.util.find_spec(name) is None:
            for part, module in make().items():
                sys.modules[part] = module
                added.append(part)
    try:
        yield
    finally:
        for part in added:
            sys.modules.pop(part, None)


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


def _imageio() -> dict[str, ModuleType]:
    def imwrite(*_: Any, **__: Any) -> None:
        raise NotImplementedError("imageio is not installed")

    return {"imageio": _module("imageio", imwrite=imwrite)}


def _cloudpickle() -> dict[str, ModuleType]:
    return {"cloudpickle": _module("cloudpickle")}  # pythae only saves models with it


def _tqdm() -> dict[str, ModuleType]:
    class Bar:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def update(self, _steps: int = 1) -> None:
            pass

        def close(self) -> None:
            pass

    auto = _module("tqdm.auto", tqdm=Bar)
    return {"tqdm": _module("tqdm", tqdm=Bar, auto=auto), "tqdm.auto": auto}


def _pydantic() -> dict[str, ModuleType]:
    inner = _module("pydantic.dataclasses", dataclass=dataclasses.dataclass)
    outer = _module("pydantic", dataclasses=inner, ValidationError=ValueError)
    return {"pydantic": outer, "pydantic.dataclasses": inner}


REPLACEMENTS: dict[str, Callable[[], dict[str, ModuleType]]] = {
    "imageio": _imageio,
    "cloudpickle": _cloudpickle,
    "tqdm": _tqdm,
    "pydantic": _pydantic,
}
