"""Exported files give the same results as the Python interface, without recmix."""

import hashlib
import json
import sys
import zipfile

import pytest
import torch
from cases.commands import call
from cases.exports import BATCHES, METHODS, check, images, model, run
from torch import nn

import recmix
from recmix.errors import ConfigError, RunError
from recmix.exports.operators import convolution_backward, qr
from recmix.exports.serialise import export
from recmix.runs.spec import Spec


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("network", ["conv", "dense"])
@pytest.mark.parametrize("method", METHODS)
def test_torchscript_and_pt2_agree_with_python(method, network, tmp_path):
    made = model(method, network=network, **METHODS[method])
    check(made, made.export(tmp_path / "ts", format="torchscript"), 1e-5)
    if network == "conv":
        check(made, made.export(tmp_path / "pt2", format="pt2"), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_networks_that_are_not_fused_and_bernoulli_likelihood(tmp_path):
    made = model("rme", order=3, likelihood="bernoulli")
    check(made, made.export(tmp_path / "a", format="torchscript", fuse=False), 1e-5)
    about = json.loads((tmp_path / "a" / "export.json").read_text())
    assert about["decoder"]["range"] == {"examples": [0, 1]}


def test_fused_networks_share_their_convolutions(tmp_path):
    made, counts = model("rme", order=3), {}
    for fuse in (True, False):
        folder = made.export(tmp_path / str(fuse), format="pt2", fuse=fuse)
        check(made, folder, 1e-5)
        nodes = torch.export.load(folder / "posterior.pt2").graph.nodes
        counts[fuse] = sum("conv2d" in str(node.target) for node in nodes)
    assert counts[False] == 3 * counts[True]


@pytest.mark.parametrize(
    ("method", "network", "options"),
    [("sa", "conv", {"steps": 1}), ("vlae", "dense", {"steps": 1})],
)
def test_posteriors_that_use_derivatives(method, network, options, tmp_path):
    made = model(method, network=network, **options)
    check(made, made.export(tmp_path / "x", format="pt2"), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_refined_mixture_and_user_decoder(tmp_path):
    made = model("rme", order=2, network="dense").refined(1, restarts=2)
    check(made, made.export(tmp_path / "x", format="torchscript"), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="older torch cannot trace the second derivative of a convolution"
)
def test_decoder_that_is_differentiated_twice(tmp_path):
    decoder = nn.Sequential(
        nn.Linear(2, 16),
        nn.Softplus(),
        nn.Unflatten(1, (1, 4, 4)),
        nn.ConvTranspose2d(1, 1, 2, stride=2),
    )
    made = model("vlae", steps=1, decoder=decoder)  # not a chain of simple layers: differentiated twice
    check(made, made.export(tmp_path / "own", format="pt2"), 1e-5)
    with pytest.raises(ConfigError, match="use --format onnx or --format pt2"):
        made.export(tmp_path / "ts", format="torchscript")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("format", ["pt2", "torchscript"])
def test_restarted_corrections_with_calibration(format, tmp_path):
    made = model("residual", corrections=1)
    made = made.using(restarts=3, scale=2.0, slope=0.01, reference=10.0)
    check(made, made.export(tmp_path / "x", format=format), 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_flow_takes_noise(tmp_path):
    made = model("iaf", flows=2, hidden=8)
    folder = made.export(tmp_path / "x", format="torchscript")
    about = json.loads((folder / "export.json").read_text())["posterior"]
    assert about["inputs"] == {"examples": ["batch", 1, 8, 8], "noise": ["samples", "batch", 2]}
    for batch in BATCHES:
        noise = torch.randn(4, batch, 2)
        z, log_q = run(folder, "posterior", images(batch), noise)
        q = made.posterior(images(batch))
        with torch.no_grad():
            expected, _ = q.forward(q.base.mean + q.base.stddev * noise)
            torch.testing.assert_close(z, expected)
            torch.testing.assert_close(q.log_prob(z), log_q, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="2 x Flow, which cannot be exported"):
        model("rme", order=2, component="iaf").export(tmp_path / "y", format="pt2")


def test_description_of_an_export(tmp_path):
    made = model("rme", order=3)
    folder = made.export(tmp_path / "x", format="pt2")
    about = json.loads((folder / "export.json").read_text())
    assert about["method"] == "rme"
    assert Spec.from_json(about["spec"]) == made.spec
    assert about["posterior"]["kind"] == "mixture of Gaussians"
    assert about["posterior"]["inputs"] == {"examples": ["batch", 1, 8, 8]}
    assert about["posterior"]["outputs"]["means"] == ["batch", 3, 2]
    assert about["posterior"]["range"] == {"examples": None}  # any value
    for name in ("posterior", "decoder"):
        content = (folder / about[name]["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == about[name]["sha256"]
    with zipfile.ZipFile(folder / "posterior.pt2") as archive:
        text = b"".join(archive.read(n) for n in archive.namelist() if n.endswith(".json"))
        size = sum(i.file_size for i in archive.infolist() if "/data/" in i.filename)
    assert b"site-packages" not in text  # no paths of this machine
    own = [*made.method.components, *made.method.gates]
    floats = sum(p.numel() for part in own for p in part.parameters())
    assert size < 4 * floats + 50_000  # no decoder, and no network twice


def test_same_model_gives_the_same_bytes(tmp_path):
    made = model("vae")
    one, two = (made.export(tmp_path / name, format="pt2") for name in "ab")
    for name in ("posterior.pt2", "decoder.pt2", "export.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_unfinished_files_of_a_killed_export_are_removed(tmp_path):
    for name in ("posterior.pt", "decoder.pt", "posterior.onnx"):
        (tmp_path / f".{name}.abc.part").write_text("")
    folder = model("vae").export(tmp_path, format="torchscript")
    assert {path.name for path in folder.iterdir()} == {"posterior.pt", "decoder.pt", "export.json"}


def test_user_networks(tmp_path):
    class Branching(nn.Module):
        """A branch on a tensor's value, which a tracer cannot follow."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x):
            y = self.layer(x.flatten(1))
            return y if y.sum() > 1e6 * (len(x) - 2) else -y

    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    made = model("vae", encoder=encoder)
    made.save(tmp_path / "run")
    check(made, made.export(tmp_path / "x", format="pt2"), 1e-5)
    with pytest.raises(RunError, match="user's own encoder"):
        export(tmp_path / "run", format="pt2")
    again = recmix.load(tmp_path / "run", encoder=encoder, device="cpu")
    assert again.export(format="pt2") == tmp_path / "run" / "pt2"
    for form in ("torchscript", "pt2"):
        with pytest.raises(ConfigError, match="must be traceable"):
            model("vae", encoder=Branching()).export(tmp_path / "y", format=form)
    assert not (tmp_path / "y").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_export_command(tmp_path, capsys, monkeypatch):
    made = model("vae", network="dense")
    made.save(tmp_path / "run")
    words = ("export", tmp_path / "run", "--format", "torchscript")
    assert call(*words) == 0
    assert "decoder.pt, export.json, posterior.pt" in capsys.readouterr().out
    check(made, tmp_path / "run" / "torchscript", 1e-5)
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
    assert "--networks module:function" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="has no folder yet: give the folder of the export"):
        recmix.Model(made.method, made.spec).export(format="pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert call("export", tmp_path / "run", "--format", "onnx") == 2
    assert "pip install 'recmix[export]'" in " ".join(capsys.readouterr().err.split())
    assert call("export", tmp_path / "run") == 0  # the default format needs no more packages
    assert (tmp_path / "run" / "pt2" / "posterior.pt2").exists()


@pytest.mark.parametrize("form", ["pt2", "onnx", "torchscript"])
def test_conjugate_refinement_is_refused_before_it_is_traced(form, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("recmix.exports.serialise.check_format", lambda _form: None)
    made = model("vae", network="dense").refined(2, how="conjugate")
    kinds = r"kind \(gauss-newton, learned, variational\).*refined\(2, how='gauss-newton'\)"
    with pytest.raises(ConfigError, match=f"kind 'conjugate' cannot be exported: use another {kinds}"):
        made.export(tmp_path / "x", format=form)
    assert not (tmp_path / "x").exists()
    made.save(tmp_path / "run")
    assert call("export", tmp_path / "run", "--format", form) == 2
    assert "minutes" not in capsys.readouterr().err
    made.using(refine=0).export(tmp_path / "x", format="pt2")  # without steps, the kind has no effect


def test_tuned_run_is_refused_before_a_note_on_the_time(tmp_path, capsys):
    made = model("sa", steps=1).refined(1)
    made.save(tmp_path / "run")
    assert call("export", tmp_path / "run", "--format", "torchscript") == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "use --format onnx or --format pt2" in shown
    assert "minutes" not in shown


def test_elementary_qr():
    root = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, r = qr(root)
    torch.testing.assert_close(q @ r, root)
    torch.testing.assert_close(r, r.triu())


@pytest.mark.parametrize("transposed", [False, True])
def test_derivative_of_a_convolution(transposed):
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
