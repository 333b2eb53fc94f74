"""Every method and component of the package is found by its name."""

from pathlib import Path

import recmix
from recmix.methods.method import Component, Method
from recmix.methods.registry import COMPONENTS, METHODS, find_component, find_method
from recmix.reports.published import figures

ROOT = Path(recmix.__file__).parent


def defined(base):
    """The subclasses of a class, at any depth, that the package defines."""
    for cls in base.__subclasses__():
        yield from defined(cls)
        file = ROOT.joinpath(*cls.__module__.split(".")[1:]).with_suffix(".py")
        if cls.__module__.startswith("recmix.") and file.exists():  # another test adds a file elsewhere
            yield cls


def test_components_are_found_by_their_kind():
    """All but the correction, which is no component for a given encoder alone."""
    kinds = {cls.__dict__["kind"]: cls for cls in defined(Component) if "kind" in cls.__dict__}
    del kinds["correction"]
    assert kinds == {kind: cls for kind, cls in COMPONENTS.items() if cls in kinds.values()}
    assert all(find_component(kind) is cls for kind, cls in kinds.items())


def test_methods_are_found_by_their_name():
    names = {cls.__dict__["name"]: cls for cls in defined(Method) if cls.__dict__.get("name")}
    assert names == {name: cls for name, cls in METHODS.items() if cls in names.values()}
    assert all(find_method(name) is cls for name, cls in names.items())


def test_the_settings_of_a_method_are_those_of_the_published_tables():
    """One table has other numbers of steps for VLAE, 2 to 5."""
    for cls in METHODS.values():
        printed = {
            one.row.setting
            for one in figures()
            if one.row.label == cls.name.upper() and (cls.name, one.table) != ("vlae", "binary_mnist")
        }
        assert printed <= {None} or cls.tried == tuple(sorted(printed)), cls.name
