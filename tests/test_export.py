"""Exported files answer as the Python interface does, without recmix."""

import hashlib
import json
import sys
import zipfile

import pytest
import torch
from test_cli import call
from torch import nn

import recmix
from recmix.api import Fitted
from recmix.errors import ConfigError, RunError
from recmix.exports.elementary import cholesky_ex, convolution_backward, qr, solve_triangular
from recmix.runs.spec import Spec
from recmix.training.build import build

SHAPE = (1, 8, 8)
BATCHES = (1, 7)


def model(method, *, network="conv", likelihood="gaussian", encoder=None, decoder=None, **options):
    """A model with random weights everywhere, gates, flows and centre included."""
    torch.manual_seed(0)
    spec = Spec(
        method=method,
        latent=2,
        likelihood=likelihood,
        shape=SHAPE,
        network=network if encoder is None else "own",
        decoder_network=network if decoder is None else "own",
        options=options,
    )
    made = build(spec, encoder=encoder, decoder=decoder)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.05 * torch.randn_like(p))
        if made.model.likelihood.centred:
            made.model.centre.uniform_(0, 0.5)
    return Fitted(made, spec)


def images(batch):
    return torch.rand(batch, *SHAPE, generator=torch.Generator().manual_seed(batch))


def answers(fitted, x):
    """What the posterior's graph should give, from the Python interface."""
    q = fitted.posterior(x)
    parts = q.components if hasattr(q, "components") else [q]
    shape = [q.scale_tril if hasattr(q, "scale_tril") else q.log_variance for q in parts]
    return q.weights, torch.stack([q.mean for q in parts], 1), torch.stack(shape, 1)


def run(folder, name, *given):
    """The answers of an exported graph of any format."""
    about = json.loads((folder / "export.json").read_text())
    path = folder / about[name]["file"]
    if about["kind"] == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        feeds = {k: x.numpy() for k, x in zip(about[name]["inputs"], given, strict=True)}
        found = [torch.from_numpy(a) for a in session.run(list(about[name]["outputs"]), feeds)]
    elif about["kind"] == "pt2":
        found = torch.export.load(path).module()(*given)
    else:
        found = torch.jit.load(path)(*given)
    return [found] if isinstance(found, torch.Tensor) else found


