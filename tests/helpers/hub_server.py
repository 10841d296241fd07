"""A fake Hugging Face Hub on loopback: the part of its API that `huggingface_hub` uses for models.

Repositories are in memory. `faults` maps the start of a path to a status, `hang` (no reply) or `drop` (half a reply).
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_canary-of-the-tests"
USER = "tester"
LARGE = (".safetensors", ".npz", ".mp4", ".cleanrl_model")

Json = dict[str, Any]
Files = dict[str, bytes]


@dataclass
class Repo:
    is_private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    """By hash, oldest first."""
    messages: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def files(self) -> Files:
        return self.commits[self.head]

    def add(self, files: Files, message: str) -> str:
        digest = hashlib.sha1(f"{len(self.commits)}{message}".encode()).hexdigest()
        self.commits[digest] = files
        self.messages.append(message)
        return digest


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        """Objects of large files, by sha256."""
        self.faults: dict[str, int | str] = {}
        self.requests: list[str] = []
        self.is_ending = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables that direct a process here. The chunk store of the real Hub is not implemented."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

    def put(self, repo_id: str, files: Files) -> Repo:
        """Adds a commit of another user."""
        repo = self.repos.setdefault(repo_id, Repo())
        repo.add(files, "by another user")
        return repo

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None: ...

    # --- requests

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{method} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = next((fault for start, fault in self.server.faults.items() if path.startswith(start)), None)
        if fault == "hang":
            self.server.is_ending.wait(30)
            self.close_connection = True
        elif fault == "drop":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            self.close_connection = True
        elif isinstance(fault, int):
            self._json({"error": "requested by the test"}, fault)
        else:
            self._route(method, path, body)

    def _route(self, method: str, path: str, body: bytes) -> None:
        parts = path.strip("/").split("/")
        if method == "PUT" and parts[0] == "large":
            self._store(parts[1], body)
        elif method == "POST" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif path.endswith("/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._model("/".join(parts[2:4]), parts[4:], body)
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]), method)
        else:
            self._json({"error": f"not found: {path}"}, 404)

    # --- replies

    def _json(self, data: Any, status: int = 200, **headers: str) -> None:
        self._bytes(json.dumps(data).encode(), status, {"Content-Type": "application/json", **headers})

    def _bytes(self, content: bytes, status: int, headers: dict[str, str], is_head: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def _create(self, body: Json) -> None:
        owner = body.get("organization") or USER
        repo_id = f"{owner}/{body['name']}"
        url = f"{self.server.url}/{repo_id}"
        if repo_id in self.server.repos:
            self._json({"error": "You already created this model repo", "url": url}, 409)
        elif owner != USER:
            self._json({"error": f"You don't have the rights to create a model under {owner}"}, 403)
        else:
            repo = self.server.repos[repo_id] = Repo(is_private=body.get("visibility") == "private")
            repo.add({".gitattributes": b""}, "initial commit")
            self._json({"url": url})

    def _validate(self, content: str) -> None:
        import yaml  # huggingface_hub brings it

        front = content.split("---", 2)
        try:
            metadata = yaml.safe_load(front[1])
            assert all(isinstance(tag, str) for tag in metadata["tags"])
            for entry in metadata.get("model-index", []):
                for result in entry["results"]:
                    assert result["task"]["type"]
                    assert result["dataset"]["type"]
                    assert all(metric["type"] and metric["value"] is not None for metric in result["metrics"])
        except (yaml.YAMLError, IndexError, KeyError, TypeError, AssertionError) as error:
            self._json({"errors": [{"message": repr(error)}]}, 400)
        else:
            self._json({"errors": [], "warnings": []})

    def _batch(self, body: Json) -> None:
        objects = []
        for one in body["objects"]:
            entry: Json = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.server.large:
                entry["actions"] = {"upload": {"href": f"{self.server.url}/large/{one['oid']}"}}
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def _store(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._json({"error": "hash"}, 400)
            return
        self.server.large[oid] = body
        self._json({})

    def _model(self, repo_id: str, rest: list[str], body: bytes) -> None:
        repo = self.server.repos.get(repo_id)
        if repo is None:
            self._json({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["preupload"]:
            self._json({"files": [_mode(repo, one["path"]) for one in json.loads(body)["files"]]})
        elif rest[:1] == ["commit"]:
            self._commit(repo_id, repo, [json.loads(line) for line in body.splitlines()])
        elif rest[:1] in ([], ["revision"], ["tree"]):
            revision = rest[1] if rest else "main"
            commit = repo.head if revision == "main" else revision
            if commit not in repo.commits:
                self._json({"error": "Invalid rev id"}, 404, **{"X-Error-Code": "RevisionNotFound"})
                return
            files = [_listed(name, content) for name, content in repo.commits[commit].items()]
            if rest[:1] == ["tree"]:
                self._json([_tree_entry(file) for file in files])
            else:
                self._json({"id": repo_id, "sha": commit, "private": repo.is_private, "siblings": files})
        else:
            self._json({"error": f"not found: {rest}"}, 404)

    def _commit(self, repo_id: str, repo: Repo, lines: list[Json]) -> None:
        files = dict(repo.files)
        message = ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        oid = repo.add(files, message)
        self._json({"commitUrl": f"{self.server.url}/{repo_id}/commit/{oid}", "commitOid": oid})

    def _resolve(self, repo_id: str, revision: str, name: str, method: str) -> None:
        repo = self.server.repos.get(repo_id)
        content = repo.commits.get(repo.head if revision == "main" else revision, {}).get(name) if repo else None
        if repo is None or content is None:
            self._json({"error": "Entry not found"}, 404, **{"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": revision}
        self._bytes(content, 200, headers, is_head=method == "HEAD")


def _mode(repo: Repo, path: str) -> Json:
    content = repo.files.get(path)
    is_large = path.endswith(LARGE)
    oid = None if content is None else hashlib.sha256(content).hexdigest() if is_large else _git_hash(content)
    return {"path": path, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False, "oid": oid}


def _listed(name: str, content: bytes) -> Json:
    entry: Json = {"rfilename": name, "size": len(content), "blobId": _git_hash(content)}
    if name.endswith(LARGE):
        entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    return entry


def _tree_entry(file: Json) -> Json:
    lfs = {"lfs": {**file["lfs"], "oid": file["lfs"]["sha256"]}} if "lfs" in file else {}
    return {"type": "file", "path": file["rfilename"], "size": file["size"], "oid": file["blobId"], **lfs}


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.is_ending.set()
            hub.shutdown()
            thread.join()
