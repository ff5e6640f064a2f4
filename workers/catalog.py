"""Which models this deployment offers: from a TOML file, entry points, and what is installed.

Nothing here imports an engine until `capability` or `load_engine` is called.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inclavate.generators import Capability, Generator

ENTRY_POINT_GROUP = "inclavate.engines"

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_ENGINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PACKAGE = "package:"


class CatalogError(ValueError):
    """The models file is wrong; the message names the file, the model, the key and what is wrong."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: `engine` is "module:Class", `options` what its `describe` and `load` are given."""

    model: str
    engine: str
    options: Mapping[str, Any]

    def capability(self) -> Capability:
        """What the model can do; imports the engine's module, not its libraries. May raise `CatalogError`."""
        return load_engine(self.engine).describe(self.model, self.options)


@dataclass(frozen=True, slots=True)
class Catalog:
    models: Mapping[str, Entry]


def load_catalog(path: Path) -> Catalog:
    """The models of a file whose `requires` are all installed. Raises `CatalogError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogError(f"{path}: cannot be read: {error}.") from error
    models = document.get("models", {})
    if not isinstance(models, dict):
        raise CatalogError(f"{path}: 'models' must be a table.")
    entries = (_entry(path, model, table) for model, table in models.items())
    return Catalog({entry.model: entry for entry in entries if entry is not None})


def choose(catalog: Catalog, wanted: Sequence[str]) -> list[Entry]:
    """The models of these names; all, where none is named. Raises `CatalogError` naming what there is."""
    for model in wanted:
        if model not in catalog.models:
            known = ", ".join(catalog.models) or "none"
            raise CatalogError(f"there is no model {model!r} (INCLAVATE_WORKER_MODELS, --model); there are: {known}.")
    return [catalog.models[model] for model in wanted or catalog.models]


def load_engine(engine: str) -> type[Generator]:
    """The class of a "module:Class". Raises `CatalogError` where there is none, or it is no engine."""
    module, _, name = engine.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CatalogError(f"engine {engine!r} cannot be imported: {error}.") from error
    if not (
        isinstance(found, type) and all(hasattr(found, part) for part in ("describe", "load", "generate", "unload"))
    ):
        raise CatalogError(f"engine {engine!r} has no describe, load, generate and unload.")
    return found


def _entry(path: Path, model: str, table: object) -> Entry | None:
    where = f"{path}: models.{model!r}"
    if not _MODEL.fullmatch(model):
        raise CatalogError(f"{where}: a model's name is 1 to 128 letters, digits, '.', '_', ':', '/' or '-'.")
    if not isinstance(table, dict):
        raise CatalogError(f"{where} must be a table.")
    options = {key: value for key, value in table.items() if key not in ("engine", "requires")}
    if not all(_is_installed(package) for package in _requires(where, table.get("requires", []))):
        return None
    engine = _engine(where, table.get("engine"))
    return Entry(model, engine, {key: _resolve(f"{where}: {key}", value) for key, value in options.items()})


def _requires(where: str, value: object) -> list[str]:
    if not (isinstance(value, list) and all(isinstance(name, str) and name.isidentifier() for name in value)):
        raise CatalogError(f"{where}: requires must be a list of importable top-level packages, not {value!r}.")
    return value


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def _engine(where: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise CatalogError(f"{where}: engine must be 'module:Class' or the name of an entry point, not {value!r}.")
    if ":" not in value:
        named = entry_points(group=ENTRY_POINT_GROUP, name=value)
        if not named:
            raise CatalogError(f"{where}: engine {value!r} is no entry point of the group {ENTRY_POINT_GROUP!r}.")
        value = next(iter(named)).value
    if not _ENGINE.fullmatch(value):
        raise CatalogError(f"{where}: engine must be 'module:Class', not {value!r}.")
    return value


def _resolve(where: str, value: Any) -> Any:
    """The value with every "package:NAME/path" in it, however deep, made a real path."""
    match value:
        case str() if value.startswith(_PACKAGE):
            return str(_package_path(where, value))
        case list():
            return [_resolve(where, item) for item in value]
        case dict():
            return {key: _resolve(f"{where}.{key}", item) for key, item in value.items()}
        case _:
            return value


def _package_path(where: str, value: str) -> Path:
    package, _, inside = value.removeprefix(_PACKAGE).partition("/")
    # Only a top-level name: looking up a dotted one would import its parent.
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise CatalogError(f"{where}: {value!r} names no installed package; is it in requires?")
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    found = (root / inside).resolve()
    if not found.is_relative_to(root) or not found.exists():
        raise CatalogError(f"{where}: {value!r} is not in the package {package!r}.")
    return found
