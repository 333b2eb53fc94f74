"""Use VAEs that were trained by pythae as a `recmix.Model`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from recmix.api import Model, wrap
from recmix.errors import ConfigError, check_arguments
from recmix.model.likelihoods import Gaussian, Likelihood, ProbabilityBernoulli
from recmix.runs.files import read_json

__all__ = ["pythae"]


@check_arguments
def pythae(model: Any) -> Model:
    """Make a `recmix.Model` of a model trained by pythae, such as VAE, BetaVAE or IWAE.

    If the model has a flow after its encoder (VAE_IAF, VAE_LinNF), the Gaussian encoder is used
    without the flow.

    Args:
        model: a pythae model; or the folder in which pythae saved a model with its own networks.
            pythae saves networks that you wrote as pickles. This function never reads pickles: load
            such a model with pythae's ``AutoModel.load_from_folder``, and give the result.
    """
    if isinstance(model, str | Path):
        model = _load(Path(model))
    for part in ("encoder", "decoder", "model_config"):
        if not hasattr(model, part):
            raise ConfigError(
                f"a {type(model).__name__} has no {part!r}; expected a pythae model with a Gaussian "
                "encoder, such as VAE, BetaVAE or IWAE, or the folder of one"
            )
    model.eval()
    config = model.model_config
    shape = tuple(config.input_dim)
    like = next(model.parameters())
    return wrap(
        model.encoder,
        model.decoder,
        likelihood=_likelihood(config.reconstruction_loss),
        example=torch.zeros(2, *shape, device=like.device, dtype=like.dtype),
        label=str(getattr(model, "model_name", "VAE")),
    )


def _likelihood(loss: str) -> Likelihood:
    """Return the likelihood whose negative logarithm is pythae's reconstruction loss."""
    if loss == "mse":  # half the squared error: a variance of 1
        return Gaussian(1.0, learned=False)
    if loss == "bce":
        return ProbabilityBernoulli()
    raise ConfigError(f"pythae's reconstruction_loss {loss!r} is not known; expected 'mse' or 'bce'")


def _load(folder: Path) -> Any:
    """Load a pythae model with pythae's own networks from its folder, without reading pickles."""
    path = folder / "model_config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no model_config.json: expected a folder that pythae saved")
    pickles = sorted(p.name for p in folder.glob("*.pkl"))
    if pickles:
        raise ConfigError(
            f"{folder} holds networks as pickles ({', '.join(pickles)}), which can run any code and are "
            "not read: load the model with pythae's AutoModel.load_from_folder, and give the result"
        )
    config = read_json(path)
    kind = str(config.pop("name", ""))  # such as VAEConfig or VAE_IAF_Config
    name = kind.removesuffix("Config").rstrip("_")
    models = importlib.import_module("pythae.models")
    if not kind.endswith("Config") or not hasattr(models, name) or not hasattr(models, kind):
        raise ConfigError(f"{path} names the model {name!r}, which pythae does not have")
    made = getattr(models, name)(getattr(models, kind).from_dict(config))
    weights = torch.load(folder / "model.pt", map_location="cpu", weights_only=True)
    made.load_state_dict(weights["model_state_dict"])
    return made
