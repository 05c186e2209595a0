"""A small Hugging Face hub on the loopback address, for tests without a network.

It serves repositories as the hub's HTTP interface does, to a process of its own that is started
with `HubServer.environment`: huggingface_hub reads the address when it is imported. It takes
uploads as well: small files inside the commit, weights by Git LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"
USER = "me"
#: Files that go up by Git LFS.
LARGE = (".safetensors", ".bin", ".h5", ".msgpack")
#: Seconds that a call may take; a test that waits longer for this machine has failed.
TIMEOUT_SECONDS = 20

Files = dict[str, bytes]


class Refused(Exception):
    """An answer that is no success: its status, and the code by which the hub names the reason."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@dataclass
class Repository:
    """What the server holds of a repository."""

    private: bool = False
    gated: bool = False
    """Whether everybody sees its list of files and nobody gets one."""
    commits: dict[str, Files] = field(default_factory=dict)
    """Every commit's files by name."""
    branches: dict[str, str] = field(default_factory=dict)
    """The commit of each branch."""

    def commit(self, branch: str, files: Files) -> str:
        """Puts files on a branch; gives the commit's name."""
        text = repr((branch, len(self.commits), sorted(files)))
        name = hashlib.sha1(text.encode()).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def at(self, revision: str) -> tuple[str, Files]:
        """The commit that a branch or a commit's name stands for, and its files."""
        name = self.branches.get(revision, revision)
        if name not in self.commits:
            raise Refused(404, "RevisionNotFound")
        return name, self.commits[name]


