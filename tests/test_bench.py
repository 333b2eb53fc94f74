"""`recmix bench`: every figure in miniature, its book, its page, and the pseudocode it compares with."""

import copy
import dataclasses
import json
import math
import subprocess

import literal as reference
import pytest
import torch
from torch import nn

from recmix import bench
from recmix.errors import ConfigError, RunError
from recmix.methods.recursive import RecursiveMixture
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian
from recmix.model.networks import make_decoder, make_encoder

SHAPE, LATENT, BATCH = (1, 8, 8), 3, 4
MEASURES = bench.part("measures")
TINY = MEASURES.Scale(
    repeats=2,
    seconds=0.0,
    steps=2,
    peer_steps=2,
    growth_repeats=2,
    growth_seconds=0.0,
    iwae_images=2,
    nll_images=4,
    nll_parts=2,
    batch=BATCH,
    order=2,
    latent=LATENT,
    wide=4,
    shape=SHAPE,
    colour=(3, 8, 8),
    replicas=2,
    replica_counts=(1, 2),
    orders=(1, 2, 3, 4),
    latents=(2, 4),
    sides=(8, 12),
    nll_samples=5,
    iwae_samples=20,
)
IN_A_PROCESS = ("iwae5000_peak_memory", "laplace_peak_memory")
EVERYWHERE = [
    name
    for name, one in bench.keys().items()
    if one.on != "cuda" and not one.peer and name not in IN_A_PROCESS
]


def tiny():
    return bench.Bench(torch.device("cpu"), TINY)


def run(only, folder, **more):
    return bench.run(only, out=folder, device="cpu", scale=TINY, **more)


def check(entry):
    assert math.isfinite(entry["value"])
    assert math.isfinite(entry["spread"])
    assert entry["spread"] >= 0
    assert entry["unit"]
    assert entry.keys() >= {"reach", "reached", "detail", "device", "torch", "python", "date"}
    assert all(ms > 0 for ms in entry["detail"].get("ms", {}).values())


def test_every_key_of_the_plan_is_there():
    assert bench.keys().keys() == {
        "serve",
        "train_literal_over_graph",
        "train_literal_over_replica",
        "train_literal_over_eager",
        "train_literal_over_compile",
        "train_literal_over_compile_replica",
        "posterior_rme5_over_vae",
        "posterior_rme5_over_sa1",
        "posterior_laplace2_over_sa2",
        "train_pythae_over_recmix_gpu",
        "train_pythae_over_recmix_cpu",
        "iwae_pythae_over_recmix_cpu",
        "growth_in_order",
        "replicas_throughput",
        "replicas_stacked_over_branches",
        "iwae5000_peak_memory",
        "laplace_peak_memory",
    }


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_figure_is_measured_and_written(name, tmp_path):
    found = run([name], tmp_path)[name]
    check(found)
    if name != "growth_in_order":  # an exponent of such short times may be anything
        assert found["value"] > 0
    (path,) = tmp_path.glob("*.json")
    assert path.name == f"cpu-{bench.cores()}-cores.json"
    assert json.loads(path.read_text()) == {name: found}


def test_what_a_gpu_is_for_works_in_miniature_without_one():
    for measure in (
        lambda b: MEASURES._train_literal(b, "eager", replicas=2),
        lambda b: MEASURES._replicas(b, "eager"),
    ):
        found = measure(tiny())
        assert math.isfinite(found.value)
        assert found.value > 0
    assert found.detail["rme2"].keys() == {"1", "2"}


def test_the_peak_is_that_of_the_work_and_not_of_this_process():
    there = torch.ones(2**26)  # 256 MiB here must not count there
    peak = bench.part("memory").peak_bytes(
        torch.device("cpu"), "laplace", steps=1, latent=2, shape=SHAPE, batch=2
    )
    assert 0 <= peak < 128 * 2**20
    assert len(there)


