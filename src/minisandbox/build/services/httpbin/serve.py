"""httpbin on the ports 80 and 443 of the loopback device, until it is killed."""

from __future__ import annotations

import logging
import os
import threading

import httpbin
from werkzeug.serving import WSGIRequestHandler, make_server


class Handler(WSGIRequestHandler):
    """Keeps connections open, as the public site does: tests look at that."""

    protocol_version = "HTTP/1.1"


def serve(port: int, certificate: tuple[str, str] | None) -> None:
    """Serve at one port."""
    make_server(
        "127.0.0.1",
        port,
        httpbin.app,
        threaded=True,
        request_handler=Handler,
        ssl_context=certificate,
    ).serve_forever()


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    folder = os.path.dirname(os.path.abspath(__file__))
    files = (os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem"))
    threading.Thread(target=serve, args=(443, files), daemon=True).start()
    serve(80, None)
