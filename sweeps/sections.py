"""What a sweep file may say: a frozen pydantic tree around `TrainConfig`. Importable without torch and Optuna."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from grpo_core.config import Count, CountOrZero, NotNegative, Positive, Section, TrainConfig
from grpo_core.metric_names import EVAL_ACCURACY

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def parse_duration(value: Any) -> Any:
    """Seconds of `4h`, `90m`, `1h30m`, `30s`, `2d` or a number, None for `off`; raises ValueError for other text."""
    value = _off_is_none(value)
    if not isinstance(value, str):
        return value
    text = value.replace(" ", "").lower()
    if not _DURATION.fullmatch(text):
        raise ValueError("not a length of time; write 4h, 90m, 1h30m, 30s or a number of seconds")
    return sum(float(part[:-1]) * _UNIT_S[part[-1]] for part in re.findall(r"[\d.]+[smhd]", text))


def _off_is_none(value: Any) -> Any:
    return None if value is False or (isinstance(value, str) and value.lower() in ("off", "none", "no")) else value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("wants a number; write for example 0.5 or 1e-4")
    return value


def _auto_or_duration(value: Any) -> Any:
    return value if value == "auto" else parse_duration(value)


DurationOrAuto = Annotated[Positive | Literal["auto"] | None, BeforeValidator(_auto_or_duration)]
Duration = Annotated[Positive | None, BeforeValidator(parse_duration)]
Number = Annotated[int | float, BeforeValidator(_number)]


class ObjectiveConfig(Section):
    metric: str = EVAL_ACCURACY
    """The metric whose last value ranks trials; reported to the pruner at the steps that record it."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether more or less of it is better."""


class SamplerConfig(Section):
    name: Literal["tpe", "gp", "cmaes", "random", "grid", "qmc", "nsga2"] = "tpe"
    """How the next settings are drawn."""
    seed: int = 0
    """Seed of the draw."""
    n_startup_trials: CountOrZero = 5
    """Trials drawn at random before the sampler trusts its model."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the Optuna sampler, by their Optuna names."""


class PrunerConfig(Section):
    name: Literal["none", "hyperband", "asha", "median", "percentile", "patient", "threshold"] = "none"
    """How a trial that falls behind is found."""
    min_steps: Count = 10
    """Steps before which no trial is pruned for falling behind."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the Optuna pruner, by their Optuna names."""


class StudyConfig(Section):
    name: str
    """Folder under `runs/` and name in Optuna and MLflow."""
    objective: ObjectiveConfig = ObjectiveConfig()
    n_trials: Count
    """Attempts in all, also across restarts; pruned and failed ones count."""
    timeout_s: Duration = Field(default=None, alias="timeout")
    """Seconds of wall-clock after which no trial is started and running ones stop; None means no limit."""
    sampler: SamplerConfig = SamplerConfig()
    pruner: PrunerConfig = PrunerConfig()
    storage: str | None = None
    """Optuna storage URL; None means `study.db` in the study's folder."""
    cover: tuple[str, ...] = ()
    """Searched keys with listed values of which every combination is tried first, the rest as the file has it; these
    trials are not pruned for falling behind."""
    retries: CountOrZero = 1
    """Times that a trial is started again after a fault of the machine."""

    @field_validator("name")
    @classmethod
    def _name_is_a_folder_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError(
                "not usable as a folder name; use 1 to 100 letters, digits, `_`, `-` and single dots, no leading dot"
            )
        return name

    @field_validator("storage")
    @classmethod
    def _storage_is_a_url(cls, storage: str | None) -> str | None:
        if storage is not None and "://" not in storage:
            raise ValueError("not a database URL; write sqlite:///path.db or postgresql://user@host/name, or drop it")
        return storage


class Dimension(Section):
    """The values that one key may take: either `values`, or `min` and `max` with `log` or `step`."""

    values: tuple[str | int | float | bool | None, ...] | None = None
    """The choices."""
    min: Number | None = None
    """Lower end, included."""
    max: Number | None = None
    """Upper end, included."""
    log: bool = False
    """Whether the range is drawn on a logarithmic scale."""
    step: Number | None = None
    """Distance of neighbouring values, counted from `min`."""
    when: dict[str, Any] = Field(default_factory=dict)
    """Other searched keys with the value, or list of values, at which this key exists."""

    def show(self) -> str:
        """The range in words, for messages."""
        if self.values is not None:
            return f"[{', '.join(map(str, self.values))}]"
        words = f"{self.min} to {self.max}"
        return words + (f" in steps of {self.step}" if self.step is not None else "")


