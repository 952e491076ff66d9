"""How much of the objective's spread each setting explains, with how far so few trials can be trusted.

Functional ANOVA (Hutter, Hoos and Leyton-Brown 2014, An Efficient Approach for Assessing Hyperparameter Importance,
proceedings.mlr.press/v32/hutter14.html): a forest is fitted to the objective, and a setting's share is the variance of
its marginal, V_j = Var_v( E_u[ f(u with u_j = v) ] ), over the variance of f. The fit is repeated on resampled trials,
which gives an interval. Beside each setting the forest sees a copy of it shuffled among the trials (Kursa and Rudnicki
2010, Feature Selection with the Boruta Package, doi.org/10.18637/jss.v036.i11): its share is what chance gives.
"""

from dataclasses import dataclass

import numpy as np

from reports import formats, theme
from reports.study_data import Dimension, Study

MIN_TRIALS = 6
NUM_RESAMPLES = 60
_TREES = 8
_NUM_PLACES = 128
_GRID = 12


@dataclass(frozen=True)
class Share:
    """Part of the forest's variance that one setting explains alone, all in 0 to 1."""

    name: str
    mean: float
    low: float
    """10th percentile over resampled trials."""
    high: float
    """90th percentile over resampled trials."""
    chance: float
    """90th percentile of the shares of all shuffled copies."""

    @property
    def stands_out(self) -> bool:
        return self.mean > max(self.chance, 0.02)


def setting_shares(study: Study, seed: int = 0) -> list[Share]:
    """Shares of the searched settings, largest first; empty when there are too few trials or no spread.

    Every trial with a score counts: for one that was pruned, the last objective that it reached.
    """
    scored = [(trial, score) for trial in study.trials if (score := study.score(trial)) is not None]
    objective = np.array([score for _, score in scored])
    if len(scored) < MIN_TRIALS or not study.dimensions or np.ptp(objective) == 0:
        return []
    places = np.array(
        [[dimension.unit(trial.params.get(dimension.name)) for dimension in study.dimensions] for trial, _ in scored],
        dtype=float,
    )
    rng = np.random.default_rng(seed)
    grids = [_grid(dimension) for dimension in study.dimensions]
    drawn = np.array([_resampled_shares(places, objective, grids, rng) for _ in range(NUM_RESAMPLES)])
    own, shuffled = drawn[:, : len(grids)], drawn[:, len(grids) :]
    low, high = np.percentile(own, [10, 90], axis=0)
    chance = float(np.percentile(shuffled, 90))
    found = [
        Share(dimension.name, float(own[:, index].mean()), float(low[index]), float(high[index]), chance)
        for index, dimension in enumerate(study.dimensions)
    ]
    return sorted(found, key=lambda share: -share.mean)


def _resampled_shares(
    places: np.ndarray, objective: np.ndarray, grids: list[np.ndarray], rng: np.random.Generator
) -> list[float]:
    """Shares of D settings and of their D shuffled copies in one resample of places [N, D] and objective [N].

    Places may be NaN, where a setting does not apply (`when`).
    """
    # Imported here, since it takes longer than the rest of the report and a young study has no need of it.
    from sklearn.tree import ExtraTreeRegressor

    places = _filled(places, rng)
    num_trials = len(objective)
    rows = rng.integers(num_trials, size=num_trials)
    both = np.hstack([places, rng.permuted(places, axis=0)])[rows]
    asked = _questions(grids * 2, rng)
    answers = np.zeros(len(asked))
    for _ in range(_TREES):
        tree = ExtraTreeRegressor(min_samples_leaf=2, max_features=None, random_state=int(rng.integers(2**31)))
        answers += tree.fit(both, objective[rows]).predict(asked)
    return _variance_shares(answers, grids * 2)


def _filled(places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The places [N, D], each missing one taken from a random trial that has the setting.

    A mark of their own would let a setting take credit for what decides where it applies, as the algorithm does.
    """
    filled = places.copy()
    for column in filled.T:
        missing = np.isnan(column)
        if missing.any():
            known = column[~missing] if not missing.all() else np.array([0.5])
            column[missing] = rng.choice(known, missing.sum())
    return filled


def _questions(grids: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Places [., D] to ask a model about: some anywhere, then those again with each dimension on each of its grid."""
    anywhere = np.column_stack([rng.choice(grid, _NUM_PLACES) for grid in grids])
    blocks = [np.repeat(anywhere[None], len(grid), axis=0) for grid in grids]
    for index, grid in enumerate(grids):
        blocks[index][:, :, index] = grid[:, None]
    return np.concatenate([anywhere, *(block.reshape(-1, len(grids)) for block in blocks)])


def _variance_shares(answers: np.ndarray, grids: list[np.ndarray]) -> list[float]:
    """Variance of each dimension's marginal over the whole variance, from the answers to `_questions`."""
    total = answers[:_NUM_PLACES].var()
    shares, start = [], _NUM_PLACES
    for grid in grids:
        block = answers[start : start + len(grid) * _NUM_PLACES].reshape(len(grid), _NUM_PLACES)
        start += block.size
        shares.append(min(1.0, float(block.mean(axis=1).var() / total)) if total > 1e-12 else 0.0)
    return shares


def _grid(dimension: Dimension) -> np.ndarray:
    """Places at which a dimension is evaluated, evenly over its own scale."""
    return np.linspace(0, 1, max(1, len(dimension.values)) if dimension.values is not None else _GRID)


def importance_figure(study: Study, shares: list[Share]) -> theme.Figure | None:
    """Bars of the shares with intervals, and the mark of what chance gives; None without shares."""
    if not shares:
        return None
    rows = list(reversed(shares))
    names = [formats.chart_text(share.name) for share in rows]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [share.mean for share in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [share.high - share.mean for share in rows],
            "arrayminus": [share.mean - share.low for share in rows],
            "color": theme.INK,
            "thickness": 1.2,
            "width": 4,
        },
        "marker": {"color": [theme.BEST if share.stands_out else theme.COMPLETE for share in rows]},
        "width": 0.55,
        "hovertemplate": "<b>%{y}</b><br>share %{x:.0%}<extra></extra>",
    }
    chance = shares[0].chance
    line = {"color": theme.PRUNED, "width": 2, "dash": "dot"}
    shapes = [{"type": "line", "yref": "paper", "x0": chance, "x1": chance, "y0": 0, "y1": 1, "line": line}]
    note = {"x": chance, "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    note |= {"text": "chance", "font": {"size": 11, "color": theme.PRUNED}}
    num_scored = sum(study.score(trial) is not None for trial in study.trials)
    names_out = [share.name for share in shares if share.stands_out]
    found = (
        f"{formats.listed(names_out)} stand{'s' if len(names_out) == 1 else ''} out"
        if names_out
        else ("no setting stands out from chance")
    )
    caption = (
        f"Share of the spread in {formats.metric(study.objective)} that each setting explains alone: {found}. "
        f"From only {num_scored} trials this is a hint, not a measurement: whiskers span 80% of resamples, "
        "and a setting without any effect stays left of the dotted line nine times in ten."
    )
    layout = theme.frame(
        theme.axis("share of the objective's variance", tickformat=".0%", range=[0, 1]),
        theme.axis("", type="category"),
        bargap=0.4,
        shapes=shapes,
        annotations=[note],
        margin={"l": 12, "r": 14, "t": 24, "b": 12},
    )
    return theme.Figure("importance", "Which settings mattered", caption, [bars], layout, 90 + 48 * len(rows))
