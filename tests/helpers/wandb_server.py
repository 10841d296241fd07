"""A W&B server on loopback: enough GraphQL, file stream and uploads for the real client, and ways to fail.

Modes: `ok`, `delay` (each answer takes a moment), `hang` (no answer), `drop` (the connection breaks in the middle of
the upload), or an HTTP status such as 401. A server that refuses is one that is not there: `refusing_url`.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

KEY = "0123456789abcdef0123456789abcdef01234567"
ENTITY = "loopback"
DELAY_S = 0.05

Json = dict[str, Any]


class WandbServer:
    def __init__(self, mode: str | int = "ok") -> None:
        self.mode = mode
        self.runs: dict[str, Json] = {}
        """The variables of UpsertBucket, by run id."""
        self.lines: dict[str, dict[int, Json]] = {}
        """History by id and line number."""
        self.events: dict[str, list[Json]] = {}
        """System metrics by run id."""
        self.summaries: dict[str, Json] = {}
        self.files: dict[str, bytes] = {}
        """Uploaded files, by name."""
        self.artifacts: list[Json] = []
        self.finished: set[str] = set()
        self.keys: set[str] = set()
        self.calls: list[str] = []
        self.broken = threading.Event()
        """Set when `drop` has closed a connection."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Quiet(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="wandb-server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> WandbServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def history(self, run_id: str) -> list[Json]:
        return [row for _, row in sorted(self.lines.get(run_id, {}).items())]

    def wait(self, seconds: float) -> None:
        self._closing.wait(seconds)

    # --- answers

    def stream(self, path: str, body: Json) -> Json:
        run_id = path.split("/")[-2]
        files = body.get("files") or {}
        with self._lock:
            for name, part in files.items():
                if not name.endswith((".json", ".jsonl")):
                    continue  # what the program printed
                rows = [json.loads(line) for line in part["content"]]
                if name == "wandb-history.jsonl":
                    lines = self.lines.setdefault(run_id, {})
                    lines.update({part["offset"] + i: row for i, row in enumerate(rows)})
                elif name == "wandb-events.jsonl":
                    self.events.setdefault(run_id, []).extend(rows)
                elif name == "wandb-summary.json":
                    self.summaries[run_id] = rows[-1]
            if body.get("complete"):
                self.finished.add(run_id)
        return {"exitcode": None, "limits": {}}

    def answer(self, operation: str, query: str, variables: Json) -> Json:
        answer = _ANSWERS.get(operation)
        if answer is not None:
            with self._lock:
                return answer(self, variables)
        if "viewer" in query:
            return {"viewer": {"id": "u", "entity": ENTITY, "username": ENTITY, "teams": {"edges": []}, "flags": "{}"}}
        return {}

    def upsert(self, variables: Json) -> Json:
        run_id = variables["name"]
        fields = {key: value for key, value in variables.items() if value is not None}
        is_new = run_id not in self.runs
        self.runs.setdefault(run_id, {}).update(fields)
        project = {"id": "p", "name": variables.get("project") or "p", "entity": {"id": "e", "name": ENTITY}}
        bucket = {
            "id": f"id-{run_id}",
            "name": run_id,
            "displayName": self.runs[run_id].get("displayName") or run_id,
            "description": "",
            "config": "{}",
            "sweepName": None,
            "historyLineCount": len(self.lines.get(run_id, {})),
            "project": project,
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}

    def create_run_files(self, variables: Json) -> Json:
        files = [{"name": name, "uploadUrl": self._upload(name)} for name in variables.get("files") or []]
        return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}

    def create_artifact(self, variables: Json) -> Json:
        given = variables["input"]
        self.artifacts.append(given)
        artifact = {"id": f"artifact-{len(self.artifacts)}", "state": "PENDING"}
        return {"createArtifact": {"artifact": {**artifact, "artifactSequence": {"latestArtifact": None}}}}

    def create_manifest(self, variables: Json) -> Json:
        name = "wandb_manifest.json"
        file = {"id": "f", "name": name, "displayName": name, "uploadUrl": self._upload(name), "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": "manifest-1", "file": file}}}

    def create_artifact_files(self, variables: Json) -> Json:
        specs = variables.get("artifactFiles") or variables["input"]["artifactFiles"]
        edges = []
        for spec in specs:
            name = spec["name"]
            node = {
                "id": "f", "name": name, "displayName": name, "uploadUrl": self._upload(name), "uploadHeaders": [],
                "storagePath": f"path/{name}", "artifact": {"id": "artifact-1"}, "uploadMultipartUrls": None,
            }  # fmt: skip
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def commit_artifact(self, variables: Json) -> Json:
        return {"commitArtifact": {"artifact": {"id": variables.get("artifactID"), "digest": ""}}}

    def _upload(self, name: str) -> str:
        return f"{self.url}/upload/{quote(name)}"


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may disconnect at any time."""


_ANSWERS = {
    "UpsertBucket": WandbServer.upsert,
    "CreateRunFiles": WandbServer.create_run_files,
    "CreateArtifact": WandbServer.create_artifact,
    "CreateArtifactManifest": WandbServer.create_manifest,
    "CreateArtifactFiles": WandbServer.create_artifact_files,
    "CommitArtifact": WandbServer.commit_artifact,
}


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._serve(lambda _: {})

        def do_PUT(self) -> None:
            self._serve(self._uploaded)

        def do_POST(self) -> None:
            self._serve(self._posted)

        def _serve(self, answer: Any) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            server.calls.append(f"{self.command} {self.path}")
            if server.mode == "hang":
                server.wait(60.0)
                self.close_connection = True
                return
            if server.mode == "delay":
                server.wait(DELAY_S)
            if server.mode == "drop" and "file_stream" in self.path:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                server.broken.set()
                return
            if isinstance(server.mode, int):
                self._reply({"errors": [{"message": f"status {server.mode} requested by the test"}]}, server.mode)
                return
            self._reply(answer(data))

        def _uploaded(self, data: bytes) -> Json:
            server.files[self.path.removeprefix("/upload/")] = data
            return {}

        def _posted(self, data: bytes) -> Json:
            if "/otel/" in self.path:  # what the client tells of itself
                return {}
            body = json.loads(data or b"{}")
            if "file_stream" in self.path:
                return server.stream(self.path, body)
            server.keys.add(self.headers.get("Authorization", ""))
            query = body.get("query", "")
            operation = body.get("operationName") or ""
            server.calls.append(operation)
            return {"data": server.answer(operation, query, body.get("variables") or {})}

        def _reply(self, body: Json, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextmanager
def refusing_url() -> Iterator[str]:
    """Yields the URL of a bound port that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def files_with(root: Path, text: str) -> list[Path]:
    """The files below a folder that contain a text, such as a key."""
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
