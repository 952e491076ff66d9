"""Groups of completions of similar prompts, for `algorithm.grouping: similarity`."""

import math
import re
from collections.abc import Sequence
from typing import Any

WORDS = r"[^\W\d_]+|\d+|[^\w\s]"


def similar_groups(texts: Sequence[str], completions_per_text: int, smallest: int, largest: int) -> list[list[int]]:
    """Indices of `texts` in groups of similar ones, each with `smallest` to `largest` completions.

    Every text is in one group with all its `completions_per_text` completions. The rewards of such a group are
    normalised as those of one prompt's are: the baseline is taken over the completions of all its prompts, and
    `advantage_scale: group_std` divides by their common standard deviation. So a prompt easier than its neighbours
    earns positive advantages on the whole, even where its own completions do equally well.

    Texts are clustered bottom-up (average linkage of cosine distances between tf-idf weights of words, all numbers
    being one word). The clusters' order puts each cluster's texts side by side; it is cut where the clusters on both
    sides are further apart than neighbours are on average, so far as the bounds allow. Equal texts stay together where
    that order and the bounds allow it. The same texts always give the same groups.
    """
    fewest = max(1, -(-smallest // completions_per_text))
    most = largest // completions_per_text
    # A rest of less than `fewest` texts can be shared out then: k * fewest + rest <= k * most from k = 1 on.
    assert fewest <= len(texts) and 2 * fewest - 1 <= most, "TrainConfig refuses bounds that can't be kept"
    distinct = list(dict.fromkeys(texts))
    leaves, heights = _dendrogram(distinct) if len(distinct) > 1 else ([0], [])
    threshold = math.fsum(heights) / max(1, len(heights))

    places: dict[str, list[int]] = {text: [] for text in distinct}
    for index, text in enumerate(texts):
        places[text].append(index)
    order: list[int] = []
    gains: list[float] = []  # of a cut in front of each text of `order`
    for leaf, height in zip(leaves, [0.0, *heights], strict=True):
        equal = places[distinct[leaf]]
        order += equal
        # Heights are at most 1: all other cuts together don't make up for one between equal texts.
        gains += [round(height - threshold, 9), *[-float(len(texts))] * (len(equal) - 1)]
    starts = best_cuts(gains, fewest, most)
    ends = [*starts[1:], len(order)]
    return sorted(sorted(order[start:end]) for start, end in zip(starts, ends, strict=True))


def best_cuts(gains: Sequence[float], fewest: int, most: int) -> list[int]:
    """Where the pieces begin that cut `len(gains)` things in a row into `fewest` to `most` each, at the most gain.

    `gains[i]` is the gain of a piece that begins at i. Dynamic programming over the ends of pieces.
    """
    best = [0.0] + [float("-inf")] * len(gains)
    came_from = [0] * (len(gains) + 1)
    for end in range(fewest, len(gains) + 1):
        for start in range(max(0, end - most), end - fewest + 1):
            total = best[start] + gains[start]
            if total > best[end]:
                best[end], came_from[end] = total, start
    starts = []
    end = len(gains)
    while end > 0:
        end = came_from[end]
        starts.append(end)
    return starts[::-1]


def _dendrogram(texts: list[str]) -> tuple[list[int], list[float]]:
    """The texts' order in the tree of clusters, and the height at which each and the next one are joined, 0 to 1."""
    # Slow imports, which only these groups need.
    import numpy as np
    from scipy.cluster.hierarchy import cophenet, leaves_list, linkage
    from scipy.spatial.distance import squareform
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    counts = HashingVectorizer(token_pattern=WORDS, preprocessor=_plain, norm=None, alternate_sign=False)
    features: Any = TfidfTransformer().fit_transform(counts.transform(texts))
    similarity = (features @ features.T).toarray()
    distances = np.round(1 - similarity, 9).clip(0, 1)  # rounded, so that equal distances are equal on any machine
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average")
    leaves = leaves_list(tree)
    joined = squareform(cophenet(tree))
    return leaves.tolist(), joined[leaves[:-1], leaves[1:]].tolist()


def _plain(text: str) -> str:
    return re.sub(r"\d+", "0", text.lower())
