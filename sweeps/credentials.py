"""Secrets in URIs, kept out of everything that is printed, sent, or shown in a page."""

import re

_USER_INFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@]*@")
_SECRET_QUERY = re.compile(
    r"(?P<key>[?&][^=&\s]*(?:password|passwd|pwd|secret|token|api_?key|credential|signature|sig)[^=&\s]*=)[^&\s#]*",
    re.IGNORECASE,
)
#: A webhook's path is its key.
_WEBHOOK = re.compile(r"(?P<key>\bwebhook[\"']?\s*[:=]\s*)[\"']?https?://[^\s\"',}]+[\"']?")


def mask_credentials(text: str) -> str:
    """The text with user and password of every URI, secrets in its query, and webhooks replaced by `***`."""
    text = _WEBHOOK.sub(r"\g<key>***", text)
    return _SECRET_QUERY.sub(r"\g<key>***", _USER_INFO.sub(r"\g<scheme>***@", text))
