"""The process that talks to the Hub: `python -m mosaic.hub.transfer`, a request on stdin, JSON lines on stdout.

It is a process of its own because `huggingface_hub` takes a while to import and waits for ever in places; this one
ends itself when the Hub has been silent for too long. The token comes in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.hub import cleanrl_repo
from mosaic.hub.bundle import HubBundle, build_bundle, content_size_bytes
from mosaic.hub.description import (
    CARD_FILE,
    DESCRIPTION_FILE,
    EVALUATION_FILE,
    MODEL_SUFFIX,
    VIDEO_FILE,
    PolicyDescription,
    check_file,
    check_repo_path,
)
from mosaic.hub.problems import explain_hub_error

Json = dict[str, Any]
MIN_BYTES_PER_S = 50_000
"""A file may take as long as it takes on such a line."""
MAX_TEXT_BYTES = 4 << 20


class ReplyWriter:
    """Says how far it is, one line each, and gives up when nothing was said for too long."""

    def __init__(self, descriptor: int, timeout_s: float) -> None:
        self._descriptor = descriptor
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    def send(self, kind: str, **facts: Any) -> None:
        with self._lock:
            os.write(self._descriptor, json.dumps({"kind": kind, **facts}).encode() + b"\n")

    def fail(self, error: MosaicError) -> None:
        self.send("failed", error=type(error).__name__, sentence=str(error))

    @contextmanager
    def time_limit(self, size_bytes: int = 0) -> Iterator[None]:
        """Around each thing that the Hub is asked for."""
        limit_s = self._timeout_s + size_bytes / MIN_BYTES_PER_S
        timer = threading.Timer(limit_s, self._abort, [limit_s])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _abort(self, limit_s: float) -> None:
        self.fail(MosaicError(f"{_endpoint()} did not answer within {limit_s:.0f} seconds. Try again later."))
        os._exit(1)  # the main thread waits for a socket and cannot be told


def push(request: Json, writer: ReplyWriter) -> Json:
    folder = RunFolder(request["folder"])
    evaluation = RunFolder(request["evaluation"]) if request.get("evaluation") else None
    model = Path(request["model"]) if request.get("model") else None
    bundle = build_bundle(
        folder, Path(request["checkpoint"]), request["repo"], evaluation, bool(request["has_video"]), model
    )
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="mosaic-rl")
    with writer.time_limit():
        # Without --private, an organisation's own default holds.
        repo = api.create_repo(request["repo"], private=True if request.get("is_private") else None, exist_ok=True)
    repo_id = repo.repo_id
    operations: list[Any] = _deletions(api, repo_id, bundle, writer)
    total, done = bundle.size_bytes, 0
    for name, content in bundle.files.items():
        writer.send("progress", file=name, done_bytes=done, total_bytes=total)
        size = content_size_bytes(content)
        operation = CommitOperationAdd(name, content)
        with writer.time_limit(size):
            # One by one, so that there is something to tell. What the Hub has already is not sent again.
            api.preupload_lfs_files(repo_id, [operation], num_threads=1, free_memory=False)
        operations.append(operation)
        done += size
    policy = bundle.description
    with writer.time_limit(done):
        made = api.create_commit(
            repo_id, operations, commit_message=f"{policy.algo} on {policy.env_id}, step {policy.step}"
        )
    writer.send("progress", file="", done_bytes=total, total_bytes=total)
    return {
        "repo": repo_id,
        "url": f"{_endpoint()}/{repo_id}",
        "commit": made.oid,
        "step": policy.step,
        "files": sorted(bundle.files),
        "size_bytes": total,
        "left_out": list(bundle.omissions),
    }


def _deletions(api: Any, repo_id: str, bundle: HubBundle, writer: ReplyWriter) -> list[Any]:
    """What an earlier push left and this one does not bring. In a repository that is not ours nothing is removed."""
    from huggingface_hub import CommitOperationDelete

    with writer.time_limit():
        there = [entry.rfilename for entry in api.model_info(repo_id).siblings or ()]
    if DESCRIPTION_FILE not in there:
        return []
    ours = [name for name in there if name in (EVALUATION_FILE, VIDEO_FILE) or name.startswith("checkpoints/")]
    ours += [name for name in there if name.endswith(MODEL_SUFFIX) and "/" not in name]
    return [CommitOperationDelete(name) for name in ours if name not in bundle.files]


def pull(request: Json, writer: ReplyWriter) -> Json:
    from huggingface_hub import HfApi

    api = HfApi(library_name="mosaic-rl")
    with writer.time_limit():
        info = api.model_info(request["repo"], revision=request.get("revision"), files_metadata=True)
    listed = {entry.rfilename: entry for entry in info.siblings or ()}
    download = HubDownload(api, request["repo"], str(info.sha), Path(request["into"]), listed, writer)
    if DESCRIPTION_FILE in listed:
        policy = _parse_description(download.read_text(DESCRIPTION_FILE))
    else:
        policy = cleanrl_repo.describe_repo(
            request["repo"], sorted(listed), download.read_text(CARD_FILE) if CARD_FILE in listed else ""
        )
    wanted = list(policy.files) or [str(policy.model)]
    download.fetch([*wanted, CARD_FILE] if CARD_FILE in listed else wanted)
    for name, said in policy.files.items():
        check_file(download.into / name, said, name)
    return {
        "repo": request["repo"],
        "url": f"{_endpoint()}/{request['repo']}",
        "commit": str(info.sha),
        "policy": policy.model_dump(mode="json"),
        "size_bytes": download.done_bytes,
    }


def _parse_description(text: str) -> PolicyDescription:
    from pydantic import ValidationError

    from mosaic.contracts.model import format_validation_error

    try:
        policy = PolicyDescription.model_validate_json(text)
    except ValidationError as error:
        raise BadInput(
            f"The repository's {DESCRIPTION_FILE} cannot be used: {format_validation_error(error)}"
        ) from None
    missing = [name for name in [*policy.checkpoint_files(), policy.model] if name and name not in policy.files]
    if missing or (policy.step is None and policy.model is None):
        raise BadInput(f"The repository's {DESCRIPTION_FILE} lists no {missing[0] if missing else 'policy'}.")
    return policy


class HubDownload:
    """Files of one revision, each checked against what the Hub says of it."""

    def __init__(self, api: Any, repo: str, sha: str, into: Path, entries: dict[str, Any], writer: ReplyWriter) -> None:
        self.into = into
        self.done_bytes = 0
        self._api = api
        self._repo = repo
        self._sha = sha
        self._entries = entries
        self._writer = writer

    def read_text(self, name: str) -> str:
        if (self._entries[name].size or 0) > MAX_TEXT_BYTES:
            raise BadInput(f"{name} of {self._repo} is too large to be what it says. It is not downloaded.")
        return self._download_file(name).read_text(encoding="utf-8", errors="replace")

    def fetch(self, names: list[str]) -> None:
        for name in names:
            if name not in self._entries:
                raise BadInput(f"The repository {self._repo} lacks {name}. Pull another revision: --revision SHA")
        total = sum(self._entries[name].size or 0 for name in names)
        for name in names:
            self._writer.send("progress", file=name, done_bytes=self.done_bytes, total_bytes=total)
            self.done_bytes += self._download_file(name).stat().st_size
        self._writer.send("progress", file="", done_bytes=total, total_bytes=total)

    def _download_file(self, name: str) -> Path:
        entry = self._entries[name]
        try:
            check_repo_path(name)
        except ValueError:
            raise BadInput(f"The repository {self._repo} holds the path {name!r}, which is refused.") from None
        with self._writer.time_limit(entry.size or 0):
            path = Path(self._api.hf_hub_download(self._repo, name, revision=self._sha, local_dir=self.into))
        if self.into.resolve() not in path.resolve().parents:
            raise BadInput(f"The repository {self._repo} holds the path {name!r}, which is refused.")
        cleanrl_repo.check_against_hub(path, name, entry)
        return path


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def main() -> int:
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    request = json.load(sys.stdin)
    teller = ReplyWriter(replies, float(request["timeout_s"]))
    try:
        try:
            import huggingface_hub  # noqa: F401 - asked for here, so that it is missed in one place
        except ImportError as error:
            raise MissingExtra(f"The Hugging Face Hub needs {error.name}: pip install 'mosaic-rl[hub]'.") from None
        verb = {"push": push, "pull": pull}[request["do"]]
        try:
            done = verb(request, teller)
        except MosaicError:
            raise
        except Exception as error:
            problem = explain_hub_error(error, request["repo"], _endpoint(), is_push=request["do"] == "push")
            if problem is None:
                raise
            raise problem from error
    except MosaicError as error:
        teller.fail(error)
        return 1
    teller.send("done", **done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