class EntropyBand(Section):
    """Limits of `policy/entropy`, nats a token."""

    min: NotNegative
    """Below it the policy has collapsed."""
    max: Positive
    """Above it the policy is turning to noise."""
    warmup_steps: CountOrZero = 5
    """First steps that are not judged."""
    patience: Count = 3
    """Judged steps in a row outside the band that end a trial."""

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"min={self.min}: not below max={self.max}; lower min or raise max")
        return self


class RewardCollapse(Section):
    """Limit of the fall of `reward/mean`, averaged over a window, from its best window."""

    drop: Annotated[float, Field(gt=0)] = 0.5
    """Share of the best window's mean that may be lost."""
    window: Count = 10
    """Steps in a window."""
    warmup_steps: CountOrZero = 0
    """First steps that are not judged and enter no window."""
    patience: Count = 3
    """Steps in a row beyond the limit that end a trial."""


class GradNormLimit(Section):
    """Limit of `optim/grad_norm` before clipping."""

    max: Positive
    """Largest norm allowed."""
    warmup_steps: CountOrZero = 0
    """First steps that are not judged."""
    patience: Count = 3
    """Judged steps in a row above it that end a trial."""


class StabilityConfig(Section):
    """Limits whose breach prunes a trial; a rule set to `off` or left out does not run."""

    nonfinite: Literal["stop", "off"] = "stop"
    """Whether a NaN or infinite loss, gradient norm, entropy or reward ends a trial."""
    entropy: Annotated[EntropyBand | None, BeforeValidator(_off_is_none)] = None
    reward_collapse: Annotated[RewardCollapse | None, BeforeValidator(_off_is_none)] = None
    grad_norm: Annotated[GradNormLimit | None, BeforeValidator(_off_is_none)] = None

    @field_validator("nonfinite", mode="before")
    @classmethod
    def _off_in_any_spelling(cls, value: Any) -> Any:
        return "off" if _off_is_none(value) is None and value is not None else value


class ResourcesConfig(Section):
    executor: Literal["local"] = "local"
    """Where trials run."""
    processes_per_trial: Count = 1
    """Ranks of one trial, each with its part of every batch."""
    max_concurrent_trials: Count | Literal["auto"] = "auto"
    """Trials at once; `auto` takes one a core on CPU and one a GPU slot on CUDA."""
    hang_timeout: DurationOrAuto = "auto"
    """Time without news after which a trial is ended and tried again; `auto` takes ten times its longest step so far
    and at least 10 minutes, 30 before its first step; `off` waits for ever."""


class TrackingConfig(Section):
    uri: str | None = None
    """MLflow tracking URI; None means MLFLOW_TRACKING_URI, or the embedded store under `runs/`."""
    experiment: str | None = None
    """MLflow experiment; None means the study's name."""


class MonitoringConfig(Section):
    """Who hears of the study while it runs; nothing listens and nothing is sent unless it is asked for here."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port for `/healthz` and `/metrics` (Prometheus); 0 takes any that is free."""
    host: str = "127.0.0.1"
    """Address that the port is bound to; another than loopback lets other machines read it."""
    webhook: str | None = None
    """Address that alerts are posted to as JSON `{"study", "rule", "message"}`; `$NAME` is one in the environment."""
    breach_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of ended trials pruned by the guard above which an alert is raised, from the fourth trial on."""
    no_progress_s: Duration = Field(default=None, alias="no_progress")
    """Seconds without a step of any trial after which an alert is raised."""

    @field_validator("webhook")
    @classmethod
    def _webhook_is_an_address(cls, webhook: str | None) -> str | None:
        if webhook is not None and not re.fullmatch(r"https?://\S+|\$\w+", webhook):
            raise ValueError("not an address; write https://host/path, or $NAME for one in the environment")
        return webhook


class SweepConfig(Section):
    """One study, with its profile applied and every mistake ruled out."""

    study: StudyConfig
    search_space: dict[str, Dimension]
    stability: StabilityConfig = StabilityConfig()
    train: TrainConfig = TrainConfig()
    resources: ResourcesConfig = ResourcesConfig()
    tracking: TrackingConfig = TrackingConfig()
    monitoring: MonitoringConfig = MonitoringConfig()
    profile: str | None = None
    """The overlay that was applied."""
    profile_reason: str = ""
    """Why that one, in words for the first line of a launch."""
    source: str = ""
    """Path of the file."""

    def dump(self) -> dict[str, Any]:
        """JSON-able data of the resolved sweep, which `load_resolved` reads back to an equal SweepConfig."""
        data = self.model_dump(mode="json", by_alias=True)
        data["search_space"] = {
            key: dimension.model_dump(mode="json", exclude_defaults=True)
            for key, dimension in self.search_space.items()
        }
        return data
