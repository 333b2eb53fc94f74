"""`make_plan` prepares one training from the arguments of `recmix.fit`.

The steps are: read the options (`recmix.training.request`), read the data, make the model p(x, z),
make the method. Then `Plan.claim_folder` makes the run folder, and `Plan.job` makes the `Job`
that trains the method.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from recmix.data import Data, Examples, as_data, check_values
from recmix.data.overlap import write_training_examples
from recmix.methods.make_method import make_method, place
from recmix.methods.method import Method
from recmix.methods.training_checks import check_can_be_distilled, check_kl_can_change
from recmix.model.assembly import complete_options, make_model
from recmix.model.data_facts import Statistics
from recmix.model.fields import Fields
from recmix.model.network_checks import check_probabilities
from recmix.model.replaceable import load_accelerated
from recmix.runs.spec import Spec
from recmix.training.build import Trained, load_trained
from recmix.training.job import Job
from recmix.training.one_module import keep_used_parts
from recmix.training.request import Request, read_request
from recmix.training.resume import is_complete
from recmix.training.start import (
    check_architecture,
    check_data,
    check_instance,
    check_options,
    origin,
)
from recmix.training.suspicious import warn_if_suspicious
from recmix.training.world import world

__all__ = ["Plan", "make_plan"]


@dataclasses.dataclass
class Plan:
    """One checked call of `recmix.fit`: what is trained, from which weights, and in which folder.

    Attributes:
        spec: everything that defines the run: its options and a description of its data.
        first: the plan of the initial model, if the initial model must be trained first; else None.
        init: the trained initial model, or None if there is none or it is not trained yet.
        finished: the trained model; None until it is trained, or loaded from a complete run's folder.
    """

    request: Request
    spec: Spec
    data: Data
    method: Method
    first: Plan | None
    init: Trained | None
    finished: Trained | None = None

    @property
    def chooses_order(self) -> bool:
        """Whether the number of mixture components is chosen automatically (``order = "auto"``)."""
        return self.spec.auto is not None and "order" in self.spec.auto

    def claim_folder(self) -> None:
        """Create the run folder, or prepare to continue the run in it.

        If the run in the folder is already complete, it is loaded into `finished`.
        """
        asked, run = self.request, self.request.run
        if run is None:
            return
        group = world()
        group.wait()  # until all processes have seen whether there is a run
        if asked.resume and asked.found:
            if is_complete(run, self.spec, group):
                made = load_trained(
                    run.folder,
                    device=self.spec.training.device,
                    method=type(self.method),
                    own=asked.own,
                )
                spec = dataclasses.replace(made.spec, inference=self.spec.inference)
                self.finished = dataclasses.replace(made, spec=spec, outcome=run.status())
                return
            if group.writer:
                run.set_vocabulary(self.data.vocabulary)
        elif group.writer:
            run.create(self.spec, overwrite=asked.overwrite, vocabulary=self.data.vocabulary)
            if self.spec.data["kind"] not in ("named", "path"):  # those can be loaded again
                write_training_examples(run.folder, self.data)
        group.wait()

    def job(self) -> Job:
        """Make the `Job` that trains the method. The weights of `init`, if given, are copied into it."""
        asked, spec, training = self.request, self.spec, self.spec.training
        if self.init:
            with torch.random.fork_rng():
                torch.manual_seed(training.seed)
                self.method.start_from(self.init.method)
        else:
            warn_if_suspicious(self.data, self.method, own_decoder=asked.own.decoder is not None)
        if self.first:  # these options are for the model that was trained first
            training = dataclasses.replace(training, kl_warmup=0, free_bits=0.0)
        value = f"({spec.options[spec.setting]})" if spec.setting in spec.options else ""
        return Job(
            self.method,
            self.data,
            training,
            objective=asked.objective,
            continued=self.init is not None,
            run=asked.run,
            resume=asked.resume,
            title=f"{spec.label}{value}".lower(),
            callbacks=asked.callbacks,
        )


def make_plan(method: Any, data: Any, *, select_on: Examples | None = None, **arguments: Any) -> Plan:
    """Check the arguments of `recmix.fit`, read the data and make the networks.

    Nothing is written into the run folder. Missing files of a named data set are downloaded.

    Args:
        select_on: examples that select the best epoch, instead of all validation examples. They are
            given only while the number of components is chosen (``order = "auto"``).
    """
    return _plan(read_request(method, **arguments), data, select_on)


def _plan(asked: Request, source: Any, select_on: Examples | None = None) -> Plan:
    """Make the `Plan` for the checked arguments `asked` and the data.

    Args:
        source: the data, in any form that `recmix.fit` takes.
        select_on: examples that select the best epoch, see `make_plan`.
    """
    # The data
    start, training = asked.start, asked.training
    before = asked.run.spec().data if asked.run and asked.found and asked.resume else None
    made_for = start.spec.shape if start else asked.instance.model.shape if asked.instance else None
    data = as_data(source, shape=made_for, description=before)
    described, kind = data.describe(), data.kind
    classes = data.classes if asked.counts_classes and data.vocabulary is None else 0
    fields = Fields(data.fields) if data.fields else None
    statistics = Statistics()
    if asked.instance is None:
        statistics = data.statistics(
            spread=asked.model.get("standardise") == "features",
            examples=asked.model.get("prior") == "vamp",
        )
    if start:
        check_data(start, data)
    if asked.instance:
        check_instance(asked.instance, data)

    # What defines the run
    first = _plan(asked.first, data) if asked.first else None
    begun = {"run": first.spec.method, "epochs": asked.vae_epochs} if first else None
    spec = Spec(
        method=asked.method,
        label=asked.label,
        shape=data.shape,
        options=asked.options,
        model=complete_options(
            asked.model,
            shape=data.shape,
            kind=kind,
            classes=classes,
            fields=fields,
            vocabulary=data.vocabulary,
            own=asked.own,
            before=start.spec.model if start else None,
        ),
        training=training,
        inference=asked.inference,
        data=described,
        init=origin(start, asked.address) if start else begun,
        setting=asked.cls.setting,
        auto=asked.auto if select_on is None else {"step of": "order"},
    )
    if start:
        check_options(start.spec, spec, networks=asked.instance is None)
    if select_on is not None:
        data = dataclasses.replace(data, x_val=select_on)

    # The model and the method
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)  # the first weights depend on the seed alone
        if asked.instance is None:
            if asked.own.encoder is not None:
                keep_used_parts(asked.own, spec.shape, spec.model.latent)
            model, encoder = make_model(
                spec.model, spec.shape, fields=fields, own=asked.own, statistics=statistics
            )
        else:
            model, encoder = asked.instance.model, asked.instance.base_encoder
        load_accelerated()
        like = next(model.decoder.parameters(), model.centre)
        check_probabilities(model.decoder, model.likelihood, model.latent, like)
        check_values(data, model.likelihood.requirement, model.likelihood.name)
        made = asked.instance or make_method(asked.cls, model, encoder, spec.options)
    place(made, asked.device, getattr(torch, training.dtype))
    if asked.inference.noise != 1:
        asked.inference.model(model)  # refuses noise that the likelihood does not have
    if training.distil:
        check_can_be_distilled(made)
    if (training.kl_warmup or training.free_bits) and not first:
        x = torch.as_tensor(data.x_train[:2]).to(model.centre) if training.free_bits else None
        check_kl_can_change(made, "kl_warmup" if training.kl_warmup else "free_bits", x)
    if start:
        check_architecture(start, made)
    return Plan(asked, spec, data, made, first, start)
