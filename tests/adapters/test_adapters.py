"""Models of other libraries, trained or made by these libraries: `make test-adapters` installs them."""

import json

import numpy as np
import pytest
import torch

import recmix
from recmix.errors import ConfigError


@pytest.fixture(scope="module")
def blobs():
    """Pictures of 8 x 8 pixels in [0, 1] with two bright spots."""
    generator = torch.Generator().manual_seed(0)
    at = torch.rand(400, 2, 2, generator=generator) * 7
    axis = torch.arange(8.0)
    rows = torch.exp(-0.5 * (axis - at[..., :1]).square())
    columns = torch.exp(-0.5 * (axis - at[..., 1:]).square())
    return (rows[..., :, None] * columns[..., None, :]).amax(1)[:, None].clamp(0, 1)


@pytest.mark.parametrize("name", ["VAE", "BetaVAE", "IWAE", "VAE_IAF"])
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_pythae(name, loss, blobs, tmp_path):
    models = pytest.importorskip("pythae.models")
    from pythae.pipelines import TrainingPipeline
    from pythae.trainers import BaseTrainerConfig

    torch.manual_seed(0)
    kind = getattr(models, "VAE_IAF_Config" if name == "VAE_IAF" else f"{name}Config")
    config = kind(input_dim=(1, 8, 8), latent_dim=3, reconstruction_loss=loss)
    theirs = getattr(models, name)(config)
    settings = BaseTrainerConfig(output_dir=str(tmp_path), num_epochs=3, no_cuda=True)
    TrainingPipeline(model=theirs, training_config=settings)(train_data=blobs[:300])
    theirs.eval()
    ours = recmix.adapters.pythae(theirs)
    x = blobs[300:340]
    found = ours.log_likelihood(x, 100)
    if name != "VAE_IAF":  # whose own estimate includes its flow
        torch.manual_seed(1)
        expected = np.mean([theirs.get_nll(x, n_samples=100, batch_size=100) for _ in range(8)])
        spread = np.std([theirs.get_nll(x, n_samples=100, batch_size=100) for _ in range(8)])
        assert float(found.mean()) == pytest.approx(expected, abs=5 * spread + 0.02)
    before, after = (m.log_joint(x, m.posterior(x).mean[None]) for m in (ours, ours.refined(4)))
    assert (after >= before - 1e-3).all()
    assert after.mean() > before.mean()
    if loss == "mse":
        assert ours.refined(4).log_likelihood(x, 100).mean() > found.mean() - 0.01


def test_pythae_folder(blobs, tmp_path):
    models = pytest.importorskip("pythae.models")
    theirs = models.VAE(models.VAEConfig(input_dim=(1, 8, 8), latent_dim=2)).eval()
    theirs.save(str(tmp_path))
    ours = recmix.adapters.pythae(tmp_path)
    same = recmix.adapters.pythae(theirs)
    torch.testing.assert_close(ours.log_likelihood(blobs[:3], 5), same.log_likelihood(blobs[:3], 5))
    (tmp_path / "encoder.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ConfigError, match="pickles"):
        recmix.adapters.pythae(tmp_path)
    (tmp_path / "encoder.pkl").unlink()
    settings = json.loads((tmp_path / "model_config.json").read_text())
    (tmp_path / "model_config.json").write_text(json.dumps(settings | {"name": "osConfig"}))
    with pytest.raises(ConfigError, match="does not have"):
        recmix.adapters.pythae(tmp_path)


def test_diffusers():
    library = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    autoencoder = library.AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=2,
        norm_num_groups=4,
        sample_size=16,
    )
    before = {name: value.clone() for name, value in autoencoder.state_dict().items()}
    model = recmix.adapters.diffusers(autoencoder, variance=0.01)
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    error = (model.reconstruct(x) - x).square().mean()
    better = (model.refined(3).reconstruct(x) - x).square().mean()
    assert model.latent_model.latent == 2 * 8 * 8
    assert better < 0.9 * error
    assert model.refined(1).log_likelihood(x, 10) > model.log_likelihood(x, 10)
    for name, value in autoencoder.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("likelihood", ["zinb", "nb"])
def test_scvi(likelihood):
    library = pytest.importorskip("scvi")
    import anndata

    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 2))
    rate = np.exp(0.7 * z @ rng.normal(size=(2, 30)) + rng.normal(size=30))
    counts = rng.poisson(rate * rng.gamma(2.0, 0.5, size=rate.shape)).astype(np.float32)
    counts[:, 0] += 1  # no empty cells
    cells = anndata.AnnData(counts)
    library.settings.seed = 0
    library.model.SCVI.setup_anndata(cells)
    theirs = library.model.SCVI(cells, n_latent=3, n_hidden=16, gene_likelihood=likelihood)
    theirs.train(max_epochs=20, accelerator="cpu", enable_progress_bar=False, logger=False)
    ours = recmix.adapters.scvi(theirs)
    theirs_each = theirs.get_marginal_ll(n_mc_samples=500, n_mc_samples_per_pass=100, return_mean=False)
    gaps = ours.log_likelihood(counts, 500) - torch.as_tensor(np.asarray(theirs_each))
    assert abs(float(gaps.mean())) < 5 * float(gaps.std()) / len(gaps) ** 0.5
    assert float(ours.refined(2).elbo(counts).mean()) > float(ours.elbo(counts).mean())


@pytest.mark.parametrize("adapter", ["pythae", "diffusers", "scvi"])
def test_other_objects_are_refused(adapter):
    with pytest.raises(ConfigError, match="expected|is not"):
        getattr(recmix.adapters, adapter)(torch.nn.Linear(2, 2))
