"""Models to export, and comparisons of exported graphs with them."""

import json

import torch

import recmix
from recmix.model.assembly import Own
from recmix.model.options import ModelOptions
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import build

SHAPE = (1, 8, 8)
BATCHES = (1, 7)


def model(method, *, network="conv", likelihood="gaussian", encoder=None, decoder=None, **options):
    """A model on the CPU with random weights everywhere, gates, flows and centre included."""
    torch.manual_seed(0)
    networks = {
        "network": network if encoder is None else "own",
        "decoder_network": network if decoder is None else "own",
    }
    spec = Spec(
        method=method,
        shape=SHAPE,
        model=ModelOptions(latent=2, likelihood=likelihood, **networks),
        training=Training(device="cpu"),
        options=options,
    )
    made = build(spec, own=Own(encoder, decoder))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.05 * torch.randn_like(p))
        if made.model.likelihood.centred:
            made.model.centre.uniform_(0, 0.5)
    return recmix.Model(made, spec)


def images(batch):
    return torch.rand(batch, *SHAPE, generator=torch.Generator().manual_seed(batch))


def expected(model, x):
    """The outputs that the graph of the posterior should have, from the Python interface."""
    q = model.posterior(x)
    parts = q.components
    shape = [q.scale_tril if hasattr(q, "scale_tril") else q.log_variance for q in parts]
    return q.weights, torch.stack([q.mean for q in parts], 1), torch.stack(shape, 1)


def run(folder, name, *given):
    """The outputs of an exported graph of any format."""
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


def check(model, folder, tolerance):
    """Assert that both graphs of a folder agree with the Python interface, for both batch sizes."""
    for batch in BATCHES:
        log_weights, *found = run(folder, "posterior", images(batch))
        for a, b in zip((log_weights.exp(), *found), expected(model, images(batch)), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        z = torch.randn(batch, 2)
        (decoded,) = run(folder, "decoder", z)
        torch.testing.assert_close(decoded, model.decode(z), rtol=tolerance, atol=tolerance)


METHODS = {
    "vae": {},
    "rme": {"order": 3},
    "me": {"order": 3},
    "full": {},
    "hf": {"flows": 2},
}
