"""Write the posterior and the decoder of a trained run as files.

The formats are ONNX, TorchScript, and programs of `torch.export` (pt2).
"""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from recmix._version import __version__
from recmix.errors import ConfigError, RunError, unknown
from recmix.exports.graphs import DecoderGraph, Graph, X, frozen, posterior_graph
from recmix.exports.operators import BACKWARD, ELEMENTARY, onnx_operators
from recmix.inference.gauss_newton import traceable
from recmix.runs.files import remove_parts, write_bytes, write_json
from recmix.runs.folder import VOCABULARY
from recmix.runs.spec import Spec
from recmix.training.build import Trained, load_trained

__all__ = ["SUFFIX", "check_format", "export"]

SUFFIX = {"onnx": ".onnx", "torchscript": ".pt", "pt2": ".pt2"}
"""The formats of an export, and the suffix of their files."""
DESCRIPTION = "export.json"
FILES = (
    DESCRIPTION,
    VOCABULARY,
    *(graph + end for graph in ("posterior", "decoder") for end in SUFFIX.values()),
)
OPSET = 18
FORMAT = 2
LONG = 500  # ONNX graphs with at least this many operators are not simplified: that would take minutes
TRACEABLE = "Your own networks must be traceable: no branch on a tensor's value, no fixed batch size"


def export(
    run: Trained | str | Path,
    out: str | Path | None = None,
    *,
    format: str = "pt2",
    fuse: bool = True,
    overwrite: bool = False,
) -> Path:
    """Write the posterior and the decoder of a trained run as two files that need no recmix to run.

    A third file, ``export.json``, describes their inputs and outputs. A model of texts also gets the
    file ``vocabulary.json``. The function returns the folder with these files.

    Args:
        run: a trained method, or the folder of a run.
        out: folder for the files; by default a folder named after the format, in the run's own folder.
        format: ``onnx``, ``torchscript`` or ``pt2``. ONNX needs ``pip install 'recmix[export]'``.
        fuse: if possible, evaluate the networks of a mixture as one network with grouped convolutions.
        overwrite: replace an existing export.
    """
    check_format(format)
    trained = run if isinstance(run, Trained) else load_trained(run, device="cpu")
    if out is None:
        if trained.folder is None:
            raise ConfigError("this model has no folder yet: give the folder of the export")
        out = trained.folder / format
    folder = Path(out)
    _check_folder(folder, overwrite)
    method = frozen(trained.method, fuse=fuse)
    posterior = posterior_graph(method, trained.spec.inference)
    decoder = DecoderGraph(trained.spec.inference.model(method.model))
    graphs = {"posterior": posterior, "decoder": decoder}
    made = {name: _serialise(graph.eval(), format) for name, graph in graphs.items()}
    _make_folder(folder)
    for name, content in made.items():
        write_bytes(folder / (name + SUFFIX[format]), content)
    if trained.vocabulary is not None:
        write_json(folder / VOCABULARY, trained.vocabulary.describe())
    write_json(folder / DESCRIPTION, _description(trained.spec, format, fuse, graphs, made))
    return folder


def _description(
    spec: Spec, format: str, fuse: bool, graphs: dict[str, Graph], made: dict[str, bytes]
) -> dict[str, Any]:
    found: dict[str, Any] = {"format": FORMAT, "recmix": __version__, "torch": torch.__version__}
    found |= {"kind": format, "fused": fuse, "dtype": spec.training.dtype}
    if format == "onnx":
        found["opset"] = OPSET
    found |= {"method": spec.method, "spec": spec.to_json()}
    for name, graph in graphs.items():
        found[name] = {
            "file": name + SUFFIX[format],
            "sha256": hashlib.sha256(made[name]).hexdigest(),
            "kind": graph.kind,
            "inputs": {key: list(shape) for key, shape in graph.inputs.items()},
            "outputs": {key: list(shape) for key, shape in graph.outputs.items()},
        }
    if spec.data.get("vocabulary"):
        found["vocabulary"] = VOCABULARY
    model = graphs["posterior"].latent_model
    requirement = model.likelihood.requirement
    found["posterior"] |= {"values": {X: requirement}, "range": {X: _range(requirement)}}
    found["decoder"]["range"] = {X: _range(model.likelihood.values)}
    if model.fields is not None:
        found["posterior"]["fields"] = {X: model.fields.to_json()}
    return found


def _range(values: str) -> list[float | None] | None:
    """Return the smallest and the largest value of examples; None if there is no limit.

    `values` says which values are possible, as in the requirement of a likelihood, such as "counts".

    >>> _range("counts"), _range("classes:4"), _range("real")
    ([0.0, None], [0.0, 3.0], None)
    """
    kind, _, classes = values.partition(":")
    if kind in ("unit", "eight_bit"):
        return [0.0, 1.0]
    if kind in ("counts", "classes"):
        return [0.0, float(classes) - 1 if classes else None]
    if kind not in ("padded_classes", "graph"):
        return None
    return [None, max(float(group.partition("*")[0]) for group in classes.split("+")) - 1]


def check_format(format: str) -> None:
    """Raise a ConfigError if a format is not known, or its packages are not installed."""
    if format not in SUFFIX:
        raise ConfigError(unknown("format", format, SUFFIX))
    if format != "onnx":
        return
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"exporting to ONNX needs the package {error.name!r}: pip install 'recmix[export]' "
            "(or use --format pt2, which needs no package)"
        ) from error


