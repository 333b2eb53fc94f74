"""The parts of a training: learning rates, early stopping, the best epoch and its warnings."""

import math
import signal
import threading

import pytest
import torch
from cases.training import images
from torch import nn

import recmix
from recmix.methods.make_method import place
from recmix.methods.vae import VAE
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian
from recmix.runs.training_options import Training
from recmix.training.job import Job
from recmix.training.loop import _stop_signals
from recmix.training.meter import Meter

DATA = recmix.data.from_arrays(images())


class Larger(VAE):
    """A VAE with a parameter that does not come from a trained model."""

    def __init__(self, model, encoder):
        super().__init__(model, encoder)
        self.new = nn.Parameter(torch.zeros(1))


def job(*, continued=False, **options):
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)))
    model = LatentModel(decoder, Gaussian(0.1), latent=2, shape=(1, 8, 8))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    training = Training(**{"epochs": 9, "learning_rate": 0.002, "batch_size": 20, **options})
    return Job(Larger(model, encoder), DATA, training, continued=continued)


def rate_of(made, parameter):
    groups = made.optimizers["all"].param_groups
    return next(float(g["lr"]) for g in groups if any(p is parameter for p in g["params"]))


@pytest.mark.parametrize("continued", [False, True])
def test_each_parameter_has_its_learning_rate(continued):
    """New parameters have their own only if the others were trained before."""
    made = job(continued=continued, variance_rate=30.0, fresh_rate=7.0)
    method = made.method
    assert rate_of(made, method.model.decoder[0].weight) == pytest.approx(0.002)
    assert rate_of(made, method.inherited()[0]) == pytest.approx(0.002)
    assert rate_of(made, method.model.likelihood.log_variance) == pytest.approx(0.06)
    assert rate_of(made, method.new) == pytest.approx(0.014 if continued else 0.002)
    assert not Job(method, DATA, made.training).continued


def ended(made, bounds):
    """End an epoch for each validation bound; return the numbers of epochs until it stops."""
    for bound in bounds:
        made.state.step = 1
        made.end_epoch(torch.tensor([bound, bound]))
        if made.state.stopped:
            break
    return made.state.epoch


@pytest.mark.parametrize(
    ("options", "last", "best"),
    [
        ({"patience": 2}, 4, 2),
        ({"patience": 0}, 6, 2),
        ({"patience": 2, "kl_warmup": 3}, 5, 2),
        ({"patience": 2, "keep_weights": "last"}, 6, 6),
    ],
)
def test_training_stops_after_so_many_epochs_without_a_better_bound(options, last, best):
    made = job(**options)
    assert ended(made, [1.0, 3.0, 3.0, 2.0, 2.0, 2.0]) == last
    assert made.state.best_epoch == best
    assert bool(made.state.stopped) == (last < 6)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([4.9, 5.1], None),  # at least 10 nats count as the size of the bound before training
        ([-5.1], "is -5.1 nats after it"),
        ([1.0, -101.0], "fell to -101 nats in epoch 2"),
        ([1.0, -99.0], None),
    ],
)
def test_bounds_far_below_the_first_one_warn_of_the_learning_rate(bounds, words):
    made = job()
    made._first_score = 0.0
    ended(made, bounds)
    if words:
        with pytest.warns(UserWarning, match=words):
            made.finish()
    else:
        made.finish()


def test_meter_names_the_first_batch_that_is_not_finite():
    meter = Meter(torch.device("cpu"))
    meter.begin(3, {"loss": 2.0, "kl": 1.0})
    for loss, kl in ((1.0, 0.5), (1.0, math.nan), (math.inf, math.nan)):
        meter.add({"loss": torch.tensor(loss), "kl": torch.tensor(kl)})
        if math.isfinite(kl):
            assert meter.totals() == {"loss": 3.0, "kl": 1.5}
            assert meter.not_finite() is None
    assert meter.not_finite() == ("loss", 5)
    assert meter.first_bad.tolist() == [5.0, 4.0]
    meter.begin(0, {})
    assert meter.totals() == {"loss": 0.0, "kl": 0.0}
    assert meter.not_finite() is None


def test_signals_are_caught_while_a_model_is_trained():
    """The first is noted, the second ends the work at once. Other threads leave signals alone."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        with _stop_signals() as caught:
            assert caught == []
            signal.raise_signal(number)
            assert caught == [name]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    found = []

    def work():
        with _stop_signals() as caught:
            found.append(caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[]]


def test_convolutions_have_their_faster_layout_on_a_cpu():
    network = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ConvTranspose2d(3, 4, 2))
    assert place(network, torch.device("cpu"), torch.float64) is network
    for part in network:
        assert part.weight.is_contiguous(memory_format=torch.channels_last)
        assert part.weight.dtype == torch.float64
