"""placeholder"""

from contextlib import contextmanager


@contextmanager
def adapters_off(model):
    yield