def test_the_peaks_of_iwae_and_laplace_are_written(tmp_path, monkeypatch):
    memory = bench.part("memory")
    asked = []

    def peak(device, task, **sizes):
        memory.TASKS[task](device, **sizes)()
        asked.append((task, sizes))
        return 3 * 2**20

    monkeypatch.setattr(memory, "peak_bytes", peak)
    found = run(IN_A_PROCESS, tmp_path)
    for name in IN_A_PROCESS:
        check(found[name])
        assert found[name]["value"] == 3.0
        assert found[name]["reached"]
    assert found["iwae5000_peak_memory"]["detail"]["samples"] == {"2": 3.0, "20": 3.0}
    assert [sizes["memory"] // 2**20 for task, sizes in asked if task == "iwae"] == [256, 256, 64]


def test_the_engine_that_was_asked_for_or_none():
    with pytest.raises(RuntimeError, match="graph engine was to be measured"):
        MEASURES._training(tiny(), "vae", "graph")


def test_keys_that_need_a_gpu_are_skipped_with_the_reason(tmp_path, capsys):
    assert run(["train_literal_over_graph", "replicas_throughput"], tmp_path) == {}
    assert capsys.readouterr().out.count("skipped: needs a GPU") == 2
    assert not list(tmp_path.glob("*.json"))


def test_an_unknown_key_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'growth': did you mean 'growth_in_order'"):
        run(["growth"], tmp_path)


def test_its_book_and_its_page_need_no_torch():
    code = "import sys, recmix.bench; assert 'torch' not in sys.modules"
    subprocess.run([bench.sys.executable, "-c", code], check=True)


def test_outside_a_checkout_it_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "src" / "recmix" / "bench.py"))
    with pytest.raises(ConfigError, match=r"needs a checkout .* benchmarks/literal.py"):
        run([], tmp_path)


def test_other_figures_stay_in_the_file(tmp_path, monkeypatch):
    path = tmp_path / f"cpu-{bench.cores()}-cores.json"
    old = {"value": 1.0, "unit": "x", "spread": 0.0, "quick": True}
    path.write_text(json.dumps({"train_literal_over_eager": old, "posterior_rme5_over_vae": old}))
    _give(monkeypatch, "posterior_rme5_over_vae", lambda b: bench.Measured(1.23456789, 0.1, {}))
    run(["posterior_rme5_over_vae"], tmp_path)
    found = json.loads(path.read_text())
    assert found["train_literal_over_eager"] == old
    assert found["posterior_rme5_over_vae"]["value"] == 1.23457
    _give(monkeypatch, "posterior_rme5_over_vae", lambda b: bench.Measured(7.0, 0.1, {}))
    assert run(["posterior_rme5_over_vae"], tmp_path, quick=True)["posterior_rme5_over_vae"]["quick"]
    assert json.loads(path.read_text()) == found  # a quick look replaces no real figure
    path.write_text("{")
    with pytest.raises(RunError, match="not readable JSON"):
        run(["posterior_rme5_over_vae"], tmp_path)


def test_a_figure_that_fails_leaves_the_others(tmp_path, monkeypatch, capsys):
    def fails(_bench):
        raise RuntimeError("out of memory")

    _give(monkeypatch, "posterior_rme5_over_vae", fails)
    _give(monkeypatch, "posterior_rme5_over_sa1", lambda b: bench.Measured(0.1, 0.0, {}))
    with pytest.raises(RunError, match="1 of 2 figures failed: posterior_rme5_over_vae"):
        run(["posterior_rme5_over_vae", "posterior_rme5_over_sa1"], tmp_path)
    assert "out of memory" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    assert list(json.loads(path.read_text())) == ["posterior_rme5_over_sa1"]


def _give(monkeypatch, name, measure):
    given = dataclasses.replace(bench.keys()[name], measure=measure)
    monkeypatch.setitem(bench.KEYS, name, given)


@pytest.mark.parametrize(
    ("value", "reach", "reached"),
    [(12.0, ">= 12", True), (11.9, ">= 12", False), (1.5, "<= 1.5", True), (1.6, "<= 1.5", False)],
)
def test_what_is_reached(value, reach, reached):
    assert bench._reached(value, reach) is reached


def test_a_reach_counts_where_it_was_meant():
    one = bench.keys()["posterior_rme5_over_vae"]
    assert one.reach_for("cuda") == "<= 1.5"
    assert one.reach_for("cpu") is None


def test_blocks_take_turns_forwards_and_backwards():
    seen = []
    blocks = {
        name: bench.Block(lambda units, name=name: seen.append((name, units)), fixed=units)
        for name, units in (("a", 3), ("b", 5))
    }
    times = bench.interleave(tiny(), blocks, repeats=2, seconds=1.0)
    assert "".join(name for name, _ in seen) == "ab" + "ab" + "ba"
    assert set(seen) == {("a", 3), ("b", 5)}
    assert [len(values) for values in times.values()] == [2, 2]


