"""Which runs were started by whom: small records below an output (docs/contracts.md 2).

By them every stage of a holder finds the same run of a spec, and a release all runs that its holder started.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from ..errors import BadInput, Exists, NotFound
from ..store import records
from ..store.base import Store


class Starts:
    """The records below an output."""

    def __init__(self, output: Store) -> None:
        self._output = output

    def run_of(self, holder: str, name: str) -> str:
        """URI of the run that this holder of a pipeline started from the spec with this `run.name`, as written there.

        Raises:
          NotFound: there is no record.
          BadInput: it is damaged.
        """
        return self._uri(_of_pipeline(holder, name))

    def note(self, holder: str, name: str, uri: str) -> str:
        """Record a run of a pipeline's holder; returns the URI of the one that is recorded, by whoever came first."""
        record = _of_pipeline(holder, name)
        with suppress(Exists):
            self._output.create(record, records.dump({"run": uri, "holder": holder}))
            return uri
        return self._uri(record)

    def runs_of(self, holder: str) -> list[str]:
        """URIs of all runs that this holder of a pipeline started here. Raises BadInput: a record is damaged."""
        found = []
        for entry in self._output.list(f"{_folder(holder)}/"):
            with suppress(NotFound):
                found.append(self._uri(entry.name))
        return found

    def last_of_person(self, who: str, name: str) -> str:
        """URI of the last run that a person started from a spec; raises as `run_of`."""
        return self._uri(_of_person(who, name))

    def note_person(self, who: str, name: str, uri: str) -> None:
        """Record the run that a person started last from a spec."""
        self._output.put(_of_person(who, name), records.dump({"run": uri, "holder": who}))

    def any(self) -> bool:
        """Whether somebody has started a run here."""
        return bool(self._output.list(".starts/"))

    def _uri(self, record: str) -> str:
        """Below this output, which may have been moved since."""
        found = records.load(self._output.read(record).data, f"{self._output.uri}/{record}").get("run")
        name = found.rpartition("/")[2] if isinstance(found, str) else ""
        if name in ("", ".", ".."):  # not a folder of this output
            cure = "delete it, and give the directory of a run to go on with"
            raise BadInput(f"{self._output.uri}/{record}: names no run; {cure}")
        return f"{self._output.uri}/{name}"


def _of_pipeline(holder: str, name: str) -> str:
    return f"{_folder(holder)}/{_short(name)}.json"


def _of_person(who: str, name: str) -> str:
    both = f"{who}\n{name}"
    return f".starts/{_short(both)}.json"


def _folder(holder: str) -> str:
    return f".starts/{_short(holder)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
