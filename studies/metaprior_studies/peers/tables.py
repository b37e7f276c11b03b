"""The environments of the comparison: five of `metaprior bench-data` and ten tables of R packages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.environments.grouped_tasks import GroupedTasks
from metaprior_studies.environments.r_tables import TABLES
from metaprior_studies.real import real_study


@dataclass(frozen=True)
class PeerEnvironment:
    """A source and a target environment, and how many tasks a draw has of each."""

    name: str
    read: Callable[[], GroupedTasks] = field(repr=False)
    n_source: int
    n_target: int
    n_test: int
    max_samples: int | None = None  # of a source or target task
    n_drawn: int | None = None  # target tasks to draw, the first n_target of which are used

    def draw(self, seed: int) -> DrawnTasks:
        """Draw source and target tasks, and test tasks of other groups of the target environment."""
        n_target = self.n_drawn or self.n_target
        drawn = _load(self.read).draw(self.n_source, n_target, self.n_test, seed, self.max_samples)
        return drawn._replace(target=drawn.target[: self.n_target])


def _studied(study: real_study.RealStudy) -> PeerEnvironment:
    """Return an environment of `metaprior bench-data`, with the same tasks in every draw."""
    numbers = (study.n_source, study.n_target, study.n_test, study.max_samples, study.n_many)
    return PeerEnvironment(study.name, real_study.ENVIRONMENTS[study.name], *numbers)


def _table(name: str, n_source: int, n_target: int, n_test: int, max_samples: int | None = None) -> PeerEnvironment:
    return PeerEnvironment(name, TABLES[name].read, n_source, n_target, n_test, max_samples)


@lru_cache
def _load(read: Callable[[], GroupedTasks]) -> GroupedTasks:
    return read()


ENVIRONMENTS: dict[str, PeerEnvironment] = {
    each.name: each
    for each in (
        *(_studied(study) for study in real_study.STUDIES.values()),
        # As many test tasks as the tables have groups that are not target tasks, up to 60.
        _table("exam", 30, 6, 23, 12),
        _table("hsb82", 40, 6, 60, 12),
        _table("nlschools", 40, 6, 29, 12),
        _table("pbcseq", 40, 6, 60, 12),
        _table("milk", 40, 5, 20, 12),
        _table("spruce", 40, 5, 20),
        _table("soybean", 24, 5, 19),
        _table("chicks", 18, 5, 25),
        _table("orthodont", 16, 4, 7),
        _table("rats", 8, 3, 5),
    )
}
