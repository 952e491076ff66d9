"""Posts alerts to a person's own address, by a thread of its own: a server that is away delays no trial."""

import json
import os
import queue
import threading
import time
import urllib.request
from typing import Any

from sweeps.credentials import mask_credentials

_TIMEOUT_S = 5.0
_PAUSES_S = (1.0, 4.0)


class Webhook:
    """One address; what could not be posted is in `problem`."""

    def __init__(self, address: str) -> None:
        """`address`: an http(s) URL, or `$NAME` for the one in an environment variable; raises ValueError without."""
        self.problem: str | None = None
        self._address = os.environ.get(address[1:], "") if address.startswith("$") else address
        if not self._address.startswith(("http://", "https://")):
            raise ValueError(f"monitoring.webhook={address}: the variable holds no http:// or https:// address; set it")
        self._letters: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._post_all, name="webhook", daemon=True)
        self._thread.start()

    def post(self, letter: dict[str, Any]) -> None:
        """Leaves a JSON object to be posted; never waits."""
        self._letters.put(letter)

    def close(self, timeout_s: float) -> str | None:
        """Posts what is left, for so long at most; what could not be posted, in words, or None."""
        self._letters.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return f"the webhook took nothing within {timeout_s:.0f} s"
        return self.problem

    def _post_all(self) -> None:
        while (letter := self._letters.get()) is not None:
            self.problem = self._post(letter)

    def _post(self, letter: dict[str, Any]) -> str | None:
        data, headers = json.dumps(letter).encode(), {"Content-Type": "application/json"}
        for pause_s in (*_PAUSES_S, None):
            try:
                request = urllib.request.Request(self._address, data, headers)
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                    return None
            except OSError as error:
                problem = mask_credentials(f"the webhook took no {letter['rule']}: {error}")
            if pause_s is not None:
                time.sleep(pause_s)
        return problem
