"""Few-shot classification: episodes of a few classes, drawn from data sets such as those in `images`."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from metaprior.checks import check_bool, check_integer
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.environments.images import ClassData

Seed = int | np.random.Generator


@dataclass(frozen=True)
class FewShot:
    """Random classification tasks of `ways` classes; source and target environment are two data sets.

    Meta-training tasks have `shots` samples per class, of the train classes of source or target. Test tasks have
    `shots` context samples and `queries` query samples per class, of the target's test classes; validation tasks are
    of its validation classes. No sample occurs twice in a task. Labels are 0, ..., ways - 1 in turn, so that every
    prefix of a task is as balanced as possible.

    Tasks are drawn one after another. With the same seed, asking for fewer tasks gives the first of them, and passing
    a generator continues its sequence. So the images of many tasks, 85 kB each, need not be in memory at once.
    """

    source: ClassData
    target: ClassData
    ways: int = 2
    shots: int = 5
    queries: int = 15
    flatten: bool = True  # x is (n, input_dim); False keeps the shape of images

    def __post_init__(self):
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1)):
            check_integer(name, getattr(self, name), least)
        check_bool("flatten", self.flatten)
        for name in ("source", "target"):
            if not isinstance(data := getattr(self, name), ClassData):
                raise ValueError(f"{name} must be a data set such as images.cub(); got {type(data).__name__}.")
        if self.source.shape != self.target.shape:
            raise ValueError(
                f"source and target must have samples of the same shape; "
                f"got {self.source.shape} ({self.source.name}) and {self.target.shape} ({self.target.name})."
            )
        self._check(self.source, "train", self.shots)
        self._check(self.target, "train", self.shots)
        self._check(self.target, "validation", self.shots + self.queries)
        self._check(self.target, "test", self.shots + self.queries)

    def source_tasks(self, n_tasks: int, rng: Seed) -> list[Task]:
        """Draw meta-training tasks from the source's train classes."""
        return list(self._episodes(self.source, "train", n_tasks, self.shots, rng))

    def target_tasks(self, n_tasks: int, rng: Seed) -> list[Task]:
        """Draw meta-training tasks from the target's train classes."""
        return list(self._episodes(self.target, "train", n_tasks, self.shots, rng))

    def validation_tasks(self, n_tasks: int, rng: Seed) -> list[TestTask]:
        """Draw tasks from the target's validation classes, to choose settings on."""
        return self._with_queries("validation", n_tasks, rng)

    def test_tasks(self, n_tasks: int, rng: Seed) -> list[TestTask]:
        """Draw meta-test tasks from the target's test classes."""
        return self._with_queries("test", n_tasks, rng)

    def _with_queries(self, split, n_tasks, rng) -> list[TestTask]:
        n = self.ways * self.shots
        episodes = self._episodes(self.target, split, n_tasks, self.shots + self.queries, rng)
        return [TestTask(x[:n], y[:n], x[n:], y[n:]) for x, y in episodes]

    def _episodes(self, data, split, n_tasks, per_class, rng) -> Iterator[Task]:
        check_integer("n_tasks", n_tasks, 0)
        rng = np.random.default_rng(rng)
        classes = list(data.splits[split].values())
        for _ in range(n_tasks):
            chosen = rng.choice(len(classes), self.ways, replace=False)
            drawn = [rng.choice(classes[i], per_class, replace=False) for i in chosen]
            x = data.images(np.stack(drawn, axis=1).reshape(-1), self.flatten)
            yield Task(x, np.tile(np.arange(self.ways), per_class))

    def _check(self, data, split, needed):
        """Raise if the split has too few classes for an episode, or a class has too few samples."""
        classes = data.splits[split]
        if len(classes) < self.ways:
            raise ValueError(f"{data.name} has {len(classes)} {split} classes, but ways is {self.ways}.")
        for name, members in classes.items():
            if len(members) < needed:
                asked = "shots" if needed == self.shots else "shots + queries"
                raise ValueError(
                    f"{data.name}: {split} class {name} has {len(members)} samples, but {asked} is {needed}. "
                    f"Remove the class or ask for fewer samples."
                )
