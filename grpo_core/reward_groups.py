"""Which completions of a step are compared with each other: those of one prompt, or those of similar prompts."""

import torch
from torch import Tensor

from grpo_core.advantages import dead_groups
from grpo_core.collection import Collection
from grpo_core.config import AlgorithmConfig
from grpo_core.ranks import Ranks
from grpo_core.similarity import similar_groups
from grpo_core.tasks import Task


class RewardGroups:
    """The groups of all ranks' completions as the rows of a table, `[num_groups, width]`; NaN fills shorter groups."""

    def __init__(self, collection: Collection, task: Task, algorithm: AlgorithmConfig, ranks: Ranks) -> None:
        self._ranks = ranks
        num_own, size = len(collection.scores), collection.group_size
        self._own = slice(ranks.rank * num_own, (ranks.rank + 1) * num_own)
        #: The place of each completion in the flattened table.
        self._places = torch.arange(num_own * ranks.size)
        self._shape = (len(collection.problems) * ranks.size, size)
        if algorithm.grouping == "similarity":
            texts = ranks.gather([task.prompt(problem) for problem in collection.problems])
            smallest, largest = algorithm.min_similar_group, algorithm.max_similar_group
            with ranks.together():
                groups = similar_groups(texts, size, smallest, largest) if ranks.is_first else None
            groups = ranks.from_first(groups)
            width = max(map(len, groups)) * size
            self._shape = (len(groups), width)
            for number, group in enumerate(groups):
                rows = (torch.tensor(group).unsqueeze(1) * size + torch.arange(size)).flatten()
                self._places[rows] = number * width + torch.arange(len(rows))

    def table(self, own: Tensor) -> Tensor:
        """The table of all ranks' values, of which `own` `[B]` float64 are this rank's."""
        everyone = torch.tensor(self._ranks.gather(own.tolist()), dtype=torch.float64)
        flat = torch.full((self._shape[0] * self._shape[1],), torch.nan, dtype=torch.float64)
        flat[self._places] = everyone
        return flat.view(self._shape)

    def own(self, table: Tensor) -> Tensor:
        """This rank's values `[B]` of a `table`."""
        return table.flatten()[self._places[self._own]]


def dead_frac(table: Tensor) -> float:
    """Share of the groups of a reward `table` whose rewards are all equal; 0 where groups are single completions."""
    return float(dead_groups(table).double().mean()) if table.shape[1] > 1 else 0.0
