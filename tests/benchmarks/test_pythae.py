"""The comparison with pythae: how it is found, imported, wrapped and timed."""

import importlib.util
import math
import os
import sys

import pytest

from benchmarks.peer import Peer
from recmix.errors import ConfigError

PYTHAE = """
import torch
from imageio import imwrite
from pydantic.dataclasses import dataclass
from tqdm.auto import tqdm


class Output(dict):
    __getattr__ = dict.__getitem__


class Network(torch.nn.Module):
    pass


class VAEConfig:
    def __init__(self, input_dim, latent_dim, reconstruction_loss):
        self.input_dim = input_dim


class VAE(torch.nn.Module):
    def __init__(self, config, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def get_nll(self, data, n_samples, batch_size):
        from recmix.model.latent import LatentModel
        from recmix.evaluation.bounds import bounds
        from recmix.model.likelihoods import Gaussian
        from recmix.methods.vae import VAE as Ours
        model = LatentModel(self.decoder.net, Gaussian(), latent=3, shape=(1, 8, 8))
        return bounds(Ours(model, self.encoder.net), data, samples=n_samples).iwae.mean()


class BaseDataset:
    def __init__(self, data, labels):
        self.data = data


class BaseTrainerConfig:
    def __init__(self, output_dir, per_device_train_batch_size, learning_rate, no_cuda):
        import os
        os.environ["MASTER_PORT"] = "12345"
        self.batch, self.no_cuda = per_device_train_batch_size, no_cuda


class BaseTrainer:
    def __init__(self, model, train_dataset, training_config):
        assert training_config.no_cuda
        self.model, self.data, self.config = model, train_dataset.data, training_config

    def prepare_training(self):
        self.bar = tqdm(total=1)

    def train_step(self, epoch):
        for x in self.data.split(self.config.batch):
            embedding = self.model.encoder(x).embedding
            self.model.decoder(embedding).reconstruction.sum().backward()
            self.bar.update(1)
"""


@pytest.fixture
def pythae(tmp_path):
    """A folder with a small package that has pythae's interface."""
    root = tmp_path / "peer" / "pythae"
    names = {
        "": "",
        "all": PYTHAE,
        "models": "from pythae.all import VAE, VAEConfig",
        "models.nn": "from pythae.all import Network as BaseEncoder, Network as BaseDecoder",
        "models.base": "",
        "models.base.base_utils": "from pythae.all import Output as ModelOutput",
        "trainers": "from pythae.all import BaseTrainer, BaseTrainerConfig",
        "data": "",
        "data.datasets": "from pythae.all import BaseDataset",
    }
    for name, text in names.items():
        folder = root.joinpath(*name.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(text)
    (root.parent / "pythae-9.9.dist-info").mkdir()
    return root.parent


@pytest.mark.parametrize("name", ["train_pythae_over_recmix_cpu", "iwae_pythae_over_recmix_cpu"])
def test_pythae_is_wrapped_and_timed(name, pythae, run_small, tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    entry = run_small([name], tmp_path / "results", peer=pythae)[name]
    assert entry["value"] > 0
    assert math.isfinite(entry["spread"])
    assert all(ms > 0 for ms in entry["detail"]["ms"].values())
    assert entry["detail"]["pythae"] == "9.9"
    assert "MASTER_PORT" not in os.environ
    if name == "iwae_pythae_over_recmix_cpu":
        nats = entry["detail"]["nats"]
        assert nats["pythae"] == pytest.approx(nats["recmix"], abs=1)


@pytest.mark.parametrize("missing", [["imageio", "tqdm", "cloudpickle", "pydantic"], []])
def test_missing_packages_are_replaced_during_the_import_only(missing, pythae, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in missing else find(name, *more)
    )
    before = {name.split(".")[0] for name in sys.modules}
    Peer(pythae)
    assert str(pythae) not in sys.path
    added = {name.split(".")[0] for name in sys.modules} - before
    assert not added & {"imageio", "tqdm"}


def test_pythae_benchmarks_are_skipped_without_pythae(run_small, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    assert run_small(["iwae_pythae_over_recmix_cpu"], tmp_path) == {}
    assert "skipped: RECMIX_OFFLINE is set" in capsys.readouterr().out


def test_folder_without_pythae_is_an_error(run_small, tmp_path):
    with pytest.raises(ConfigError, match="does not contain the package pythae: pip install --target"):
        run_small(["iwae_pythae_over_recmix_cpu"], tmp_path, peer=tmp_path)
