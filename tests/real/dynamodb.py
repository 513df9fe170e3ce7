"""DynamoDB's stand-in, moto's server, and what AWS's clients need to know to use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

DYNAMODB_REGION = "eu-west-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": DYNAMODB_REGION}


@contextmanager
def running_dynamodb() -> Iterator[str]:
    """Yield the endpoint. Processes that are started meanwhile find credentials in their environment.

    Requests are served one at a time: DynamoDB compares and puts in one step, and moto in two.
    """
    app, guard = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with guard:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with patch.dict(os.environ, CREDENTIALS):
            yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
