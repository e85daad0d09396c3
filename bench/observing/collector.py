"""A collector of spans in a process of its own: takes what it is sent and says so. Prints its address first."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Taking(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taking)
    print(f"http://127.0.0.1:{server.server_address[1]}/v1/traces", flush=True)
    server.serve_forever()
