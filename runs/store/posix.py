"""The store in a folder: a file appears under its name only when it is complete; its generation is its mtime.

The bytes are written to a temporary file and flushed. Then, under the root's lock, it gets the time of the commit,
strictly later than that of the file that it replaces, and is linked (create) or renamed (replace, put) to its name. A
process that is killed at any moment leaves the old file or the new one, and at most a temporary one, which no listing
shows.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG

from ..errors import BadInput, Changed, Damaged, Exists, NotFound, Unreachable
from .base import CHUNK, LARGEST, TEMPORARY, Entry, Item, check_name, is_listed, new_id, too_large

_LOCKED = 60.0  # seconds that a lock is waited for; it is held for one small write
_AGAIN = 0.005  # seconds between two tries


class PosixStore:
    """A store in a folder, for any number of processes and threads on machines that share the filesystem's locks."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = False  # the root was there, so if it is gone it was deleted, and is not made again

    @property
    def uri(self) -> str:
        return str(self._root)

    def read(self, name: str, largest: int = LARGEST) -> Item:
        self._refuse_link_out(name)
        with self._open(name) as file:
            stat = os.fstat(file.fileno())
            if stat.st_size > largest:
                raise too_large(f"{self.uri}/{name}", stat.st_size, largest)
            # A file is never changed under its name, so bytes and time from one descriptor belong together.
            return Item(file.read(largest), *_version(stat))

    def read_from(self, name: str, start: int) -> bytes:
        self._refuse_link_out(name)
        with self._open(name) as file:
            file.seek(start)
            return file.read(CHUNK)

    def create(self, name: str, data: bytes) -> str:
        def commit(temporary: Path, path: Path) -> str:
            generation = self._stamp(temporary, None)
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise Exists(f"{self.uri}/{name} exists already") from None
            return generation

        return self._write(name, data, commit)

    def replace(self, name: str, data: bytes, generation: str) -> str:
        def commit(temporary: Path, path: Path) -> str:
            before = _stat(path)
            self._expect(name, before, generation)
            written = self._stamp(temporary, before)
            temporary.rename(path)
            return written

        try:
            return self._write(name, data, commit)
        except NotFound as error:
            raise Changed(str(error)) from error

    def put(self, name: str, data: bytes) -> str:
        def commit(temporary: Path, path: Path) -> str:
            written = self._stamp(temporary, _stat(path))
            temporary.rename(path)
            return written

        return self._write(name, data, commit)

    def list(self, prefix: str = "") -> list[Entry]:
        folder = prefix.rpartition("/")[0]
        top = self._path(folder) if folder else self._root
        entries = []
        with self._named(prefix):
            for directory, _, files in os.walk(top, onerror=_raise_unless_gone):
                for file in files:
                    path = Path(directory, file)
                    name = path.relative_to(self._root).as_posix()
                    if name.startswith(prefix) and is_listed(name) and (stat := _stat(path)):
                        entries.append(Entry(name, stat.st_size, *_version(stat), digest=None))
        return sorted(entries, key=lambda entry: entry.name)

    def delete(self, name: str, generation: str | None = None) -> None:
        path = self._path(name)
        with self._named(name):
            if generation is None:
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                return
            self._expect(name, _stat(path), generation)
            with self._locked():
                self._expect(name, _stat(path), generation)
                path.unlink()

    def digest(self, name: str) -> str:
        with self._open(name) as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

    def now(self) -> datetime:
        with self._named(""), self._temporary(self._root, b"") as path:
            return _version(path.stat())[1]

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    @contextmanager
    def _open(self, name: str) -> Iterator[BufferedReader]:
        path = self._path(name)
        with self._named(name):
            try:
                # Without waiting: a FIFO that nobody writes to would block for ever.
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(descriptor, "rb") as file:  # noqa: PTH123 - not of a path
                    self._refuse_special(name, os.fstat(descriptor).st_mode)
                    self._seen = True
                    yield file
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound(f"{self.uri}/{name}: there is no such file") from None

    def _refuse_special(self, name: str, mode: int) -> None:
        if S_ISDIR(mode):
            raise IsADirectoryError
        if not S_ISREG(mode):
            raise Damaged(f"{self.uri}/{name}: is no regular file; elastic-tpu did not make it: move it away")

    def _refuse_link_out(self, name: str) -> None:
        """Refuse a link to a file elsewhere: what it holds is not of this run, and perhaps not for its reader."""
        path, root = os.path.realpath(self._path(name)), os.path.realpath(self._root)
        if not path.startswith(f"{root}/"):
            raise Damaged(f"{self.uri}/{name}: is a link to {path}, outside of the run; put the file itself there")

    def _write(self, name: str, data: bytes, commit: Callable[[Path, Path], str]) -> str:
        """Flush the bytes to a temporary file, then call `commit` under the lock to move it to its name."""
        path = self._path(name)
        with self._named(name), self._temporary(path.parent, data) as temporary, self._locked():
            return commit(temporary, path)

    @contextmanager
    def _temporary(self, folder: Path, data: bytes) -> Iterator[Path]:
        self._make(folder)
        path = folder / (TEMPORARY + new_id())
        try:
            # Not for the world to read: what a run logs and publishes is its owner's, and his group's.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - not of a path
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """Make a folder of the store. A root that was deleted is not made again, not even in part."""
        if not self._seen:
            self._root.mkdir(parents=True, exist_ok=True)
            self._seen = True
        if folder == self._root:
            return
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            if folder.parent == self._root:
                raise
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the root's lock: a file that no listing shows, and that only those who may write here can open.

        A folder can be locked by whoever may read it, who would keep all writers waiting.

        Raises:
          Unreachable: another process holds it for longer than `_LOCKED`; it is named.
        """
        path = self._root / (TEMPORARY + "lock")
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            lock = os.open(path, how)
        except FileNotFoundError:
            lock = os.open(path, how | os.O_CREAT, 0o600)
        try:
            writers = self._root.stat().st_mode & 0o022  # besides the owner: group, others
            mode = 0o600 | writers | writers << 1
            there = os.fstat(lock)
            if there.st_uid == os.getuid() and S_IMODE(there.st_mode) != mode:
                os.fchmod(lock, mode)
            deadline = time.monotonic() + _LOCKED
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Unreachable(f"{path}: locked for {_LOCKED:.0f} s by {_holder(there.st_ino)}") from None
                    time.sleep(_AGAIN)
            yield
        finally:
            os.close(lock)

    def _stamp(self, temporary: Path, before: os.stat_result | None) -> str:
        """Set the time of the commit on a temporary file, strictly later than that of the file it replaces.

        Args:
          before: of the file that it replaces; None if there must be none.

        Returns:
          The new generation.
        """
        os.utime(temporary)
        wanted = temporary.stat().st_mtime_ns
        if before is None:
            # The kernel's clock ticks every few milliseconds: without this, a file that is deleted and created again
            # within one tick would get its old generation back.
            above, wanted = -1, wanted + int(new_id()[:8], 16) % 1_000_000
        else:
            above = before.st_mtime_ns
            wanted = max(wanted, above + 1)
        for step in (0, 10**3, 10**6, 10**9, 2 * 10**9):  # filesystems keep times in ns, us, ms, s or units of 2 s
            os.utime(temporary, ns=(wanted + step, wanted + step))
            stat = temporary.stat()
            if stat.st_mtime_ns > above:
                break
        return _version(stat)[0]

    def _expect(self, name: str, stat: os.stat_result | None, generation: str) -> None:
        found = _version(stat)[0] if stat else None
        if found != generation:
            there = "no file" if found is None else found
            raise Changed(f"{self.uri}/{name}: generation {generation} was expected, {there} is there; read it again")

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Turn an error of the operating system into one that names the file and says who must act."""
        where = f"{self.uri}/{name}".rstrip("/")
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, FileNotFoundError) and not self._root.exists():
                raise NotFound(f"{self.uri}: the folder was deleted; nothing is written there again") from error
            if isinstance(error, PermissionError) or error.errno == errno.EROFS:
                raise BadInput(f"{where}: {reason}; give this user the permission to read and write there") from error
            if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
                raise BadInput(
                    f"{where}: {reason}; a file is where a folder should be, or the reverse: move it"
                ) from error
            if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
                raise BadInput(f"{where}: {reason}; choose a shorter or plainer name") from error
            raise Unreachable(f"{where}: {reason}") from error


def _holder(inode: int) -> str:
    """Who holds a lock, for people; the kernel knows it for processes of this machine (proc(5), /proc/locks)."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF
            if "->" not in fields and fields[5].endswith(f":{inode}"):
                return f"pid {fields[4]}"
    return "a process of another machine"


def _version(stat: os.stat_result) -> tuple[str, datetime]:
    """Generation and time of last write of a file."""
    return str(stat.st_mtime_ns), datetime.fromtimestamp(stat.st_mtime_ns // 1000 / 1e6, UTC)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _raise_unless_gone(error: OSError) -> None:
    """For `os.walk`: skip a folder that was deleted meanwhile; raise if it cannot be read: no listing is partial."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return
    raise error
