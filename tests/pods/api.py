"""As much of Kubernetes as an executor talks to: an API that checks what it is given, and runs each job on this host.

A job's container becomes a process in a folder of its own, with nothing but what its pod would have: its environment,
its secrets, the code that it is sent.  What a cluster adds (scheduling, images, devices) is not here.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiClient

from tests.workflow.conftest import PROJECT


def as_the_api_reads_it(body: Mapping[str, Any], kind: str) -> Any:
    """A body as the API's schema for ``kind`` reads it: the models of the ``kubernetes`` package.

    Raises ValueError where a key is unknown to the schema or a value has another type, which a real API refuses too.
    """
    client = ApiClient()
    model = client.deserialize(SimpleNamespace(data=json.dumps(body)), kind)
    if client.sanitize_for_serialization(model) != body:
        raise ValueError(f"not of the schema of {kind}: {body}")
    return model


def _image() -> dict[str, str]:
    """What the image sets: its Python is the one that has the packages, and pods install no other versions."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PIP_CONSTRAINT": str(PROJECT / "constraints.txt")}


@dataclass
class Api:
    """The server; ``folder`` is where pods work.  With ``runs`` false each job is said to have failed at once."""

    folder: Path
    runs: bool = True
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Api:
        api = self
        self.folder.mkdir()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(api.read(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    self._answer(api.create(self.path, body), 201)
                except ValueError as error:
                    api.refused.append(str(error))
                    self._answer({"kind": "Status", "message": str(error)}, 422)

            def do_DELETE(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer({"kind": "Status", "status": "Success"})

            def _answer(self, body: Mapping[str, Any], status: int = 200) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        for process in self._running.values():
            process.kill()

    def kubeconfig(self) -> str:
        """What ``KUBECONFIG`` is to hold."""
        address = f"http://127.0.0.1:{self._server.server_port}"
        return json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": {"server": address}}],
                "users": [{"name": "me", "user": {}}],
            }
        )

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A secret or a job, which begins at once."""
        name = body["metadata"]["name"]
        if path.endswith("/secrets"):
            as_the_api_reads_it(body, "V1Secret")
            self.secrets[name] = body
        else:
            as_the_api_reads_it(body, "V1Job")
            self._check_extended(body)
            self.jobs[name] = body
            if self.runs:
                self._begin(name, body["spec"]["template"]["spec"]["containers"][0])
        return body

    def read(self, path: str) -> dict[str, Any]:
        """A job's status, or the pods of a job: as if the pod had gone, so that the job's status counts."""
        if "/pods" in path:
            return {"apiVersion": "v1", "kind": "PodList", "items": []}
        name = path.split("/jobs/")[1].partition("/")[0]
        status = self._running[name].poll() if self.runs else 1
        counts = {} if status is None else {"succeeded" if status == 0 else "failed": 1}
        return {**self.jobs[name], "status": counts}

    def _check_extended(self, body: dict[str, Any]) -> None:
        """Of a resource that a device plugin offers, request and limit must be there and equal."""
        for container in body["spec"]["template"]["spec"]["containers"]:
            asked = container["resources"]
            for key, count in asked["requests"].items():
                if "/" in key and asked.get("limits", {}).get(key) != count:
                    raise ValueError(f"limit must be set for non overcommitable resources: {key}")

    def _begin(self, name: str, container: dict[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="pod-"))
        given = {}
        for variable in container.get("env", []):
            secret = variable["valueFrom"]["secretKeyRef"]
            given[variable["name"]] = base64.b64decode(self.secrets[secret["name"]]["data"][secret["key"]]).decode()
        with (folder / "pod.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*container["command"], *container["args"]],
                cwd=folder,
                env={"HOME": str(folder), **_image(), **given},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