class HubServer:
    """The server; a context manager.

    Attributes:
        repositories: By OWNER/NAME.
        requests: Every request as `METHOD /path`, in order.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.uploaded: dict[str, bytes] = {}  # by SHA-256
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """Such as http://127.0.0.1:41234."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a process that takes this server for the hub.

        Args:
            home: An empty folder for its cache and its settings.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE")
            and not name.lower().endswith("_proxy")
        }
        return kept | {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",  # a storage with a protocol of its own
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_ETAG_TIMEOUT": str(TIMEOUT_SECONDS),
            "HF_HUB_DOWNLOAD_TIMEOUT": str(TIMEOUT_SECONDS),
        }

    def add(self, name: str, folder: Path, *, branch: str = "main") -> str:
        """Makes a commit of a folder's files; gives the commit's name.

        Args:
            name: OWNER/NAME; the repository may exist.
            folder: What it then holds.
            branch: Where to.
        """
        repository = self.repositories.setdefault(name, Repository())
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        return repository.commit(branch, files)

    def repository(self, name: str) -> Repository:
        """A repository that a request names."""
        if name not in self.repositories:
            raise Refused(404, "RepoNotFound")
        return self.repositories[name]


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    """The class that answers for one server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            address = urlsplit(self.path)
            hub.requests.append(f"{self.command} {address.path}")
            self.status = 200  # one object answers all requests of a connection
            if "Transfer-Encoding" in self.headers:
                self.body = self._chunks()
            else:
                self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                for method, pattern, reply in ROUTES:
                    found = re.fullmatch(pattern, address.path)
                    if found and self.command in method:
                        reply(self, *(unquote(part or "") for part in found.groups()))
                        return
                raise Refused(404, "EntryNotFound")
            except Refused as refused:
                self.status = refused.status
                self.send(
                    json.dumps({"error": refused.code}).encode(), {"X-Error-Code": refused.code}
                )

        do_GET = do_HEAD = do_POST = do_PUT = answer

        def log_message(self, *words: Any) -> None:
            pass

        def _chunks(self) -> bytes:
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def send(self, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(self.status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def json(self, value: Any) -> None:
            self.send(json.dumps(value).encode(), {"Content-Type": "application/json"})

        def data(self) -> Any:
            return json.loads(self.body)

        def must_be_allowed(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "InvalidToken")

        # Reading.

        def whoami(self) -> None:
            self.must_be_allowed()
            self.json({"type": "user", "name": USER, "orgs": []})

        def info(self, name: str, revision: str) -> None:
            repository = hub.repository(name)
            commit, files = repository.at(revision or "main")
            siblings = [{"rfilename": file} for file in files]
            facts = {"id": name, "sha": commit, "private": repository.private, "downloads": 0}
            self.json(facts | {"tags": [], "siblings": siblings})

        def tree(self, name: str, revision: str, folder: str) -> None:
            _, files = hub.repository(name).at(revision)
            start = f"{folder}/" if folder else ""
            entries = [file for file in files if file.startswith(start)]
            if folder and not entries:
                raise Refused(404, "EntryNotFound")
            self.json([_entry(file, files[file]) for file in entries])

        def file(self, name: str, revision: str, path: str) -> None:
            if hub.repository(name).gated:
                raise Refused(403, "GatedRepo")
            commit, files = hub.repository(name).at(revision)
            if path not in files:
                self.status = 404
                self.send(b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
                return
            etag = f'"{hashlib.sha256(files[path]).hexdigest()}"'
            self.send(files[path], {"X-Repo-Commit": commit, "ETag": etag})

        # Writing.

        def create(self) -> None:
            self.must_be_allowed()
            asked = self.data()
            name = f"{asked.get('organization') or USER}/{asked['name']}"
            if name in hub.repositories:
                self.status = 409
            else:
                repository = Repository(private=asked.get("visibility") == "private")
                repository.commit("main", {".gitattributes": b""})
                hub.repositories[name] = repository
            self.json({"url": f"{hub.address}/{name}", "name": name, "id": name})

        def branch(self, name: str, branch: str) -> None:
            self.must_be_allowed()
            repository = hub.repository(name)
            if branch in repository.branches:
                raise Refused(409, "BranchExists")
            repository.branches[branch] = repository.branches["main"]
            self.json({})

        def card(self) -> None:
            self.json({"errors": [], "warnings": []})

        def modes(self, name: str, revision: str) -> None:
            self.must_be_allowed()
            hub.repository(name).at(revision)
            paths = [file["path"] for file in self.data()["files"]]
            modes = ["lfs" if path.endswith(LARGE) else "regular" for path in paths]
            files = [
                {"path": path, "uploadMode": mode, "shouldIgnore": False}
                for path, mode in zip(paths, modes, strict=True)
            ]
            self.json({"files": files})

        def large(self, name: str) -> None:
            self.must_be_allowed()
            objects = [
                file | {"actions": {"upload": {"href": f"{hub.address}/large/{file['oid']}"}}}
                for file in self.data()["objects"]
            ]
            self.json({"transfer": "basic", "objects": objects})

        def take(self, oid: str) -> None:
            if hashlib.sha256(self.body).hexdigest() != oid:
                raise Refused(400, "WrongSum")
            hub.uploaded[oid] = self.body
            self.send(b"")

        def commit(self, name: str, revision: str) -> None:
            self.must_be_allowed()
            repository = hub.repository(name)
            files = dict(repository.at(revision)[1])
            for line in map(json.loads, self.body.splitlines()):
                kind, value = line["key"], line["value"]
                if kind == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif kind == "lfsFile":
                    files[value["path"]] = hub.uploaded[value["oid"]]
                elif kind == "deletedFile":
                    del files[value["path"]]
                elif kind != "header":
                    raise Refused(400, f"Unknown-{kind}")
            made = repository.commit(revision, files)
            url = f"{hub.address}/{name}/commit/{made}"
            self.json({"commitOid": made, "commitUrl": url, "success": True})

    model = r"/api/models/([^/]+/[^/]+)"
    ROUTES: list[tuple[str, str, Any]] = [
        ("GET", r"/api/whoami-v2", Handler.whoami),
        ("GET", model + r"(?:/revision/([^/]+))?", Handler.info),
        ("GET", model + r"/tree/([^/]+)(?:/(.+))?", Handler.tree),
        ("GET HEAD", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", Handler.file),
        ("POST", r"/api/repos/create", Handler.create),
        ("POST", model + r"/branch/([^/]+)", Handler.branch),
        ("POST", r"/api/validate-yaml", Handler.card),
        ("POST", model + r"/preupload/([^/]+)", Handler.modes),
        ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", Handler.large),
        ("PUT", r"/large/(\w+)", Handler.take),
        ("POST", model + r"/commit/([^/]+)", Handler.commit),
    ]
    return Handler


def _entry(path: str, content: bytes) -> dict[str, Any]:
    """A file as listings describe it."""
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob}
    if path.endswith(LARGE):
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
    return entry