def check(fitted, folder, tolerance):
    """Both graphs of a folder against the Python interface, at both batch sizes."""
    for batch in BATCHES:
        log_weights, *found = run(folder, "posterior", images(batch))
        for a, b in zip((log_weights.exp(), *found), answers(fitted, images(batch)), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        z = torch.randn(batch, 2)
        (decoded,) = run(folder, "decoder", z)
        torch.testing.assert_close(decoded, fitted.decode(z), rtol=tolerance, atol=tolerance)


METHODS = {
    "vae": {},
    "rme": {"order": 3},
    "me": {"order": 3},
    "full": {},
    "hf": {"flows": 2},
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("network", ["conv", "dense"])
@pytest.mark.parametrize("method", METHODS)
def test_torchscript_and_pt2(method, network, tmp_path):
    fitted = model(method, network=network, **METHODS[method])
    check(fitted, fitted.export(tmp_path / "ts", format="torchscript"), 1e-5)
    if network == "conv":
        check(fitted, fitted.export(tmp_path / "pt2", format="pt2"), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_networks_apart_and_other_likelihood(tmp_path):
    fitted = model("rme", order=3, likelihood="bernoulli")
    check(fitted, fitted.export(tmp_path / "a", format="torchscript", fuse=False), 1e-5)
    about = json.loads((tmp_path / "a" / "export.json").read_text())
    assert about["decoder"]["range"] == {"images": [0, 1]}


@pytest.mark.parametrize(
    ("method", "network", "options"),
    [("sa", "conv", {"steps": 1}), ("vlae", "dense", {"steps": 1})],
)
def test_refined_posteriors(method, network, options, tmp_path):
    fitted = model(method, network=network, **options)
    check(fitted, fitted.export(tmp_path / "x", format="pt2"), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_refined_mixture_and_own_decoder(tmp_path):
    fitted = model("rme", order=2, network="dense").refined(1, starts=2)
    check(fitted, fitted.export(tmp_path / "x", format="torchscript"), 1e-5)
    decoder = nn.Sequential(
        nn.Linear(2, 16), nn.SiLU(), nn.Unflatten(1, (1, 4, 4)), nn.ConvTranspose2d(1, 1, 2, stride=2)
    )
    fitted = model("vlae", steps=1, decoder=decoder)  # no plain chain: differentiated twice
    check(fitted, fitted.export(tmp_path / "own", format="pt2"), 1e-5)
    with pytest.raises(ConfigError, match="use --format onnx or --format pt2"):
        fitted.export(tmp_path / "ts", format="torchscript")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("format", ["pt2", "torchscript"])
def test_chains_from_several_starts_and_tilted_widths(format, tmp_path):
    chain = model("vae", component="residual", corrections=1)
    fitted = chain.refined(0, starts=3).widened(2.0, tilt=0.01, at=10.0)
    check(fitted, fitted.export(tmp_path / "x", format=format), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_flow_takes_noise(tmp_path):
    fitted = model("iaf", flows=2, hidden=8)
    folder = fitted.export(tmp_path / "x", format="torchscript")
    about = json.loads((folder / "export.json").read_text())["posterior"]
    assert about["inputs"] == {"images": ["batch", 1, 8, 8], "noise": ["samples", "batch", 2]}
    for batch in BATCHES:
        noise = torch.randn(4, batch, 2)
        z, log_q = run(folder, "posterior", images(batch), noise)
        q = fitted.posterior(images(batch))
        with torch.no_grad():
            expected, _ = q.forward(q.base.mean + q.base.stddev * noise)
            torch.testing.assert_close(z, expected)
            torch.testing.assert_close(q.log_prob(z), log_q, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="2 x Flow, which has no form"):
        model("rme", order=2, component="iaf").export(tmp_path / "y", format="pt2")


def test_the_description(tmp_path):
    fitted = model("rme", order=3)
    folder = fitted.export(tmp_path / "x", format="pt2")
    about = json.loads((folder / "export.json").read_text())
    assert about["method"] == "rme"
    assert Spec.from_json(about["spec"]) == fitted.spec
    assert about["posterior"]["kind"] == "mixture of diagonal Gaussians"
    assert about["posterior"]["inputs"] == {"images": ["batch", 1, 8, 8]}
    assert about["posterior"]["outputs"]["means"] == ["batch", 3, 2]
    assert about["posterior"]["range"] == {"images": [0, 1]}
    for name in ("posterior", "decoder"):
        content = (folder / about[name]["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == about[name]["sha256"]
    with zipfile.ZipFile(folder / "posterior.pt2") as archive:
        text = b"".join(archive.read(n) for n in archive.namelist() if n.endswith(".json"))
        size = sum(i.file_size for i in archive.infolist() if "/data/" in i.filename)
    assert b"site-packages" not in text  # no folders of the machine it was made on
    own = [*fitted.method.components, *fitted.method.gates]
    floats = sum(p.numel() for part in own for p in part.parameters())
    assert size < 4 * floats + 50_000  # neither the decoder nor any network twice


def test_your_own_networks(tmp_path):
    class Branching(nn.Module):
        """What a tracer cannot follow: a choice made by the values."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x):
            y = self.layer(x.flatten(1))
            return y if y.sum() > 1e6 * (len(x) - 2) else -y

    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    fitted = model("vae", encoder=encoder)
    fitted.save(tmp_path / "run")
    check(fitted, fitted.export(tmp_path / "x", format="pt2"), 1e-5)
    with pytest.raises(RunError, match="user's own encoder"):
        recmix.export(tmp_path / "run", format="pt2")
    again = recmix.load(tmp_path / "run", encoder=encoder)
    assert recmix.export(again, format="pt2") == tmp_path / "run" / "pt2"
    for form in ("torchscript", "pt2"):
        with pytest.raises(ConfigError, match="must be traceable"):
            model("vae", encoder=Branching()).export(tmp_path / "y", format=form)
    assert not (tmp_path / "y").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_command(tmp_path, capsys, monkeypatch):
    fitted = model("vae", network="dense")
    fitted.save(tmp_path / "run")
    words = ("export", tmp_path / "run", "--format", "torchscript")
    assert call(*words) == 0
    assert "decoder.pt, export.json, posterior.pt" in capsys.readouterr().out
    check(fitted, tmp_path / "run" / "torchscript", 1e-5)
    assert call(*words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert call(*words, "--overwrite") == 0
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "model.pt"):
        assert call(*words, "--out", out) == 2
        assert "name a folder" in " ".join(capsys.readouterr().err.split())
    assert call("export", tmp_path / "run", "--format", "onxx") == 2
    assert "did you mean 'onnx'" in capsys.readouterr().err
    assert call("export", tmp_path / "nowhere") == 2
    model("vae", encoder=nn.Sequential(nn.Flatten(), nn.Linear(64, 4))).save(tmp_path / "own")
    assert call("export", tmp_path / "own") == 2
    assert "export it from Python" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="in no folder yet"):
        fitted.__class__(fitted.method, fitted.spec).export(format="pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert call("export", tmp_path / "run") == 2
    assert "pip install 'recmix[export]'" in " ".join(capsys.readouterr().err.split())


def test_elementary_linear_algebra():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(5, 4, 4, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(4)
    factor, info = cholesky_ex(matrix)
    torch.testing.assert_close(factor, torch.linalg.cholesky(matrix))
    assert not info.any()
    assert cholesky_ex(torch.stack([matrix[0], -matrix[0]]))[1].tolist() == [0, 1]
    for upper in (False, True):
        a = factor.mT if upper else factor
        torch.testing.assert_close(a @ solve_triangular(a, root, upper=upper), root)
    q, r = qr(root)
    torch.testing.assert_close(q @ r, root)
    torch.testing.assert_close(r, r.triu())
    with pytest.raises(NotImplementedError, match="unit diagonal"):
        solve_triangular(factor, root, upper=False, unitriangular=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_derivative_of_a_convolution(transposed):
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(4, 6, 4, stride=2, padding=1, groups=2).double()
    x = torch.randn(2, 4, 7, 9, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    slope = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, slope)
    same = (layer.stride, layer.padding, layer.dilation, transposed, (0, 0), layer.groups)
    found, _, _ = convolution_backward(slope, x, layer.weight, None, *same, [True, False, False])
    torch.testing.assert_close(found, expected)