def _check_folder(folder: Path, overwrite: bool) -> None:
    if folder.suffix in SUFFIX.values() or (folder.exists() and not folder.is_dir()):
        raise RunError(f"{folder} names a file: an export is a folder of files, so name a folder")
    there = [name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        raise RunError(
            f"{folder} already holds an export ({', '.join(there)}): replace it with --overwrite "
            "(overwrite=True), or give another folder"
        )


def _make_folder(folder: Path) -> None:
    """Make the folder of an export, and remove the files of an earlier export in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
            remove_parts(folder / name)
    except OSError as error:
        raise RunError(f"could not write to the folder {folder}: {error.strerror}") from error


def _serialise(graph: Graph, format: str) -> bytes:
    """Trace a graph and return the content of its file in this format."""
    make: Callable[[Graph], bytes] = {"onnx": _onnx, "torchscript": _torchscript, "pt2": _pt2}[format]
    try:
        # Tracers warn about values that become constants; `_check` tests whether that matters.
        with torch.no_grad(), traceable(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(graph)
    except ConfigError:
        raise
    except Exception as error:  # tracers raise errors of any kind
        first: BaseException = error
        while first.__cause__ is not None:  # the exporter of ONNX adds general advice to each
            first = first.__cause__
        why = next(iter(str(first).strip().splitlines()), type(first).__name__)
        advice = (
            TRACEABLE if format == "pt2" else f"Try --format pt2, which supports the most. {TRACEABLE}"
        )
        raise ConfigError(
            f"the graph of the {graph.kind} cannot be exported to {format}: {why}. {advice}"
        ) from error


def _check(graph: Graph, traced: Callable[..., Any]) -> None:
    """Check that a traced graph gives the same results as the original, also for other batch sizes."""
    for batch in (1, 4):
        given = graph.example(batch=batch)
        expected, found = graph(*given), traced(*given)
        pairs = zip(_outputs(expected), _outputs(found), strict=True)
        if not all(a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-4) for a, b in pairs):
            raise ConfigError(
                f"the traced graph of the {graph.kind} gives other results than the model for {batch} "
                f"examples, so nothing was written. {TRACEABLE}"
            )


def _outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _program(graph: Graph) -> torch.export.ExportedProgram:
    """Trace a graph to a program of `torch.export`. Its inputs may have any length along named axes."""
    example = graph.example()
    module: Any = graph
    shapes = tuple(
        {axis: torch.export.Dim.DYNAMIC for axis, n in enumerate(shape) if isinstance(n, str)}
        for shape in graph.inputs.values()
    )
    if graph.has_derivatives:
        from torch.fx.experimental.proxy_tensor import make_fx

        trace = make_fx(graph, BACKWARD, "symbolic", _allow_non_fake_inputs=True)
        module = trace(*example)
    program = torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
    _remove_unused(program)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it holds paths of this machine
        node.meta.pop("from_node", None)  # it holds addresses in memory, which differ each time
    _check(graph, program.module())
    return program


def _remove_unused(program: torch.export.ExportedProgram) -> None:
    """Remove the operations and the weights of a program that its results do not depend on."""
    from torch.export.graph_signature import InputKind

    program.graph.eliminate_dead_code()
    unused = {n.name: n for n in program.graph.nodes if n.op == "placeholder" and not n.users}
    signature = program.graph_signature
    for spec in list(signature.input_specs):
        if spec.kind != InputKind.USER_INPUT and spec.arg.name in unused:
            signature.input_specs.remove(spec)
            program.graph.erase_node(unused[spec.arg.name])
    used = {spec.target for spec in signature.input_specs}
    for stored in (program.state_dict, program.constants):
        for name in set(stored) - used:
            del stored[name]
    program.graph_module.recompile()


def _pt2(graph: Graph) -> bytes:
    program = _program(graph)
    program.example_inputs = None  # these would be pickled
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def _torchscript(graph: Graph) -> bytes:
    if graph.has_derivatives:
        raise ConfigError(
            "this posterior uses derivatives of the decoder, the likelihood or the prior, which "
            "TorchScript cannot trace: use --format onnx or --format pt2"
        )
    traced: Any = torch.jit.trace(graph, graph.example(), check_trace=False)  # type: ignore[no-untyped-call]
    traced = torch.jit.freeze(traced)  # type: ignore[no-untyped-call]
    _check(graph, traced)
    file = io.BytesIO()
    torch.jit.save(traced, file)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _onnx(graph: Graph) -> bytes:
    program = _program(graph)
    if any(node.target in ELEMENTARY for node in program.graph.nodes):
        program = program.run_decompositions(ELEMENTARY)
    with _quiet("torch.onnx", "onnxscript"):  # they report missing packages and skipped optimisations
        made = torch.onnx.export(
            program,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            optimize=len(program.graph.nodes) < LONG,
            custom_translation_table=onnx_operators(OPSET),
        )
    assert made is not None
    proto = made.model_proto
    _name_axes(proto.graph, graph)
    return proto.SerializeToString()


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Context in which the loggers with these names show only errors."""
    logs = [(log, log.level) for log in map(logging.getLogger, names)]
    for log, _ in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in logs:
            log.setLevel(level)


def _name_axes(proto: Any, graph: Graph) -> None:
    """Rename the axes of any length in an ONNX graph: they get the names that they have in `graph`.

    `proto` is the graph in the ONNX file, and `graph` is the function from which it was made.
    """
    names: dict[str, str] = {}
    for value in proto.input:
        for axis, name in zip(value.type.tensor_type.shape.dim, graph.inputs[value.name], strict=True):
            if isinstance(name, str):
                names[axis.dim_param] = name
    for value in (*proto.input, *proto.output, *proto.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in names:
                axis.dim_param = names[axis.dim_param]
