"""What an orchestrator's log gets of a stage that goes on for weeks."""

from __future__ import annotations

from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.stages.progress import ProgressLog


def test_a_log_has_each_change_and_otherwise_a_line_from_time_to_time() -> None:
    now, said = [0.0], list[str]()
    log = ProgressLog(said.append, 300.0, lambda: now[0])
    running, lost = Verdict("running"), Verdict("recovering", reason="slice 1 lost")
    looks = [(0, running, "1"), (10, running, "2"), (20, lost, "lost"), (30, lost, "still lost"), (40, running, "3")]
    for now[0], verdict, line in [*looks, (339, running, "4"), (340, running, "5"), (350, running, "6")]:
        log.look(verdict, line)
    assert said == ["1", "lost", "3", "5"]
