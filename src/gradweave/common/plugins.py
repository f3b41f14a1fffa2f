"""Plug-ins from installed packages: strategies, families of networks, games.

A package declares each as an entry point of one of the groups below. Plug-ins are looked up only if
a name is not one of Gradweave's, so that other commands do not have to wait for it. Each is
imported when it is used, so that a broken plug-in breaks nothing else. Names in files are never
imported: module names come only from a command, a call in Python or a package's metadata.
"""

import dataclasses
import importlib
import re
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from gradweave.errors import GradweaveError, OptionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
IMPORTED = "cannot be imported"
NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Valid names of plug-ins: those with which a specification can start, in canonical spelling."""
_OBJECT = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of plug-in."""

    what: str
    """Its name in messages."""
    group: str
    """The group of its entry points."""


SCHEDULER = Kind("scheduler", "gradweave.schedulers")
TOPOLOGY = Kind("family of networks", "gradweave.topologies")
ENVIRONMENT = Kind("environment", "gradweave.environments")


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A plug-in that an installed package declares; not imported yet."""

    kind: Kind
    name: str
    package: str
    """Name and version of the package, as ``snakes 1.0``."""
    entry: "EntryPoint"

    @property
    def label(self) -> str:
        """Its label in messages."""
        return f"{self.kind.what} {self.name!r:.60} of {self.package}"

    def load(self) -> Any:
        """Imports it.

        Raises:
            OptionError: it cannot be imported; any exception of its module is reported in one line.
        """
        return called(self.label, IMPORTED, self.entry.load)


def plugins(kind: Kind) -> list[Plugin]:
    """The declared plug-ins of a kind by name, without importing any."""
    from importlib.metadata import entry_points  # takes a tenth of a second the first time

    found = [
        Plugin(
            kind,
            entry.name,
            f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package",
            entry,
        )
        for entry in entry_points(group=kind.group)
    ]
    return sorted(found, key=lambda plugin: (plugin.name, plugin.package))


def find(kind: Kind, name: str) -> Plugin | None:
    """The plug-in with a name, or None if no package declares one.

    Raises:
        OptionError: several packages declare a plug-in with this name.
    """
    alike = [plugin for plugin in plugins(kind) if plugin.name == name]
    if len(alike) > 1:
        packages = " and ".join(plugin.package for plugin in alike)
        raise OptionError(f"{kind.what} {name!r:.60}: brought by {packages}; uninstall all but one")
    return alike[0] if alike else None


def names(kind: Kind) -> list[str]:
    """Names of the plug-ins of a kind, for messages."""
    return [plugin.name for plugin in plugins(kind)]


def each(
    kind: Kind, own: Collection[str], read: Callable[[Plugin], Any]
) -> Iterator[tuple[Plugin, Any]]:
    """Every plug-in of a kind with the result of reading it, or the error for its rejection.

    Args:
        kind: the kind of plug-in.
        own: Gradweave's names, which no plug-in may take.
        read: imports and checks a plug-in.
    """
    for plugin in plugins(kind):
        try:
            check_name(plugin.label, plugin.name, own)
            find(kind, plugin.name)
            yield plugin, read(plugin)
        except GradweaveError as error:
            yield plugin, error


def check_name(label: str, name: str, own: Collection[str]) -> None:
    """Rejects a name that Gradweave uses, or that no specification can start with.

    Raises:
        OptionError: names the plug-in.
    """
    if name in own:
        raise OptionError(f"{label}: refused, since {name} is Gradweave's own; give it another")
    if not NAME.fullmatch(name):
        raise OptionError(
            f"{label}: refused, since a name is small letters, digits and _, as in my_ring; "
            f"got {name!r:.60}"
        )


def names_object(text: str) -> bool:
    """Whether a text has the form ``module:object``.

    >>> names_object("my.rings:Snake"), names_object("ring:order=id"), names_object("torus:4x4")
    (True, False, False)
    """
    return _OBJECT.fullmatch(text) is not None


def name_of(given: Any) -> str:
    """The name of an object, or of its class or function: ``module:name``.

    >>> import fractions
    >>> name_of(fractions.Fraction), name_of(fractions.Fraction(1, 2))
    ('fractions:Fraction', 'fractions:Fraction')
    """
    of = getattr(given, "func", given)  # of a partial
    of = of if hasattr(of, "__name__") else type(of)
    name = of.__name__ if of.__name__.isidentifier() else "unnamed"
    return f"{of.__module__}:{name}"


def imported(text: str, what: str) -> Any:
    """Imports the object named by ``module:object``. Never call it with text from a file.

    Args:
        text: the module, as in ``import``, and a name in it.
        what: the expected kind of object, for messages.

    Raises:
        OptionError: it does not have this form, or cannot be imported.

    >>> imported("math:tau", "scheduler") > 6
    True
    >>> imported("maths:tau", "scheduler")
    Traceback (most recent call last):
    gradweave.errors.OptionError: scheduler maths:tau: cannot be imported: ModuleNotFoundError: No
    module named 'maths'; install it, or name its folder in PYTHONPATH
    """
    parts = _OBJECT.fullmatch(text)
    if parts is None:
        raise OptionError(f"{what}: expected module:object, as in my.rings:Snake, got {text!r:.60}")
    label = f"{what} {text:.120}"
    module = called(label, IMPORTED, lambda: importlib.import_module(parts["module"]))
    if not hasattr(module, parts["name"]):
        raise OptionError(f"{label}: the module has no {parts['name']}")
    return getattr(module, parts["name"])


def called(label: str, what: str, call: Callable[[], T]) -> T:
    """Calls other people's code and returns its result; an exception becomes one line.

    Args:
        label: whose code, for messages.
        what: the action, for messages.
        call: the function to call.

    Raises:
        OptionError: it raised an exception; Gradweave's own errors pass through.
    """
    try:
        return call()
    except GradweaveError:
        raise
    except (Exception, SystemExit) as error:
        remedy = (
            "; install it, or name its folder in PYTHONPATH"
            if isinstance(error, ModuleNotFoundError)
            else ""
        )
        said = next(iter(str(error).strip().splitlines()), "")
        raise OptionError(f"{label}: {what}: {type(error).__name__}: {said}{remedy}") from error
