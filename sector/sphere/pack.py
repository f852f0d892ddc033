"""From a function to the blob that slaves' workers load, and from FILE.py:FUNC to a function."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from sector.errors import LocalIO, NotFound, UsageError
from sector.wire.sphere import BLOB_MAX

_OURS = ("sector", "cumulus")


def _installed_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(os.path.realpath(root) + os.sep for root in roots)


def _is_local(module: ModuleType, roots: tuple[str, ...]) -> bool:
    """Whether slaves cannot be expected to have this module."""
    file = getattr(module, "__file__", None)
    name = module.__name__.partition(".")[0]
    if not file or name in _OURS or name == "__main__":
        return False
    path = os.path.realpath(file)
    return not path.startswith(roots) and "site-packages" not in path and "dist-packages" not in path


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Functions of modules that are not installed are pickled with their code."""
    roots = _installed_roots()
    known = set(cloudpickle.list_registry_pickle_by_value())
    added = []
    for module in list(sys.modules.values()):
        try:
            local = isinstance(module, ModuleType) and _is_local(module, roots)
        except Exception:
            continue
        if local and module.__name__ not in known and sys.modules.get(module.__name__) is module:
            cloudpickle.register_pickle_by_value(module)
            added.append(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def pack(function: Callable[..., Any], params: Any, files: tuple[str | os.PathLike[str], ...] = ()) -> bytes:
    """The blob of a job: function, parameters, and small local files that appear in the worker's scratch
    directory. Raises `UsageError` for what cannot be called as f(data, ctx), cannot be pickled or is too
    large, `LocalIO`."""
    _check_call(function)
    contents: dict[str, bytes] = {}
    for name in files:
        base = os.path.basename(os.fspath(name))
        if base in contents:
            raise UsageError(f"two files are named {base}; in ctx.scratch there is room for one of them")
        try:
            contents[base] = Path(name).read_bytes()
        except OSError as error:
            raise LocalIO(f"{name}: {error.strerror}") from None
    try:
        with _by_value():
            blob: bytes = cloudpickle.dumps({"function": function, "params": params, "files": contents})
    except Exception as error:
        raise UsageError(
            f"the function cannot be sent: {type(error).__name__}: {error}",
            hint="open files, sockets, locks and clouds cannot go along; make them inside the function",
        ) from None
    if len(blob) > BLOB_MAX:
        raise UsageError(
            f"function, parameters and files have {len(blob)} bytes, more than {BLOB_MAX}",
            hint="store large data in the cloud and read it as an input",
        )
    return blob


def _check_call(function: Any) -> None:
    if not callable(function):
        raise UsageError(f"{function!r} is not a function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one in C may not tell
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"{name}{signature} cannot be called as {name}(data, ctx)",
            hint="a job's function takes two arguments: the data and a context",
        ) from None


def load_function(text: str) -> Callable[..., Any]:
    """The function for "FILE.py:FUNC" or "package.module:FUNC". Raises `UsageError`, `NotFound`."""
    place, mark, name = text.rpartition(":")
    if not mark or not place or not name.isidentifier():
        raise UsageError(f"{text!r} names no function", hint="write FILE.py:FUNCTION")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, name, None)
    if function is None:
        raise NotFound(f"{place} has no function {name}", hint="check the name")
    if not callable(function):
        raise UsageError(f"{name} in {place} is not a function")
    found: Callable[..., Any] = function
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"{path}: no such file on this machine", hint="check the name")
    name = re.sub(r"\W", "_", path.stem)
    if name in sys.modules:
        name = f"{name}_udf"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _unloadable(str(path), error) from None
    finally:
        sys.path.pop(0)
    return module


def _unloadable(what: str, error: BaseException) -> UsageError:
    """The error of a program that ends in another one while it is loaded."""
    hint = ""
    if isinstance(error, SystemExit):
        hint = "a program is loaded without being run: put its main part behind if __name__ == '__main__'"
    return UsageError(f"{what} cannot be loaded: {type(error).__name__}: {error}", hint=hint)


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"module {name} cannot be loaded: {error}") from None
    except (Exception, SystemExit) as error:
        raise _unloadable(f"module {name}", error) from None
    finally:
        sys.path.pop(0)
