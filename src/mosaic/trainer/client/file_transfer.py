"""Copies of a run's files on this machine: single ones in the user's cache, all of them as a zip."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from mosaic.base.files import atomic_write, file_size, path_inside, stays_inside
from mosaic.base.formatting import format_size
from mosaic.contracts.errors import BadReply, NotAllowed
from mosaic.contracts.folder import validate_run_id

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import RunFile, TrainerClient

CACHE_DAYS = 30
"""How long the copies of a run are kept after their last use."""
MAX_EVENTS_MB = 200
MAX_COPIED_BYTES = 16 << 30
"""Of all files that one call brings from a trainer."""
MAX_PACKED_BYTES = 64 << 30
"""Of a run's files in a zip: as much as an import accepts."""
MAX_FILES = 20_000
OnBytes = Callable[[int], object]
"""Called with the number of bytes of each part."""


def download(
    trainer: TrainerClient,
    run_id: str,
    files: Iterable[RunFile],
    on_bytes: OnBytes = lambda _: None,
    is_append_only: bool = False,
) -> Path:
    """Bring files of a run into the cache, unless they are there already, and return their folder.

    Of files that are only appended to, what is new is added to the copy.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mosaic", "files")
    for unused in cache.glob("*"):
        if unused.stat().st_mtime < time.time() - CACHE_DAYS * 86_400:
            shutil.rmtree(unused, ignore_errors=True)
    files = list(files)
    _check_sizes(run_id, files, MAX_COPIED_BYTES)
    cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.mkdir(mode=0o700, exist_ok=True)  # in the workspace, too, they are readable by their owner only
    cache.chmod(0o700)
    folder = path_inside(cache, validate_run_id(run_id))
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    for file in files:
        path = path_inside(folder, file.name)
        try:
            if _is_same(path, file):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            start = file_size(path) if is_append_only else 0
            is_continued = 0 < start <= file.size_bytes
            with open(path, "ab") if is_continued else atomic_write(path) as target:
                for data in _read(trainer, run_id, file, start if is_continued else 0, is_append_only):
                    target.write(data)
                    on_bytes(len(data))
            os.utime(path, (time.time(), file.modified_at))
        except OSError as error:  # such as a folder where a file is expected, or a name that is too long
            raise NotAllowed(f"{file.name[:200]!r} cannot be copied to {cache}: {error.strerror or error}.") from None
    return folder


def _check_sizes(run_id: str, files: Sequence[RunFile], max_bytes: int) -> None:
    """Refuse more than this machine is to take from a trainer, before anything is written."""
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > max_bytes or len(files) > MAX_FILES:
        raise NotAllowed(
            f"Run {run_id} has {len(files):,} files there with {format_size(size_bytes)}; at most {MAX_FILES:,} with "
            f"{format_size(max_bytes)} are copied at once. Copy its folder by other means, such as rsync."
        )


def _read(
    trainer: TrainerClient, run_id: str, file: RunFile, start: int = 0, is_append_only: bool = False
) -> Iterator[bytes]:
    """Yield a file from `start` on, never more than was announced; what was appended meanwhile follows another time."""
    left = file.size_bytes - start
    for data in trainer.read_file(run_id, file.name, start):
        if len(data) > left and not is_append_only:
            raise BadReply(
                f"{file.name[:200]!r} of run {run_id} is larger than the {format_size(file.size_bytes)} that its "
                "trainer stated. If the run still writes it, try again; else do not trust that trainer."
            )
        yield data[:left]
        left -= len(data)
        if left <= 0 and is_append_only:
            break


def _is_same(path: Path, file: RunFile) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return status.st_size == file.size_bytes and abs(status.st_mtime - file.modified_at) < 1e-3


def copy_event_files(trainer: TrainerClient, run_id: str, folder: str) -> Path:
    """Bring a folder of TensorBoard's event files up to date in the cache, and return where it is."""
    files = trainer.files(run_id, f"{glob.escape(folder)}/*")
    size_mb = sum(file.size_bytes for file in files) / 1e6
    if size_mb > MAX_EVENTS_MB:
        raise NotAllowed(
            f"The event files have {size_mb:,.0f} MB, and only {MAX_EVENTS_MB} MB are copied from another machine. "
            f"There: tensorboard --logdir trainer/runs/{run_id}/{folder}"
        )
    copies = path_inside(download(trainer, run_id, files, is_append_only=True), folder)
    copies.mkdir(parents=True, exist_ok=True)
    return copies


def pack_run(
    trainer: TrainerClient, run_id: str, files: Iterable[RunFile], file: IO[bytes], on_bytes: OnBytes = lambda _: None
) -> None:
    """Write a zip that another workspace can import: one folder, named by the run; links inside of it stay links."""
    files = list(files)
    _check_sizes(run_id, files, MAX_PACKED_BYTES)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for entry in files:
            if entry.link_target and not stays_inside(PurePosixPath(entry.name).parts, entry.link_target):
                continue  # an import leaves it out, too
            modified_at = min(max(entry.modified_at, 315_619_200), 4_354_732_800)  # zip files know 1980 to 2107
            info = zipfile.ZipInfo(f"{run_id}/{entry.name}", time.localtime(modified_at)[:6])
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix: the upper half of external_attr is the file's mode
            info.external_attr = (stat.S_IFLNK | 0o777 if entry.link_target else stat.S_IFREG | 0o644) << 16
            if entry.link_target:
                archive.writestr(info, entry.link_target)
                continue
            info.file_size = entry.size_bytes  # whether 64-bit sizes are needed depends on it
            with archive.open(info, "w") as packed:
                for data in _read(trainer, run_id, entry):
                    packed.write(data)
                    on_bytes(len(data))


def import_runs(trainer: TrainerClient, path: Path) -> list[RunView]:
    """Import the run or the runs of a zip that `mosaic export --zip` made, or a run's folder."""
    with tempfile.TemporaryDirectory(prefix="mosaic-import-") as folder:
        parts = _extract_packed_runs(path, Path(folder)) if path.is_file() else [path]
        return [trainer.import_run(str(part)) for part in parts]


def _extract_packed_runs(path: Path, folder: Path) -> list[Path]:
    """Return the zips of single runs in a zip of a group, copied into `folder`; another file is returned as it is.

    They are stored without compression, so that copies are not larger than `path`; the daemon that imports them checks
    what is inside.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if not members or any(
                not member.filename.endswith(".zip") or member.compress_type != zipfile.ZIP_STORED for member in members
            ):
                return [path]
            parts = []
            for number, member in enumerate(members):
                parts.append(folder / f"{number}.zip")
                with archive.open(member) as source, open(parts[-1], "xb") as target:
                    shutil.copyfileobj(source, target)
            return parts
    except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError):
        return [path]  # the daemon says what is wrong with it
