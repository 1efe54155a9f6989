"""Looks into the input files of a spec that lie in buckets, before anything is created or any slice is taken.

What shows is a problem, as with local files (input_files.py). What cannot be looked into is said, and is none: this
process's credentials need not reach what the trainer's do. The look is bounded in time. It takes the newest files of
each set first, and what it does not reach is said as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import zip_longest
from pathlib import PurePosixPath

from .. import extras
from ..errors import BadInput, NoBucket, NotFound, Problem
from ..store.base import Entry, Store
from ..store.bounded import Bounded, TimeUp
from ..store.open import open_store
from ..store.reader import open_for_reading
from . import file_contents, maxtext_config
from .file_contents import READERS, SAMPLED
from .plan import data_kind
from .run_spec import RunSpec, is_bucket

_WILD = "*?["
_LARGEST = 256 * 2**20  # bytes of a tokenizer's file

Tell = Callable[[str], None]
Look = Callable[[], str]
"""Looks into one file; returns why it cannot be used, or an empty text."""


@dataclass(frozen=True)
class Patience:
    """How long a look may take, in seconds: in all, and until it says so, again and again; by a monotonic clock."""

    limit: float = 20.0
    quiet: float = 2.0
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Looked:
    """What a look found: problems, and a line for what it could not look into."""

    problems: tuple[Problem, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass
class _Group:
    """The files of one field of the spec, and how far the look is with them.

    Attributes:
      plan: lists them, the newest first: URI, and how to look into it.
      note: why only the list is looked at, if that is so.
      found: their number, once they are listed.
      why: why no further one can be looked into.
    """

    name: str
    uri: str
    plan: Callable[[], Sequence[tuple[str, Look]]]
    note: str = ""
    found: int | None = None
    looked: int = 0
    wrong: list[Problem] = field(default_factory=list)
    why: str = ""


def require(spec: RunSpec, tell: Tell) -> None:
    """`look`, for who starts a run; `tell` gets what could not be looked into as well.

    Raises:
      BadInput: every problem that was found.
    """
    looked = look(spec, tell)
    if looked.problems:
        raise BadInput(looked.problems)
    for line in looked.unread:
        tell(f"note: {line}")


def look(spec: RunSpec, tell: Tell = lambda text: None, patience: Patience = Patience()) -> Looked:
    """Look into the input files of a checked spec that lie in buckets; `tell` gets a line now and then meanwhile."""
    groups: list[_Group] = []
    bounded = Bounded(
        patience.limit, patience.quiet, lambda seconds: tell(_progress(groups, seconds, patience.limit)), patience.clock
    )
    groups += _groups(spec, _Buckets(bounded, patience.limit))
    with suppress(TimeUp):  # what is left then shows in the groups
        _look_into(groups)
    wrong = [problem for group in groups for problem in file_contents.shown(group.wrong, group.name, group.uri)]
    return Looked(tuple(wrong), tuple(_unread(groups, patience.limit)))


def _look_into(groups: Sequence[_Group]) -> None:
    planned: list[list[tuple[_Group, str, Look]]] = []
    for group in groups:
        with _noted(group):
            files = group.plan()
            group.found = len(files)
            planned.append([(group, uri, one) for uri, one in files])
    for turn in zip_longest(*planned):  # no set waits for the end of another one
        for group, uri, one in filter(None, turn):
            if not group.why:
                with _noted(group):
                    if why := one():
                        group.wrong.append(Problem(group.name, uri, why))
                    group.looked += 1


@contextmanager
def _noted(group: _Group) -> Iterator[None]:
    """Keep an error as the reason why the group is not looked into: the run may be right all the same."""
    try:
        yield
    except TimeUp:
        raise
    except NoBucket as error:
        group.found = 0
        group.wrong.append(Problem(group.name, group.uri, str(error)))
    except Exception as error:  # also what no library says that it raises
        group.why = str(error) or type(error).__name__


def _progress(groups: Sequence[_Group], seconds: float, limit: float) -> str:
    looked, found = sum(group.looked for group in groups), sum(group.found or 0 for group in groups)
    names = ", ".join(group.name for group in groups)
    return f"looking into {names} in buckets: {looked} of {found} files, {seconds:.0f} s of at most {limit:.0f} s"


def _unread(groups: Iterable[_Group], limit: float) -> Iterator[str]:
    """A line for each reason why fields are not, or not wholly, looked into."""
    fields: dict[str, list[str]] = {}
    for group in groups:
        why = group.why
        if not why and group.found is None:
            why = f"the bucket did not answer within {limit:g} s"
        if why:
            fields.setdefault(why, []).append(group.name)
    for why, names in fields.items():
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        yield f"{listed} {'are' if len(names) > 1 else 'is'} not looked into: {why}"
    for group in groups:
        if group.found and not group.why:
            if group.looked < group.found:
                yield f"{group.name}: {group.looked} of {group.found} files are looked into, the newest, in {limit:g} s"
            elif group.note and not group.wrong:
                yield f"{group.name}: its files are there, but are not looked into: {group.note}"


class _Buckets:
    """Reads buckets, within the time for all of it. Each call raises what a store's does, and TimeUp."""

    def __init__(self, bounded: Bounded, limit: float) -> None:
        self._call = bounded.call
        self._store: Callable[[str], Store] = cache(
            lambda bucket: bounded.call(lambda: open_store(f"gs://{bucket}", deadline=limit))
        )

    def matching(self, uri: str) -> list[tuple[str, Entry]]:
        """URI and entry of the files that a pattern names, the newest first; `*` stays within a folder, as in MaxText.

        Raises:
          ValueError: only the bucket itself understands this pattern.
        """
        if "**" in uri or "{" in uri:
            raise ValueError("`**` and `{}` in a pattern are understood by the trainer only")
        bucket, pattern = _split(uri)
        store = self._store(bucket)
        fixed = pattern[: next((i for i, letter in enumerate(pattern) if letter in _WILD), len(pattern))]
        depth = pattern.count("/")
        files = [
            entry
            for entry in self._call(lambda: store.list(fixed))
            if entry.name.count("/") == depth and (entry.name == pattern or PurePosixPath(entry.name).match(pattern))
        ]
        files.sort(key=lambda entry: (entry.updated, entry.name), reverse=True)
        return [(f"{store.uri}/{entry.name}", entry) for entry in files]

    def read(self, uri: str) -> bytes:
        """A whole file."""
        bucket, name = _split(uri)
        store = self._store(bucket)
        return self._call(lambda: store.read(name, _LARGEST)).data

    def read_from(self, uri: str, start: int) -> bytes:
        """A part of a file."""
        bucket, name = _split(uri)
        store = self._store(bucket)
        return self._call(lambda: store.read_from(name, start))


