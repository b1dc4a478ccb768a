"""Whether a report draws the conclusion that its truth job calls for."""

import json

from cases import Case
from run import Outcome

DATA_CAUSES = {"fetch", "prep", "starved", "transfer"}
# Points of training time from which a report names a stall (WORTH in collector/ledger/src/diagnose.rs).
WORTH = 5


def is_decided(case: Case, outcome: Outcome) -> bool:
    """False where a job that was made to have no stall had one, as it may where the machine is busy elsewhere, or one that
    was made to wait did not."""
    waited = [sum(found.truth[cause] for cause in DATA_CAUSES) for found in outcome.comparisons]
    if case.waits:
        return min(waited) >= WORTH
    return not case.no_stall or max(waited) < WORTH


def complaint(case: Case, outcome: Outcome, kernel: bool = True) -> str | None:
    """What is wrong with the conclusions of `stallscope report --format json`; None when nothing is. The run decides.
    `kernel`: there was kernel evidence, without which no files are known, nor whether anybody disagrees."""
    report = outcome.report
    verdict, diagnoses = report["verdict"], report["diagnoses"]
    for found, rank in zip(outcome.comparisons, report["ranks"], strict=False):
        # A step that an evaluation cuts in two has two rows.
        steps = sum(phase["steps"] for phase in rank["phases"] if phase["phase"] == "training")
        if found.true_steps is not None and steps != found.true_steps:
            return f"{steps} steps were recorded, of {found.true_steps}"
    for found, rank in zip(outcome.comparisons, report["ranks"], strict=False):
        seen = rank["checkpoints"]
        if not found.saves_beside:
            continue
        if seen["in_background"] != found.saves_beside:
            return f"the state was saved {found.saves_beside} times beside the loop, of which {seen['in_background']} were seen"
        if abs(seen["background_ns"] - found.saving_beside_ns) > found.saving_beside_ns / 10:
            took, known = found.saving_beside_ns / 1e9, seen["background_ns"] / 1e9
            return f"saves beside the loop took {took:.2f} s, of which {known:.2f} s were seen"
    if case.waits_for and kernel:
        files = [file["path"] for file in report["files"]]
        if not files or not files[0].endswith(case.waits_for):
            return f"training waited for {case.waits_for}, but the report names {files[:3]}"
        if not report["phases"] and files[0] not in verdict["sentence"]:
            return f"training waited for {files[0]}, which the report's first line does not name: {verdict['sentence']}"
    if case.withheld:
        shown = [phase["phase"] for phase in report["phases"] if phase["phase"] == "training"]
        if shown or case.withheld not in json.dumps(report["shim"]):
            return f"training steps were to be withheld, but the report has {len(shown)} and says {report['shim']}"
    if case.no_stall:
        stalls = [found["name"] for found in diagnoses if found["cause"] in DATA_CAUSES]
        if stalls or verdict["finding"].split("-")[0] in DATA_CAUSES:
            return f"no data stall was to be found, but the report says '{verdict['sentence']}' and {stalls}"
    if case.slow_rank is not None:
        sentences = [verdict["sentence"], *(found["finding"] for found in diagnoses)]
        if not any(f"rank {case.slow_rank}" in sentence for sentence in sentences):
            return f"rank {case.slow_rank} was the slow one, but the report only says {sentences}"
    if case.agreement_bar is not None and kernel:
        differ = report["disagreement_share"]
        if differ is None or 100 * differ > case.agreement_bar:
            return f"kernel and shim were to agree within {case.agreement_bar} points, but differ by {differ}"
    if case.finding and verdict["finding"] != case.finding:
        return f"'{case.finding}' was to be found, but the report says '{verdict['sentence']}'"
    return None
