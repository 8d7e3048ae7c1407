"""A bench that another process of this host can open."""

from dataclasses import dataclass, replace

from harness.base.errors import NoEngineError
from harness.campaign.bench.bench import Bench
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.process import ProcessExecutor
from harness.host.engine import find_engine


@dataclass(frozen=True)
class PortableBench:
    """A bench without its connection to the Docker engine. `contained`: whether the bench has an engine."""

    bench: Bench
    contained: bool

    @classmethod
    def of(cls, bench: Bench) -> "PortableBench":
        """Return a bench that can be pickled, with everything that was made ready on it."""
        return cls(replace(bench, engine=None, executor=ProcessExecutor()), bench.engine is not None)

    def open(self) -> Bench:
        """Return the bench, connected to the Docker engine if it had one.

        Raises:
            UserError: when the engine is gone.
        """
        if not self.contained:
            return self.bench
        engine = find_engine()
        if engine is None:
            raise NoEngineError("no Docker engine answers any more")
        return replace(self.bench, engine=engine, executor=DockerExecutor(engine, self.bench.results.runs))
