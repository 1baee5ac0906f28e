"""What each table and figure of a reproduction shows, gathered from the run folders."""

from __future__ import annotations

from ..datasets.base import Bar
from ..reports.figures import Row
from ..runs.episodes import MOST_ITERATIONS
from ..runs.tuning import MULTIPLIERS
from .figures import FIGURES
from .job import Job, Section, over_seeds, section_of
from .paper import BUDGETS, PUBLISHED, PUBLISHED_TEST_WAYS, START, Column, System
from .plan import Source
from .setting import Setting


def make_section(job: Job, what: str, bar: Bar) -> Section:
    """A table or a figure with its numbers, of the cells that have ended."""
    if what not in FIGURES:
        return _table(job, what)
    rows, notes = FIGURES[what].numbers(job, job.planned[what], bar)
    return section_of(job, what, rows, notes)


def _table(job: Job, what: str) -> Section:
    planned: dict[System, dict[Column, dict[int, Source]]] = job.planned[what]
    setting = job.setting
    published = PUBLISHED.get(setting.dataset, {}) if setting.recipe.test.ways == PUBLISHED_TEST_WAYS else {}
    rows: list[Row] = []
    for system, sources in planned.items():
        for column, by_seed in sources.items():
            rows.append({
                "system": system.line, "shots": column[0], "distractors": column[1],
                **over_seeds(job, by_seed), "published": published.get(system.title, {}).get(column),
            })  # fmt: skip
    notes = [setting.caption()]
    if any(system.training == START["classifier"].method for system in planned):
        notes.append("The lines called Classifier are of the common start alone.")
    notes.append(
        f"{_about_choice(setting)} Bold: best of the column; underlined or in italics: second. "
        + _about_published(setting, bool(published))
    )
    return section_of(job, what, rows, notes)


def _about_choice(setting: Setting) -> str:
    if not setting.tuned:
        return "'it.': refinements, chosen on validation classes."
    return (
        "'it.': refinements; 'x': what cluster_scale is multiplied by. Temperature and refinements chosen on "
        f"validation classes, {len(MULTIPLIERS)} x {MOST_ITERATIONS} trials each; "
        "a system without soft labels has no temperature; TPN has its alpha and neighbours chosen by as many trials."
    )


def _about_published(setting: Setting, there: bool) -> str:
    if not there and setting.dataset in PUBLISHED:
        return f"The published figures are of {PUBLISHED_TEST_WAYS} ways in testing, so they do not stand beside these."
    if not there:
        return "There are no published figures for this data set."
    short = setting.budget.episodes < BUDGETS["paper"].episodes
    warning = (
        f" These models saw {setting.budget.episodes:,} training episodes, TapNet's public code takes "
        f"{BUDGETS['paper'].episodes:,}: trained too briefly to be compared with the published figures."
    )
    return "Published: beside ours, with the difference." + (warning if short and setting.dataset != "omniglot" else "")