def test_the_ratio_is_the_median_of_paired_ratios():
    # A machine that is ten times slower in one repetition changes both sides of it.
    assert bench.ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == (2.0, 0.0)
    assert bench.ratio([3.0], [2.0]) == (1.5, 0.0)


# --- the peer -----------------------------------------------------------------------------------------

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
        from recmix.core import LatentModel
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
    """A package with the outside of pythae: what is tested is how it is found, wrapped and timed."""
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
def test_the_peer_is_wrapped_and_timed(name, pythae, tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    found = run([name], tmp_path / "results", peer=pythae)[name]
    check(found)
    assert found["value"] > 0
    assert found["detail"]["pythae"] == "9.9"
    assert "MASTER_PORT" not in bench.os.environ
    if "nats" in found["detail"]:
        assert found["detail"]["nats"]["pythae"] == pytest.approx(
            found["detail"]["nats"]["recmix"], abs=1
        )


@pytest.mark.parametrize("missing", [["imageio", "tqdm", "cloudpickle", "pydantic"], []])
def test_what_the_peer_imports_and_is_missing_is_stood_in_for(missing, pythae, monkeypatch):
    peer = bench.part("peer")
    find = peer.importlib.util.find_spec
    monkeypatch.setattr(
        peer.importlib.util, "find_spec", lambda n, *a: None if n in missing else find(n, *a)
    )
    before = {name for name in bench.sys.modules if not name.startswith("pythae")}
    peer.Peer(pythae)
    assert str(pythae) not in bench.sys.path
    added = {name.split(".")[0] for name in bench.sys.modules if not name.startswith("pythae")}
    assert added & {"imageio", "tqdm"} <= {name.split(".")[0] for name in before}


def test_without_a_peer_its_figures_are_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    assert run(["iwae_pythae_over_recmix_cpu"], tmp_path) == {}
    assert "skipped: RECMIX_OFFLINE is set" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="holds no package pythae: pip install --target"):
        run(["iwae_pythae_over_recmix_cpu"], tmp_path, peer=tmp_path)


# --- the pseudocode -----------------------------------------------------------------------------------


def recursion(order):
    torch.manual_seed(0)
    model = LatentModel(make_decoder("conv", SHAPE, LATENT), Gaussian(0.1), latent=LATENT, shape=SHAPE)
    return RecursiveMixture(model, make_encoder("conv", SHAPE, LATENT), order=order)


def pseudocode(order, rate=1e-3, **more):
    torch.manual_seed(0)
    code = bench.part("literal")
    model = code.RecMixVAE(order, LATENT, SHAPE, variance=0.1, **more).double()
    return code.Literal(model, learning_rate=rate)


def test_the_pseudocode_moves_as_the_reference_of_the_tests_does(monkeypatch):
    """Two readings of the paper's pages, given the same noise, take the same steps."""
    order, rate = 3, 1e-3
    ours = pseudocode(order, rate, eps_max=0.4)
    theirs = copy.deepcopy(ours.model)
    read = reference.LiteralRecursion(
        [comp.net for comp in theirs.comps],
        [_LogGate(gate) for gate in theirs.eps_regrs],
        theirs.decoder.log_prob,
        list(theirs.decoder.parameters()),
        rate,
        ours.kl_max,
    )
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for _ in range(3):
        x = torch.rand(BATCH, *SHAPE, generator=generator, dtype=torch.float64)
        noise = [(draw(BATCH, LATENT), draw(BATCH, LATENT)) for _ in range(order)]
        coming = [noise[0][0]]
        for m in range(1, order):
            coming += [noise[m][0], *(noise[j][1] for j in range(m + 1))]
        coming += [own[1] for own in noise]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda _like, coming=coming: coming.pop(0))
            ours.step(x)
        assert not coming
        read.step(x, noise)
    for (name, one), two in zip(ours.model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-7, msg=name)


