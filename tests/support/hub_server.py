"""A small Hugging Face hub on the loopback address, for tests without a network.

It serves repositories as the hub's HTTP interface does, and takes commits with all files inside
them, where the hub wants large ones by Git LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

TOKEN = "hf_of_the_tests"
USER = "me"
Files = dict[str, bytes]


class Refused(Exception):
    """An answer that is no success: its status, and the code by which the hub names the reason."""


@dataclass
class Repository:
    """The server's content of a repository."""

    private: bool = False
    #: Whether everybody sees its list of files and nobody gets one.
    gated: bool = False
    #: The name of a commit and its files, by this name and by branch.
    revisions: dict[str, tuple[str, Files]] = field(default_factory=dict)

    def commit(self, branch: str, files: Files) -> str:
        """Puts files on a branch; gives the commit's name."""
        text = repr((branch, len(self.revisions), sorted(files)))
        name = hashlib.sha1(text.encode()).hexdigest()
        self.revisions[branch] = self.revisions[name] = name, dict(files)
        return name

    def at(self, revision: str) -> tuple[str, Files]:
        """The commit that a branch or a commit's name stands for, and its files."""
        if revision not in self.revisions:
            raise Refused(404, "RevisionNotFound")
        return self.revisions[revision]


class Repositories(dict[str, Repository]):
    """By OWNER/NAME; the hub refuses other names."""

    def __missing__(self, name: str) -> Repository:
        raise Refused(404, "RepoNotFound")


class HubServer(ThreadingHTTPServer):
    """The server; a context manager.

    Attributes:
        repositories: Its content.
        requests: Every request as `METHOD /path`, in order.
        refusal: The answer to everything but the question who asks; None to answer as the hub does.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = Repositories()
        self.requests: list[str] = []
        self.refusal: Refused | None = None
        self.address = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def stand_in(self, patch: pytest.MonkeyPatch, home: Path) -> None:
        """Makes this process take the server for the hub, with a cache in a folder."""
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, self.address)
        for name, value in {
            "ENDPOINT": self.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,  # a storage with a protocol of its own
        }.items():
            patch.setattr(constants, name, value)
        patch.setenv("HF_TOKEN", TOKEN)

    def add(self, name: str, folder: Path, *, branch: str = "main") -> str:
        """Makes a commit of a folder's files; gives the commit's name.

        Args:
            name: OWNER/NAME; the repository may exist.
            folder: Its new content.
            branch: Where to.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        return self.repositories.setdefault(name, Repository()).commit(branch, files)


class Handler(BaseHTTPRequestHandler):
    """Answers one request: a reply gives JSON, or a file's bytes."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def answer(self) -> None:
        self.headers_sent: dict[str, str] = {}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, status = urlsplit(self.path).path, 200
        self.server.requests.append(f"{self.command} {path}")
        try:
            content = self.reply(path)
        except Refused as refused:
            status, code = refused.args
            content, self.headers_sent["X-Error-Code"] = {"error": code}, code
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (self.headers_sent | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = answer

    def log_message(self, *words: Any) -> None:
        pass

    def reply(self, path: str) -> Any:
        words = [unquote(word) for word in path.strip("/").split("/")]
        is_question = words == ["api", "whoami-v2"]
        is_allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not is_allowed and (self.command == "POST" or is_question):
            raise Refused(401, "InvalidToken")
        if is_question:
            return {"type": "user", "name": USER, "orgs": []}
        if self.server.refusal:
            raise self.server.refusal
        repositories = self.server.repositories
        match [self.command, *words]:
            case ["POST", "api", "repos", "create"]:
                return self.create(**json.loads(self.body))
            case ["POST", "api", "validate-yaml"]:
                return {"errors": [], "warnings": []}
            case [_, "api", "models", owner, name, *what]:
                return self.model(f"{owner}/{name}", repositories[f"{owner}/{name}"], what)
            case ["GET" | "HEAD", owner, name, "resolve", revision, *parts]:
                return self.file(repositories[f"{owner}/{name}"], revision, "/".join(parts))
        raise Refused(404, "EntryNotFound")

    def model(self, name: str, repository: Repository, what: list[str]) -> Any:
        match [self.command, *what]:
            case ["GET"] | ["GET", "revision", _]:
                commit, files = repository.at(what[1] if what else "main")
                siblings = [{"rfilename": file} for file in files]
                answer = {"id": name, "sha": commit, "siblings": siblings}
                return answer | {"private": repository.private}
            case ["GET", "tree", revision]:
                entry = {"type": "file", "size": 0, "oid": "0"}
                return [entry | {"path": path} for path in repository.at(revision)[1]]
            case ["POST", "branch", branch]:
                repository.revisions.setdefault(branch, repository.at("main"))
                return {}
            case ["POST", "preupload", revision]:
                paths = [file["path"] for file in json.loads(self.body)["files"]]
                mode = {"uploadMode": "regular", "shouldIgnore": False}
                return {"files": [{"path": path, **mode} for path in paths]}
            case ["POST", "commit", revision]:
                files = dict(repository.at(revision)[1])
                for line in map(json.loads, self.body.splitlines()):
                    kind, value = line["key"], line["value"]
                    if kind == "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                    elif kind == "deletedFile":
                        del files[value["path"]]
                made = repository.commit(revision, files)
                url = f"{self.server.address}/{name}/commit/{made}"
                return {"commitOid": made, "commitUrl": url, "success": True}
        # A folder of a tree, too: existing ones are not asked for.
        raise Refused(404, "EntryNotFound")

    def file(self, repository: Repository, revision: str, path: str) -> bytes:
        if repository.gated:
            raise Refused(403, "GatedRepo")
        self.headers_sent["X-Repo-Commit"], files = repository.at(revision)
        if path not in files:
            raise Refused(404, "EntryNotFound")
        self.headers_sent["ETag"] = f'"{hashlib.sha256(files[path]).hexdigest()}"'
        return files[path]

    def create(self, name: str, organization: str | None = None, **fields: Any) -> Any:
        name = f"{organization or USER}/{name}"
        if name not in self.server.repositories:
            repository = Repository(private=fields.get("visibility") == "private")
            repository.commit("main", {".gitattributes": b""})
            self.server.repositories[name] = repository
        return {"url": f"{self.server.address}/{name}", "name": name, "id": name}
