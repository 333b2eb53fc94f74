"""Every registered method passes every check of the contract, and wrong methods fail them."""

import pytest
import torch
from cases.contract import ALL, CHECKS, MIXTURES, check_method, check_mixture_of

from recmix.methods.method import Method
from recmix.methods.registry import COMPONENTS, METHODS
from recmix.methods.vae import GaussianComponent
from recmix.posteriors import Gaussian


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ALL)
def test_method(name, check):
    CHECKS[check](METHODS[name])


@pytest.mark.parametrize("component", sorted(COMPONENTS))
@pytest.mark.parametrize("name", MIXTURES)
def test_mixture_of_any_component(name, component):
    check_mixture_of(METHODS[name], component)


class Plain(Method):
    """A new method that is not registered.

    Args:
        model: p(x, z).
        encoder: gives q(z | x).
        width: a factor of the standard deviations.

    Reference: this test.
    """

    name = "plain"
    title = "plain"
    reference = "this test"
    starts_from = None

    def __init__(self, model, encoder, *, width: float = 1.0) -> None:
        super().__init__(model, [GaussianComponent(encoder, model)])
        self.width = width


def test_new_method_passes_without_being_registered():
    check_method(Plain)
    assert "plain" not in METHODS


class DependsOnBatch(Plain):
    def posterior(self, x):
        q = super().posterior(x)
        return Gaussian(q.mean - q.mean.mean(0), q.log_variance)


class DrawsNoise(Plain):
    def posterior(self, x):
        q = super().posterior(x)
        return Gaussian(q.mean + torch.randn_like(q.mean), q.log_variance)


class WrongPosterior(Plain):
    """Wrong in its density, its entropy and its description."""

    class Posterior(Gaussian):
        def log_prob(self, value):
            return 2 * super().log_prob(value)

        def entropy(self):
            return 0.5 * super().entropy()

        def describe(self):
            return {"means": self.mean, "log_variances": 2 * self.log_variance}

    def posterior(self, x):
        q = super().posterior(x)
        return self.Posterior(q.mean, q.log_variance)


class ReadsValue(Plain):
    def loss(self, x, *, generator=None):
        loss = super().loss(x, generator=generator)
        return loss if loss.item() < 1e9 else 0 * loss


class WrongSign(Plain):
    def loss(self, x, *, generator=None):
        return -super().loss(x, generator=generator)


class ForgetsDecoder(Plain):
    def optimizers(self, learning_rate, **options):
        found = super().optimizers(learning_rate, **options)
        del found["all"].param_groups[-1]
        return found


class KeepsOwnEncoder(Plain):
    def start_from(self, other):
        self.model.load_state_dict(other.model.state_dict())


class ClaimsRestarts(Plain):
    can_restart = True


class ClaimsSteps(Plain):
    feed_forward = True


class HiddenState(Plain):
    """Its posterior depends on a number that is not among its weights."""

    made = 0

    def __init__(self, model, encoder, *, width: float = 1.0) -> None:
        super().__init__(model, encoder, width=width)
        HiddenState.made += 1
        self.shift = 0.1 * HiddenState.made

    def posterior(self, x):
        q = super().posterior(x)
        return Gaussian(q.mean + self.shift, q.log_variance)


class NoHelp(Plain):
    """A method that does not document its option.

    Reference: none.
    """


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (DependsOnBatch, "examples_do_not_depend_on_each_other"),
        (DrawsNoise, "posterior_is_a_function_of_x"),
        (WrongPosterior, "shapes_and_densities"),
        (WrongPosterior, "described_by_its_tensors_if_it_can"),
        (WrongPosterior, "components_have_an_entropy_if_they_say_so"),
        (WrongSign, "steps_raise_the_bound"),
        (WrongSign, "reaches_the_best_bound_of_its_family"),
        (ForgetsDecoder, "a_step_trains_every_parameter"),
        (KeepsOwnEncoder, "starts_from_methods_of_the_first_stage"),
        (ClaimsRestarts, "restarts_if_it_can"),
        (ClaimsSteps, "the_decoder_is_used_as_declared"),
        (HiddenState, "save_and_load_give_the_same_model"),
        (NoHelp, "describes_itself"),
    ],
)
def test_wrong_method_fails(cls, check):
    CHECKS[check](Plain)
    with pytest.raises(AssertionError):
        CHECKS[check](cls)


def test_method_that_reads_a_value_fails():
    with pytest.raises(RuntimeError, match="meta"):
        CHECKS["a_step_never_reads_a_value"](ReadsValue)
