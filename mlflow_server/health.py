"""Whether a server answers."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable

_PAUSE_S = 0.1


def is_healthy(address: str, timeout_s: float = 2.0) -> bool:
    """True when the server at `address` (http://host:port) answers its health check."""
    # Without the proxies of the environment: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address}/health", timeout=timeout_s) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def wait_until_healthy(address: str, is_alive: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until the server answers; False when its process ends before or `timeout_s` seconds have passed."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_alive():
            return False
        if is_healthy(address):
            return True
        time.sleep(_PAUSE_S)
    return False
