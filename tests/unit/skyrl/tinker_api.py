"""A server of the Tinker API on loopback that computes nothing: it answers in the API's shapes, or as a test wants."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, Any]]


class TinkerApi:
    """`answers` maps the last part of a route to what is answered; `asked` counts, `bodies` keeps what was sent."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.bodies: dict[str, dict[str, Any]] = {}
        self.released = threading.Event()
        self.results: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "config": lambda _: (200, {}),
            "create_session": lambda _: (200, {"type": "create_session", "session_id": "session"}),
            "create_model": lambda _: (200, {"request_id": "create_model", "model_id": "model"}),
            "retrieve_future": lambda body: (200, self.results[body["request_id"]]),
        }
        self.results["create_model"] = {"type": "create_model", "model_id": "model"}
        for name in ("forward_backward", "optim_step", "save_weights", "forward"):
            self.answers[name] = lambda _, name=name: (200, {"request_id": name, "model_id": "model"})
        self.results["forward_backward"] = {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": [], "metrics": {}}
        self.results["optim_step"] = {"metrics": {"skyrl.ai/grad_norm": 2.5}}
        self.results["save_weights"] = {"type": "save_weights", "path": "tinker://model/weights/one"}

    def never(self, _: dict[str, Any]) -> Answer:
        self.released.wait(30)
        return 500, {}


@contextmanager
def serve(api: TinkerApi) -> Iterator[str]:
    """The address of the API, served until the context is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            name = self.path.rsplit("/", 1)[-1]
            api.asked[name] += 1
            api.bodies[name] = body
            status, told = api.answers[name](body)
            sent = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        api.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
