"""YAML files as documents: a user's by the rules of YAML 1.2, stored ones by those of PyYAML, which wrote them.

In YAML 1.1, which PyYAML implements, ``1:30`` is 90, ``010`` is 8, and ``on`` and ``no`` are truth values. In YAML 1.2
``010`` is 10, and the others are text. Merge keys (``<<``) are understood in both.

Whatever the bytes are, the result is a document or `BadInput` that shows the line. Limits bound time and memory: a few
lines of aliases may stand for billions of values.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.reader import ReaderError

from ..errors import BadInput, Damaged, NotFound
from ..masking import looks_secret
from ..store.open import open_store
from .run_spec import SPEC_SUFFIXES, is_bucket, is_spec_name

LARGEST = 2**20
"""Bytes of a file."""

_TOO_LARGE = f"larger than {LARGEST // 2**20} MiB"
_DEEPEST = 64
_LONGEST_LINE = 100_000  # characters that are looked at
_LONGEST_NUMBER = 1000  # characters; Python does not print whole numbers of more than 4300 digits
_TAG = "tag:yaml.org,2002:"


def read_file(source: str) -> bytes:
    """The bytes of a spec or profile (local path or bucket URI), at most `LARGEST`.

    Raises:
      BadInput: it cannot be read, is too large, is no regular file, or is not named as a spec.
    """
    try:
        if is_bucket(source):
            folder, _, name = source.rpartition("/")
            data = _read_object(folder, name)
        else:
            data = _read_regular(Path(source).expanduser())
    except (OSError, NotFound, ValueError, RuntimeError) as error:  # ValueError: not a path; RuntimeError: no such user
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{source}: cannot read this spec ({why}); give the path of a YAML file") from error
    if not is_spec_name(source):
        raise BadInput(f"{source}: a spec's name ends in {' or '.join(SPEC_SUFFIXES)}; rename it")
    return data


def parse(data: bytes, source: str) -> dict[str, Any]:
    """The document of a user's YAML: a mapping with whatever keys and values the user wrote.

    Raises:
      BadInput: it is no YAML, exceeds a limit, has a key twice, or is not a mapping; the message shows the line.
    """
    document = _load(_Core, data, source)
    if document is None:
        raise BadInput(f"{source}: is empty; write the sections of a run spec (run, platform, slices, ...)")
    if not isinstance(document, dict):
        what = "a list" if isinstance(document, list) else f"only {str(document)[:40]!r}"
        raise BadInput(f"{source}: holds {what}; a mapping of sections (run, platform, slices, ...) was expected")
    return document


def parse_stored(data: bytes, source: str) -> Any:
    """What `yaml.safe_dump` wrote, exactly as it was: 1.2 would take ``089`` or ``3e-5``, unquoted text, for numbers.

    Raises:
      BadInput: it is no YAML, or exceeds a limit.
    """
    return _load(_Limited, data, source)


def _read_regular(path: Path) -> bytes:
    # Without waiting: a FIFO that nobody writes to would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - not of a path
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("a folder" if stat.S_ISDIR(mode) else "not a regular file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(_TOO_LARGE)
    return data


def _read_object(folder: str, name: str) -> bytes:
    try:
        return open_store(folder).read(name, LARGEST).data
    except Damaged as error:  # of its size; nothing is downloaded
        raise ValueError(_TOO_LARGE) from error


def _load(kind: type[_Limited], data: bytes, source: str) -> Any:
    try:
        utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return kind(data.decode("utf-16" if utf_16 else "utf-8-sig"), source.rpartition("/")[2]).document()
    except UnicodeDecodeError as error:
        why = f"not text in UTF-8 (byte {error.start}: {error.reason})"
    except yaml.YAMLError as error:
        _hide_secrets(error)
        why = str(error)  # with its line breaks: it shows the line, with a caret below the column
    raise BadInput(f"{source}: not readable as YAML:\n{textwrap.indent(why, '  ')}")


def _hide_secrets(error: yaml.YAMLError) -> None:
    """Take out of the error the lines that hold a credential; where they are stays."""
    for mark in (getattr(error, "context_mark", None), getattr(error, "problem_mark", None)):
        if mark is None or mark.buffer is None:
            continue
        begin = max(mark.buffer.rfind(end, 0, mark.pointer) for end in "\n\r\0") + 1
        line = re.split("[\n\r\0]", mark.buffer[begin : begin + _LONGEST_LINE], maxsplit=1)[0]
        names = re.findall(r"([\w.-]{1,100})['\"]?\s*:", line)
        if looks_secret("", line) or any(looks_secret(name, "x") for name in names):
            mark.buffer = None  # no snippet, then


class _Limited(yaml.SafeLoader):
    """PyYAML's loader with limits; a key that stands twice in a mapping is refused."""

    most_values = 100_000  # more than in a user's file: a stored spec holds a spec, its profile and the defaults

    def __init__(self, text: str, name: str) -> None:
        try:
            super().__init__(text)
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise yaml.YAMLError(
                f"the character #x{ord(text[error.position]):04x} is not allowed, line {line}"
            ) from error
        self.name = name  # what errors call the file
        self._values = self._depth = 0
        self._sizes: dict[int, int] = {}  # by id of a finished node: values in it, itself too

    def document(self) -> Any:
        """The only document of the text, None if there is none. Raises YAMLError."""
        try:
            return self.get_single_data()
        except (
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as error:  # the scanner: of `\Uffffffff` and `%YAML 9...9.1`
            raise yaml.YAMLError(f"{error}, line {self.line + 1}") from error

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark, before = event.start_mark, self._values
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ComposerError(None, None, f"nested more than {_DEEPEST} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._sizes[id(node)] = self._values - before
        elif id(node) in self._sizes:
            self._values += self._sizes[id(node)]  # each alias counts as what it stands for
        else:
            raise ComposerError(None, None, f"{event.anchor!r} contains itself", mark)
        if self._values > self.most_values:
            why = f"holds more than {self.most_values:,} values, with what aliases stand for"
            raise ComposerError(None, None, why, mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], Any] = {}  # the first key node
        for key, _ in node.value:
            first = seen.setdefault((key.tag, key.value), key) if isinstance(key, ScalarNode) else key
            if first is not key:
                twice = f"the key {key.value[:80]!r} stands twice, here"
                raise ComposerError(twice, first.start_mark, "and here; remove one", key.start_mark)
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # the value does not fit its tag
            raise ConstructorError(None, None, str(error), node.start_mark) from error


class _Core(_Limited):
    """The core schema of YAML 1.2: null, truth values, numbers, text, lists, mappings. Other tags are refused."""

    most_values = 10_000
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own interface
    yaml_constructors = {  # noqa: RUF012
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (None, f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map")
    }


def _whole(text: str) -> int:
    return int(text[2:], 8 if text[1] == "o" else 16) if text[:2] in ("0o", "0x") else int(text)


def _real(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _add(name: str, pattern: str, begins: Sequence[str], convert: Callable[[str], Any]) -> None:
    """Add a type of the core schema (https://yaml.org/spec/1.2.2/#103-core-schema); what is added first wins."""
    whole = re.compile(rf"(?:{pattern})\Z")

    def construct(loader: yaml.SafeLoader, node: ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        if not whole.match(text):
            raise ValueError(f"{text[:80]!r} is no {name}")
        if len(text) > _LONGEST_NUMBER:
            raise ValueError(f"a number of more than {_LONGEST_NUMBER:,} digits")
        return convert(text)

    _Core.add_implicit_resolver(_TAG + name, whole, list(begins))
    _Core.add_constructor(_TAG + name, construct)


_add("null", "|~|null|Null|NULL", ["", *"~nN"], lambda _: None)
_add("bool", "true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text[0] in "tT")
_add("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", _whole)
_add(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+.0123456789",
    _real,
)
_Core.add_implicit_resolver(f"{_TAG}merge", re.compile(r"<<\Z"), ["<"])