class _LogGate(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        return (self.gate(x).log(),)


def test_every_part_of_the_pseudocode_moves_once_per_batch():
    ours = pseudocode(3)
    before = copy.deepcopy(ours.model)
    ours.step(torch.rand(BATCH, *SHAPE, dtype=torch.float64))
    for (name, one), two in zip(ours.model.named_parameters(), before.parameters(), strict=True):
        assert not torch.equal(one, two), f"{name} did not move"
    assert {int(state["step"]) for state in ours.optimizer.state.values()} == {1}


def test_the_pseudocode_grows_with_the_square_of_the_order_and_the_library_linearly():
    counts = {"literal": [], "recmix": []}
    x = torch.rand(BATCH, *SHAPE)
    for order in range(1, 7):
        ours = pseudocode(order)
        ours.model.float()
        networks = [*(comp.net for comp in ours.model.comps), ours.model.decoder.net]
        counts["literal"].append(_images_seen(networks, lambda ours=ours: ours.step(x)))
        method = recursion(order)
        optimizers = method.optimizers(1e-4)
        networks = [*(c.encoder for c in method.components), method.model.decoder]
        counts["recmix"].append(_images_seen(networks, lambda m=method, o=optimizers: m.step(x, o)))
    bend = {name: _differences(_differences(seen)) for name, seen in counts.items()}
    assert set(bend["recmix"]) == {0}
    assert min(bend["literal"]) > 0
    assert len(set(bend["literal"][1:])) == 1


def _images_seen(networks, work):
    seen = 0

    def count(_module, inputs, _output):
        nonlocal seen
        seen += len(inputs[0]) // BATCH

    for network in networks:
        network.register_forward_hook(count)
    work()
    return seen


def _differences(values):
    return [b - a for a, b in zip(values, values[1:], strict=False)]


# --- the page -----------------------------------------------------------------------------------------


def entry(value, **more):
    given = {"value": value, "spread": 0.1, "unit": "x", "reach": ">= 2", "reached": value >= 2}
    stamp = {"device": "Some Card", "torch": "2.13", "python": "3.11", "date": "2026-01-02T03:04:05"}
    return {**given, "about": "a figure", "detail": {}, "quick": False, **stamp, **more}


def test_the_page_is_made_of_the_results(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    times = {str(n): float(n) for n in range(1, 9)}
    orders = {"engine": "graph", "orders": times, "literal_orders": times}
    rates = {"vae": {"1": 10.0, "2": 19.0}, "rme5": {"1": 4.0, "2": 8.0}, "batch": 128}
    card = {
        "train_literal_over_graph": entry(17.25, detail={"ms": {"literal": 50.0, "graph": 3.0}}),
        "posterior_rme5_over_vae": entry(1.5, detail={"eager": {"value": 1.25, "spread": 0.0}}),
        "growth_in_order": entry(1.0, detail=orders),
        "replicas_throughput": entry(2e6, detail=rates, reach=None, reached=None),
    }
    (results / "some-card.json").write_text(json.dumps(card))
    cpu = {"growth_in_order": entry(1.1, device="A CPU", quick=True, detail=orders)}
    (results / "cpu-2-cores.json").write_text(json.dumps(cpu))
    page, *pictures = bench.plot(results, docs)
    text = page.read_text()
    assert page == docs / "performance.md"
    assert "| **17.2** x | ± 0.1 | >= 2 | yes | literal 50 ms, graph 3 ms |" in text
    assert "| **no** | eager: 1.25 |" in text
    assert "2,000,000" in text
    assert text.index("Some Card") < text.index("A CPU")
    assert "With `--quick`, so only roughly: `growth_in_order`" in text
    assert "{{" not in text
    assert [p.name for p in pictures] == ["time-against-order.png", "throughput-against-replicas.png"]
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"(images/{picture.name})" in text


def test_a_page_without_points_says_so(tmp_path):
    (tmp_path / "cpu-2-cores.json").write_text(json.dumps({"train_literal_over_eager": entry(3.0)}))
    (page,) = bench.plot(tmp_path, tmp_path / "docs")
    assert "`growth_in_order` has not been measured yet" in page.read_text()


def test_a_page_of_nothing_is_an_error(tmp_path):
    with pytest.raises(RunError, match="run `recmix bench` first"):
        bench.plot(tmp_path, tmp_path)
    (tmp_path / "cpu.json").write_text("{")
    with pytest.raises(RunError, match="not readable JSON"):
        bench.plot(tmp_path, tmp_path)