def _groups(spec: RunSpec, buckets: _Buckets) -> Iterator[_Group]:
    if spec.local.trainer:
        return  # it may read other formats
    if is_bucket(spec.model.tokenizer):
        why = "" if extras.installed("tokenizers") else _missing("tokenizers", "it")
        look_into = partial(_tokenizer, spec, buckets)
        yield _Group("model.tokenizer", spec.model.tokenizer, lambda: [(spec.model.tokenizer, look_into)], why=why)
    for name, uri in (("train", spec.data.train), ("eval", spec.data.eval)):
        if uri is None or not is_bucket(uri):
            continue
        kind = data_kind(uri)[1] or "json"
        library = READERS.get(kind)
        note = "" if library is None or extras.installed(library) else _missing(library, "such files")
        note = "the library for array_record reads local files only" if kind == "arrayrecord" else note
        tokens = name == "train" and spec.train.maxtext.get("tokenize_train_data") is False
        column = file_contents.Column(spec.data.text, text=not tokens)
        content = None if note else partial(_content, buckets, kind, column)
        yield _Group(f"data.{name}", uri, partial(_data, buckets, uri, content), note)


def _missing(library: str, what: str) -> str:
    return f"{library}, which reads {what}, is not installed here"


def _data(
    buckets: _Buckets, pattern: str, content: Callable[[str, Entry, bool], str] | None
) -> Sequence[tuple[str, Look]]:
    """The files of a data set. Without `content` only what the list says of them is looked at."""

    def one(uri: str, file: Entry, sampled: bool) -> str:
        if not file.size:
            return "is empty; write it again, or leave it out of the pattern"
        return content(uri, file, sampled) if content else ""

    files = buckets.matching(pattern)
    looks = [(uri, partial(one, uri, file, index < SAMPLED)) for index, (uri, file) in enumerate(files)]
    return looks or [(pattern, lambda: "matches no file")]


def _content(buckets: _Buckets, kind: str, column: file_contents.Column, uri: str, file: Entry, sampled: bool) -> str:
    stream = open_for_reading(partial(buckets.read_from, uri), file.size)
    return file_contents.data_problem(kind, uri, column, lambda _: stream, sampled=sampled)


def _tokenizer(spec: RunSpec, buckets: _Buckets) -> str:
    def read(name: str) -> bytes:
        try:
            return buckets.read(f"{spec.model.tokenizer.rstrip('/')}/{name}")
        except NotFound as error:
            raise FileNotFoundError(str(error)) from error

    vocabulary = maxtext_config.vocabulary(spec.model.name, spec.train.maxtext)
    return file_contents.tokenizer_problem(read, vocabulary, bool(spec.evaluate and spec.evaluate.heldout))


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name
