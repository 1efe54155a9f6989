"""report.html: what it tells of runs in every state, that its figures are theirs, that no text of a run is markup."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.report import report
from elastic_tpu.report.page import page
from elastic_tpu.report.run_records import AttemptRow, Records
from elastic_tpu.report.story import account, checkpoints, curve, headline, step_times, tell
from elastic_tpu.report.timeline import timeline
from elastic_tpu.runs.judge import goodput
from elastic_tpu.runs.record import loss_log, paths, proof
from elastic_tpu.runs.record.claim import Claim, StoredClaim
from elastic_tpu.runs.record.events import Event, EventLog
from elastic_tpu.runs.record.loss_log import Loss
from elastic_tpu.runs.record.result import TrainingResult
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.record.status import SliceCount, Status
from elastic_tpu.runs.spec.gate import evaluate_gate
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.runs.store import records
from elastic_tpu.tests.tools import small

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def event(second: float, kind: str, step: int | None = None, writer: str = "trainer", **data: Any) -> Event:
    return Event(at(second), writer, kind, 1, step, data)


def finished(second: float, **changes: Any) -> Event:
    seconds = {"detect": 1.0, "wait": 4.0, "rebuild": 2.0, "first_step": 0.5}
    data = {"cause": "slice 1 lost", "slices": [1], "reached": 29, "restored": 20, "steps_lost": 9, "exact": True}
    return event(second, "recovery.finished", 21, **{**data, "seconds": seconds, "repeated_seconds": 4.5, **changes})


EVENTS = (
    event(0, "slice.requested", writer="local", slice=0),
    event(0, "slice.requested", writer="local", slice=1),
    event(5, "slice.ready", writer="local", slices=[0, 1], all=True),
    event(6, "attempt.started"),
    event(10, "train.first_step", 0, seconds=2),
    event(12, "checkpoint.saved", 20),
    event(13, "checkpoint.proven", 20, digest="ab" * 32, files=3),
    event(25, "slice.lost", writer="local", slice=1, how="signal 9"),
    event(26, "recovery.started", 29, cause="slice 1 lost", slices=[1], trained_seconds=17),
    event(29, "slice.back", writer="local", slice=1),
    finished(32.5),
)
STATUS = Status("small-1", 1, "n", phase="training", step=40, steps=100, loss=2.5, trained_seconds=9.0)
KINDS = {"start": 5.0, "detect": 1.0, "wait": 4.0, "rebuild": 2.0, "first_step": 0.5, "repeated": 4.5, "training": 33.0}
RESULT = TrainingResult(99, "/runs/small/checkpoints/99", "d" * 64, "h", 1, 1, 9, 0.66, {**KINDS, "other": 0.0}, False)


def of(**changes: Any) -> Records:
    base = Records("/runs/small", small.spec(export=False, evaluate=False), at(42), EVENTS, STATUS, at(41))
    return replace(base, **changes)


class Page(HTMLParser):
    """What a reader of the page sees, by the names that the page itself gives."""

    VOID = frozenset(["meta", "br", "img", "link"])

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.fields: dict[str, str] = {}
        self.text = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag not in self.VOID:
            self._open.append((tag, values.get("data-field")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1][0] == tag, f"</{tag}> closes <{self._open[-1][0]}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if any(tag == "style" for tag, _ in self._open):
            return
        self.text += data
        for _, field in self._open:
            if field:
                self.fields[field] = self.fields.get(field, "") + data

    def rows(self, attribute: str) -> dict[str, dict[str, str]]:
        """Attributes of the elements that have this one, by its value."""
        return {values[attribute]: values for _, values in self.tags if attribute in values}


def laid_out(found: Records) -> Page:
    return Page(page(tell(found)))


# -- figures ----------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_counts_the_stretch_that_no_event_has_yet() -> None:
    found = of()
    spent = account(found)
    open_stretch = event(42, "train.stopped", trained_seconds=9.0)
    assert spent == goodput.measure([*EVENTS, open_stretch], at(42))
    assert spent.seconds_by_kind["training"] == pytest.approx(17 + 9 - 4.5 - 0.5 - 2)
    shown = laid_out(found)
    assert {k: float(v["data-seconds"]) for k, v in shown.rows("data-kind").items()} == {
        kind: seconds for kind, seconds in spent.seconds_by_kind.items() if seconds
    }
    assert shown.fields["goodput"].startswith(f"{100 * spent.productive / spent.total:.1f} %")
    assert shown.fields["recoveries"].split() == ["1", "9", "steps", "lost"]
    assert shown.fields["steps"] == "41 of 100"


@pytest.mark.parametrize(
    ("case", "more", "until"),
    [
        ("a recovery is under way: its start has the stretch", (event(40, "recovery.started", 40),), 42),
        ("training ended: its end has it", (event(41, "train.stopped", 40, trained_seconds=9.0),), 42),
    ],
)
def test_a_stretch_is_counted_once(case: str, more: tuple[Event, ...], until: float) -> None:
    found = of(events=EVENTS + more)
    assert account(found) == goodput.measure(found.events, at(until)), case


def test_a_run_with_a_result_shows_the_result_s_own_account() -> None:
    shown = laid_out(of(result=RESULT))
    assert {k: float(v["data-seconds"]) for k, v in shown.rows("data-kind").items()} == KINDS
    assert shown.fields["goodput"] == "66.0 % of 50.0 s"


def test_time_stops_when_the_trainer_falls_silent() -> None:
    assert account(of(now=at(5000))).total == 41 - 5  # ready at 5, last heartbeat at 41
    assert account(of(status=replace(STATUS, phase="ended", exit=70), now=at(5000))).total == 32.5 - 5


@pytest.mark.parametrize(
    ("steps", "kept", "repeated"),
    [
        ([], [], []),
        ([0, 1, 2], [0, 1, 2], []),
        ([0, 1, 2, 3, 2, 3, 4], [0, 1, 2, 3, 4], [[1, 2, 3]]),
        ([0, 1, 2, 4, 5], [0, 1, 2, 4, 5], []),  # a checkpoint newer than the last step that was told: nothing lost
        ([0, 1, 2, 0, 1], [0, 1], [[0, 1, 2]]),  # begun anew
        ([0, 1, 2, 3, 2, 3, 1, 2], [0, 1, 2], [[0, 1, 2, 3], [2, 3]]),  # lost twice
    ],
)
def test_steps_done_again_are_told_from_those_that_count(
    steps: list[int], kept: list[int], repeated: list[list[int]]
) -> None:
    made = curve([Loss(step, 1.0, float(i)) for i, step in enumerate(steps)])
    assert [p.step for p in made.kept] == kept
    assert [[p.step for p in line] for line in made.repeated] == repeated


def test_the_chart_has_the_curve_the_lost_steps_and_each_recovery() -> None:
    points = [Loss(step, 5 - step / 20, step) for step in [*range(30), *range(21, 41)]]
    shown = laid_out(of(losses=tuple(points)))
    series = [values["class"].split()[1] for tag, values in shown.tags if "series" in values.get("class", "")]
    assert {"serie-0", "serie-1", "serie-2"} == set(series)
    assert "steps that were lost and done again" in shown.text
    assert shown.fields["loss"] == "3.0000 from 5.0000"
    many = (*EVENTS, *(finished(40 + i, reached=29 + i) for i in range(3)), finished(50, reached=90))
    chart = laid_out(of(events=many, losses=tuple(points)))
    assert "1-4" in chart.text  # too near one another for a number each
    assert "No losses were recorded" in laid_out(of()).text


@pytest.mark.parametrize(("losses_", "logarithmic"), [([5.0, 1.0], False), ([60.0, 2.5], True), ([60.0, -1.0], False)])
def test_a_curve_that_falls_far_is_drawn_on_a_logarithmic_axis(losses_: list[float], logarithmic: bool) -> None:
    shown = laid_out(of(losses=tuple(Loss(step, loss, 0.0) for step, loss in enumerate(losses_))))
    assert ("logarithmic" in shown.text) is logarithmic


@pytest.mark.parametrize("losses_", [[None], [2.0], [2.0, None, 1.0], [7.0, 7.0]])
def test_the_chart_of_few_or_odd_losses(losses_: list[float | None]) -> None:
    laid_out(of(losses=tuple(Loss(step, loss, 0.0) for step, loss in enumerate(losses_))))


# -- slices, attempts, checkpoints ------------------------------------------------------------------------------------


def test_slices_and_training_over_time() -> None:
    made = timeline(EVENTS, {("train", 1): at(40)}, at(42))
    assert made is not None
    lanes = {lane.name: [(s.state, (s.begin - NOON).seconds, (s.end - NOON).seconds) for s in lane.spans]
             for lane in made.lanes}  # fmt: skip
    assert lanes == {
        "slice 0": [("requested", 0, 5), ("ready", 5, 42)],
        "slice 1": [("requested", 0, 5), ("ready", 5, 25), ("lost", 25, 29), ("ready", 29, 42)],
        "training": [("starting", 6, 10), ("training", 10, 26), ("recovering", 26, 32), ("training", 32, 40)],
    }


@pytest.mark.parametrize(
    ("told", "account", "result"),
    [
        ({"exact": False}, "estimated", "not told"),
        ({"account": "exact", "result": "bit-identical"}, "exact", "bit-identical"),
        ({"account": "exact", "result": "2 of 3 slices"}, "exact", "not bit-identical: 2 of 3 slices"),
    ],
)
def test_a_recovery_shows_its_account_and_what_became_of_the_result(
    told: dict[str, Any], account: str, result: str
) -> None:
    text = page(tell(of(events=(*EVENTS[:-1], finished(32.5, **told)))))
    assert f'<td data-label="Account">{account}<small>' in text
    assert f'<td data-label="Result">{result}</td>' in text


def test_the_page_says_on_which_batch_was_trained() -> None:
    fewer = event(33, "train.slices", 21, active=1, wanted=2, global_batch=4, full_batch=8)
    text = page(tell(of(events=(*EVENTS, fewer, event(34, "train.slices", 31)))))
    assert "from step 21 on 1 of 2 slices, global batch 4 instead of 8, the learning rate stays" in text


def test_slices_that_are_away_show_in_the_lane_and_in_the_account() -> None:
    away = (
        event(33, "train.suspended", 25, slices=[1], why="3 of 4 pods ready"),
        event(39, "train.resumed", 25, seconds=6.0),
    )
    found = of(events=(*EVENTS, *away))
    line = tell(found).timeline
    assert line is not None
    lane = next(lane for lane in line.lanes if lane.name == "training")
    assert [(span.state, span.note) for span in lane.spans[-2:]] == [
        ("suspended", "3 of 4 pods ready"),
        ("training", ""),
    ]
    assert laid_out(found).rows("data-kind")["suspended"]["data-seconds"] == "6.0"


def test_slices_that_are_away_in_a_recovery_leave_it_one() -> None:
    away = (event(27, "train.suspended", 29, slices=[1], why="away"), event(28, "train.resumed", 29, seconds=1.0))
    line = tell(of(events=tuple(sorted((*EVENTS, *away), key=lambda e: e.time)))).timeline
    assert line is not None
    lane = next(lane for lane in line.lanes if lane.name == "training")
    assert [span.state for span in lane.spans] == ["starting", "training", "recovering", "training"]


def test_a_process_that_was_killed_leaves_a_gap_until_the_next_one_starts() -> None:
    again = (*EVENTS, event(60, "attempt.started"), event(61, "recovery.started", 40))
    made = timeline(again, {("train", 1): at(50)}, at(70))
    assert made is not None
    training = [(s.state, (s.begin - NOON).seconds, (s.end - NOON).seconds) for s in made.lanes[-1].spans]
    assert training[-3:] == [("training", 32, 50), ("starting", 60, 61), ("recovering", 61, 70)]


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "complete"), (70, "a bug or user error"), (-9, "killed by SIGKILL"), (-200, "killed by signal 200"),
     (3, "not a code of the trainer"), (None, "has not ended, or its exit was not observed")],
)  # fmt: skip
def test_exit_codes_in_words(code: int | None, words: str) -> None:
    assert AttemptRow("train", 1, code=code).meaning == words


def test_what_became_of_each_checkpoint() -> None:
    proofs = {
        step: proof.Proof(step, {"a": proof.FileProof(7, "x"), proof.COMMIT: proof.FileProof(2, "y")})
        for step in (30, 40)
    }
    whole = {"a": 7, proof.COMMIT: 2}
    more = [event(30 + step, f"checkpoint.{what}", step, why=["cut short"]) for step, what in
            [(10, "saved"), (10, "rejected"), (30, "saved"), (30, "proven"), (40, "saved"), (50, "saved")]]  # fmt: skip
    found = checkpoints(
        of(events=(*EVENTS, *more), proofs=proofs, sizes={30: {**whole, "a": 6}, 40: whole, 50: {proof.COMMIT: 2}})
    )
    assert {c.step: c.state for c in found} == {
        50: "unproven", 40: "kept", 30: "differs", 20: "removed", 10: "rejected"
    }  # fmt: skip
    assert [c.step for c in found] == [50, 40, 30, 20, 10]
    assert (found[1].files, found[1].size, found[1].digest) == (2, 9, proofs[40].digest)
    assert found[4].note == "cut short"


# -- where the run is -------------------------------------------------------------------------------------------------

HELD = StoredClaim(Claim(holder="me", instance="1", term=1, state="held", nonce="n", seconds=600), "g", NOON)
EVALUATED = small.spec(export={}, evaluate={"gate": ["heldout.loss <= 2"]})
METRICS = {"heldout": {"loss": 2.5}}


@pytest.mark.parametrize(
    ("state", "text", "changes"),
    [
        ("idle", "Training has not started", {"status": None}),
        ("failed", "The trainer did not start: exit code 70 (a bug or user error), no such module",
         {"status": None, "attempts": (AttemptRow("train", 1, code=70, reason="no such module"),)}),
        ("live", "Training, step 41 of 100 done", {}),
        ("live", "Waiting, step 41 of 100 done (slice 1 lost)",
         {"status": replace(STATUS, phase="waiting", reason="slice 1 lost")}),
        ("stopped", "Stopped on request after step 41 of 100: me asked",
         {"status": replace(STATUS, phase="ended", exit=76, reason="me asked")}),
        ("failed", "Ended after step 41 of 100 with exit code 77 (a limit of the spec is spent): limits.total",
         {"status": replace(STATUS, phase="ended", exit=77, reason="limits.total")}),
        ("failed", "Not running: the last heartbeat, 1 h ago, said training after step 41 of 100", {"now": at(3641)}),
        ("complete", "Complete: step 99 is proven", {"result": RESULT}),
        ("live", "Trained: step 99 is proven; export is next or under way",
         {"result": RESULT, "spec": EVALUATED, "claim": HELD}),
        ("stopped", "Trained: step 99 is proven; export has not been done", {"result": RESULT, "spec": EVALUATED}),
        ("failed", "Trained: step 99 is proven, but export failed: exit code 70 (a bug or user error), no room",
         {"result": RESULT, "spec": EVALUATED, "attempts": (AttemptRow("export", 1, code=70, reason="no room"),)}),
        ("failed", "Trained: step 99 is proven, but the gate did not pass",
         {"result": RESULT, "spec": EVALUATED, "manifest": {}, "evaluation": {},
          "gate": evaluate_gate(["heldout.loss <= 2"], METRICS)}),
        ("failed", "Trained: step 99 is proven, but the evaluation contradicts itself",
         {"result": RESULT, "spec": EVALUATED, "manifest": {}, "evaluation": {},
          "gate": evaluate_gate(["heldout.loss <= 9"], {"heldout": {"loss": 2.5, "tokens": 0}})}),
        ("complete", "Complete: step 99 is proven, the gate passed",
         {"result": RESULT, "spec": EVALUATED, "manifest": {}, "evaluation": {},
          "gate": evaluate_gate(["heldout.loss <= 3"], METRICS)}),
    ],
)  # fmt: skip
def test_where_the_run_is(state: str, text: str, changes: dict[str, Any]) -> None:
    found = headline(of(**changes))
    assert (found.state, found.text) == (state, text)


# -- the page ---------------------------------------------------------------------------------------------------------

EVIL = '"><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'


def evil() -> Records:
    """A run whose every free text tries to be markup."""
    spec = small.spec(
        data={"train": f"/data/{EVIL}.parquet"},
        run={"labels": {"team": "nlp"}},
        evaluate={"gate": ["heldout.loss <= 9"]},
    )
    return of(
        uri=f"/runs/{EVIL}",
        spec=spec,
        events=(
            *EVENTS,
            finished(33, cause=EVIL),
            event(34, "checkpoint.rejected", 33, why=[EVIL]),
            event(35, "slice.lost", writer="local", slice=0, how=EVIL),
            event(40, "recovery.started", 40, cause=EVIL),
        ),
        status=replace(STATUS, reason=EVIL),
        result=RESULT,
        claim=replace(HELD, claim=HELD.claim.model_copy(update={"holder": EVIL})),
        attempts=(AttemptRow("train", 1, NOON, at(40), 70, EVIL),),
        losses=tuple(Loss(step, 5 - step / 20, step) for step in [*range(30), *range(21, 41)]),
        manifest={"files": {EVIL: {"size": 3}}, "export_digest": EVIL, "step": 99},
        evaluation={"metrics": {"heldout": {"loss": 2.5, EVIL: EVIL}}},
        gate=evaluate_gate(["heldout.loss <= 9"], {"heldout": {"loss": EVIL}}),
        gaps=(EVIL,),
    )


def test_no_text_of_a_run_becomes_markup() -> None:
    text = page(tell(evil()))
    shown = Page(text)
    assert not [tag for tag, _ in shown.tags if tag in ("script", "img", "iframe", "link", "object", "base")]
    assert not [name for _, values in shown.tags for name in values if name.startswith("on")]
    assert shown.text.count(EVIL) >= 9  # told, word for word
    policy = next(v["content"] for tag, v in shown.tags if v.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_stands_alone_and_is_small() -> None:
    text = page(tell(of(losses=tuple(Loss(step, 5.0, step) for step in range(20_000)))))
    addresses = [v for _, values in Page(text).tags for n, v in values.items() if n in ("src", "href", "xlink:href")]
    assert addresses == []
    assert "url(" not in text
    assert "@import" not in text
    assert len(text) < 200_000


def test_only_the_page_of_a_run_that_goes_on_reloads_itself_and_each_says_as_of_when() -> None:
    live, over = laid_out(of()), laid_out(of(result=RESULT))
    reloads = [("meta", {"http-equiv": "refresh", "content": "30"})]
    assert [tag for tag in live.tags if tag[1].get("http-equiv") == "refresh"] == reloads
    assert [tag for tag in over.tags if tag[1].get("http-equiv") == "refresh"] == []
    assert live.fields["asof"].startswith("As of 2026-01-31 12:00:42 UTC; written anew")
    assert over.fields["asof"] == "As of 2026-01-31 12:00:42 UTC"


def test_the_log_of_each_attempt_is_a_link_beside_the_page() -> None:
    found = laid_out(of(attempts=(AttemptRow("train", 2), AttemptRow("export", 1))))
    links = [values["href"] for tag, values in found.tags if tag == "a"]
    assert links == ["attempts/2/trainer.log", "jobs/export/1/export.log"]


def test_step_times_leave_out_recoveries_and_give_tokens_a_second() -> None:
    # Steps of 2 s; step 2 is lost, and done again after a recovery of 100 s, in 4 s.
    times = [(0, 10.0), (1, 12.0), (2, 14.0), (2, 114.0), (3, 118.0)]
    losses = tuple(Loss(step, 1.0, when) for step, when in times)
    assert [(p.step, p.loss) for p in step_times(losses)] == [(1, 2.0), (2, 2.0), (3, 4.0)]
    plan = make_plan(small.spec())
    found = tell(of(losses=losses, plan=plan)).speed
    assert found is not None
    assert found.step_seconds == 2.0
    assert found.tokens_per_second == plan.global_batch * 2048 / 2.0  # MaxText's own max_target_length
    assert "tokens/s" in laid_out(of(losses=losses, plan=plan)).fields["speed"]


def test_steps_on_fewer_slices_count_the_tokens_that_they_had() -> None:
    losses = tuple(Loss(step, 1.0, 2.0 * step) for step in range(8))
    plan = make_plan(small.spec())
    fewer = event(33, "train.slices", 2, active=1, wanted=2, global_batch=plan.global_batch // 2, full_batch=0)
    again = event(34, "train.slices", 7, active=2, wanted=2, global_batch=plan.global_batch, full_batch=0)
    full = plan.global_batch * 2048 / 2.0
    told = [tell(of(losses=losses, plan=plan, events=found)).speed for found in ((), (fewer,), (fewer, again))]
    assert [speed.tokens_per_second for speed in told if speed] == [full, full / 2, full / 2]
    # A restore of step 3, on all slices: what was done on fewer is done anew.
    redone = event(35, "train.slices", 2, active=2, wanted=2, global_batch=plan.global_batch, full_batch=0)
    speed = tell(of(losses=losses, plan=plan, events=(fewer, redone))).speed
    assert speed is not None
    assert speed.tokens_per_second == full


def test_the_time_between_two_processes_is_no_step_time() -> None:
    # Stopped in order after step 10, gone on with an hour later: no step is done twice.
    losses = tuple(Loss(step, 1.0, when) for step, when in [(9, 0.0), (10, 2.0), (11, 3602.0), (12, 3604.0)])
    found = tell(of(losses=losses, events=(event(3600, "train.restored", 10),))).step_times
    assert [(p.step, p.loss) for p in found] == [(10, 2.0), (12, 2.0)]


def test_simulated_slices_are_called_simulated_and_others_are_not() -> None:
    assert "simulated slices" in laid_out(of()).text
    assert "not figures of TPUs" in laid_out(of()).text
    real = small.gke(gke={"project": "p", "location": "l", "cluster": "c"})
    from elastic_tpu.runs.spec.load import check

    assert "simulated" not in laid_out(of(spec=check(real))).text


# -- from the run directory -------------------------------------------------------------------------------------------


def written(store_uri: str) -> tuple[Run, Page]:
    """A run with a bit of everything on a real store, and its report as it is there."""
    run = small.run_at(store_uri, export=False, evaluate=False)
    log = EventLog(run.store, "trainer", 1)
    log.write("slice.ready", slices=[0, 1], all=True)
    log.write("attempt.started", pid=1)
    log.write("train.first_step", step=0, seconds=0.5)
    log.write("checkpoint.saved", step=10)
    small.checkpoint(run, 10)
    proven = proof.Proof(10, proof.files_of(run.store, 10))
    run.store.put(paths.proof(10), proven.dump())
    log.write("checkpoint.proven", step=10, digest=proven.digest, files=len(proven.files))
    run.store.put("attempts/1/started.json", records.dump({"time": records.timestamp(NOON), "pid": 1}))
    run.store.put("attempts/1/exit.json", records.dump({"time": records.timestamp(at(90)), "exit_code": -9}))
    run.store.put("attempts/2/started.json", records.dump({"time": records.timestamp(at(95)), "pid": 2}))
    run.store.put(paths.STATUS, Status(run.run_id, 2, "n", phase="training", step=12, steps=100, loss=3.5,
                                       slices=SliceCount(2, 2)).dump())  # fmt: skip
    for attempt, steps in ((1, range(12)), (2, range(11, 13))):
        points = [Loss(step, 5 - step / 10, 1e9 + step) for step in steps]
        run.store.put(loss_log.file_name(attempt), loss_log.dump(points, 1))
    where = report.write_report(run)
    assert where == f"{run.uri}/report.html"
    return run, Page(run.store.read("report.html").data.decode())


def test_a_run_on_a_folder_or_a_bucket(store_uri: str) -> None:
    run, shown = written(store_uri)
    assert shown.fields["headline"] == "Training, step 13 of 100 done"
    assert shown.fields["loss"] == "3.8000 from 5.0000"
    assert shown.rows("data-checkpoint") == {"10": {"data-checkpoint": "10", "data-state": "kept"}}
    assert list(shown.rows("data-attempt")) == ["train-1", "train-2"]
    assert "killed by SIGKILL" in shown.text
    story = tell(report.read_records(run))
    assert [p.step for p in story.curve.kept] == list(range(13))
    assert [[p.step for p in line] for line in story.curve.repeated] == [[10, 11]]


def test_an_empty_run(tmp_path: Path) -> None:
    shown = Page(report.render(small.run_at(tmp_path)))
    assert shown.fields["headline"] == "Training has not started"
    for nothing in ("No slice has been requested yet", "No job has been started", "No checkpoint has been saved",
                    "No losses were recorded", "No time has been measured yet"):  # fmt: skip
        assert nothing in shown.text


def test_what_cannot_be_read_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    run, _ = written(str(tmp_path))
    for name in (
        "status.json",
        "result.json",
        "claim.json",
        "attempts/1/exit.json",
        loss_log.file_name(1),
        "proofs/10.json",
    ):
        run.store.put(name, b'{"cut')
    shown = Page(report.render(run))
    assert "Records that could not be read" in shown.text
    for name in ("status.json", "result.json", "claim.json", "attempts/1/exit.json"):
        assert name in shown.text.partition("Records that could not be read")[2]
    assert list(shown.rows("data-attempt")) == ["train-1", "train-2"]
    assert shown.rows("data-checkpoint")["10"]["data-state"] != "kept"
