"""Decides which settings to try: controller, guard, executors, tracking, command line."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.controller import StudyResult, run_study

__all__ = ["StudyResult", "run_study"]


def __getattr__(name: str) -> Any:
    # Every trial process imports this package: the controller and what it needs is loaded only where it is asked for.
    if name in __all__:
        from sweeps import controller

        return getattr(controller, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
