"""A run of a program of the user's own: prepares its working folder, and judges what the program left."""

from dataclasses import replace
from pathlib import Path

from harness.environments.executors.job import Executor
from harness.environments.python.programs import changed_source
from harness.evidence.app_reports.exposure import said_all_at_once
from harness.evidence.app_reports.program_progress import ProgramProgress, progress_of
from harness.evidence.files.program_files import take_over
from harness.evidence.outcome.decide import stands_so_far
from harness.evidence.outcome.evidence import Evidence, ProgramEvidence
from harness.run.products import check_products, stamps
from harness.run.spec import RunSpec
from harness.run.verify import loader_of
from harness.run.watch.watch import Watch


class OwnProgram:
    """The program of a run, if it is the user's own; for a run of our app the methods do nothing.

    `progress`: reads the progress that the program reports; None for our app.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._program = program = spec.request.program
        self._before: dict[str, tuple[object, ...]] = {}
        self.progress: ProgramProgress | None = None
        if program:
            self.progress = progress_of(spec.folder, program)

    def prepare(self) -> None:
        """Make the program's working folder, or take over an earlier one, with a link to each thing in its source.

        Raises:
            UserError: when the folder cannot be made.
        """
        if self._program:
            if self._spec.taken_over:
                take_over(self._spec.taken_over, self._spec.work, Path(self._spec.folder.left_out))
            self._spec.folder.make_links(self._spec.links)
            self._before = stamps(self._spec.folder, self._program)

    def judged(self, evidence: Evidence, watch: Watch, executor: Executor, root: Path) -> Evidence:
        """Return the evidence of a program that ended by itself; check its files if nothing else speaks against it.

        Of one that hangs without a line of progress, say so: its pattern may be wrong.

        Raises:
            UserError: when a copy of a file cannot be written.
            KeyboardInterrupt: when the checks are interrupted.
        """
        spec, program, progress = self._spec, self._program, self.progress
        if program is None or progress is None:
            return evidence
        if watch.stopped_by:
            why = f"; {program.no_progress}" if watch.stopped_by == "watchdog" and not progress.advances else ""
            return replace(evidence, stop_detail=f"{evidence.stop_detail}{why}")
        progress.take_in_all()
        log = spec.folder.log
        seen = ProgramEvidence(
            advances=progress.advances,
            step=progress.step,
            total=progress.total,
            loss=progress.loss,
            loss_unread=progress.loss_unread,
            printed=log.is_file() and log.stat().st_size > 0,
            at_once=said_all_at_once(program, watch.progress.exposure.exposure),
            survivors=watch.survivors,
            changed=changed_source(program),
        )
        evidence = replace(evidence, program=seen)
        if not program.produces or not stands_so_far(spec.request, evidence):
            return evidence
        products = check_products(spec.folder, program, self._before, loader_of(spec, executor, root))
        return replace(evidence, program=replace(seen, products=products))
