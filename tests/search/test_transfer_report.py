"""The transfer report: verdicts that are right as often as they say, certificates, tables, JSON, pictures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from metaprior.search.averaging import Candidate, Choice, averaging_weights, select_weights
from metaprior.search.report import NO_SOURCE, Certificate, TransferReport, certify, make_report
from metaprior.wfem.settings import Settings

SETTINGS = Settings()
NAMES = ("source", "target")


def candidates(*alphas):
    return [Candidate((alpha, 1.0 - alpha), SETTINGS) for alpha in alphas]


def report_of(scores, alphas, n_tasks=None):
    """The report of a search over weights of one source with the given scores."""
    weights = select_weights(averaging_weights(scores), scores, 0)
    return make_report(Choice(candidates(*alphas), weights, scores), NAMES, 1, n_tasks or scores.shape[1])


@pytest.mark.parametrize(("n_tasks", "correlation"), [(2, 0.0), (3, 0.0), (5, 0.8), (12, 0.0)])
def test_without_an_effect_helps_is_said_in_less_than_five_percent_of_reports(n_tasks, correlation):
    rng, n_reports, n_sources = np.random.default_rng(n_tasks), 300, 4
    common, own = rng.normal(size=(n_reports, 1, n_tasks)), rng.normal(size=(n_reports, n_sources, n_tasks))
    gains = np.sqrt(correlation) * common + np.sqrt(1.0 - correlation) * own
    said = 0
    for gain in gains:
        verdict = report_of(np.vstack([np.zeros(n_tasks), gain]), np.linspace(0.0, 1.0, n_sources + 1)).verdict
        said += verdict.startswith("The source helps")
    assert said <= 0.05 * n_reports


def test_the_gain_of_a_task_is_weighted_by_the_other_tasks():
    """The first source is best on the first task alone, the second on all others."""
    scores = np.array([[0.0, 0.0, 0.0], [9.0, -1.0, -1.0], [-1.0, 4.0, 4.0]])
    gain, error = report_of(scores, (0.0, 0.5, 0.9)).source_gain
    gains = []
    for task in range(3):
        others = np.delete(scores, task, axis=1)
        weights = select_weights(averaging_weights(others), others, 0)[1:]
        gains.append(weights @ scores[1:, task] / weights.sum())
    assert gains[0] == pytest.approx(-1.0, abs=0.01)  # in-sample weights would count the 9
    assert (gain, error) == pytest.approx((np.mean(gains), np.std(gains, ddof=1) / np.sqrt(3)))


def test_a_report_of_labels_speaks_of_labels():
    scores = np.stack([np.zeros(8), np.random.default_rng(0).normal(1.0, 0.5, 8)])
    families = {"linear": 0.4, "common linear": 0.6}
    readings = replace(report_of(scores, (0.0, 0.5)), families=families)
    labels = TransferReport.from_json(replace(readings, outputs="labels").to_json())
    said = {each.outputs: " ".join(str(each).split()) for each in (readings, labels)}
    for outputs, what, unit in (("readings", "density", "reading"), ("labels", "probability", "label")):
        assert f"Scores: robust log {what} of held-out {outputs}, in nats per {unit}," in said[outputs]
        assert f"nats per {unit} over target-only" in said[outputs]
    assert "Left out, because they could not be fitted: smooth, curve, shapes." in said["readings"]
    assert "families of priors: common linear 0.60, linear 0.40. Scores" in said["labels"]
    assert "nats per label" in labels.plot().axes[0].get_xlabel()


def test_many_tasks_are_weighted_in_twenty_groups():
    """Two candidates and opposite halves: weights from the other groups, gains in the order of the tasks."""
    rng = np.random.default_rng(0)
    scores = np.vstack([np.zeros(50), rng.normal(0.1, 1.0, (2, 50))])
    gain, _ = report_of(scores, (0.0, 0.5, 0.9)).source_gain
    total = 0.0
    for group in np.array_split(np.arange(50), 20):
        others = np.delete(scores, group, axis=1)
        weights = select_weights(averaging_weights(others), others, 0)[1:]
        total += float((weights @ scores[1:, group]).sum() / weights.sum())
    assert gain == pytest.approx(total / 50)


def test_dropped_candidates_count_equally():
    scores = np.array([[0.0, 0.0, 0.0], [-8.0, -8.1, -8.2], [-9.0, -9.1, -9.2]])
    assert report_of(scores, (0.0, 0.5, 0.9)).source_gain[0] == pytest.approx(-8.6)


@pytest.mark.parametrize("n_tasks", [2, 5, 30])
def test_words_follow_student_s_t(n_tasks):
    """One source, so that its weight does not matter; gains just above and below the quantiles."""
    spread = stats.norm.ppf((np.arange(n_tasks) + 0.5) / n_tasks)
    spread = spread / (spread.std(ddof=1) / np.sqrt(n_tasks))  # mean 0, standard error 1
    for level, below, above in [
        (0.84, "It is unclear", "The source probably helps"),
        (0.99, "The source probably helps", "The source helps"),
    ]:
        quantile = stats.t.ppf(level, n_tasks - 1)
        for factor, words in ((0.99, below), (1.01, above)):
            scores = np.stack([np.zeros(n_tasks), factor * quantile + spread])
            assert report_of(scores, (0.0, 0.5)).verdict.startswith(words)
            opposite = words.replace("helps", "does not help") if "unclear" not in words else words
            assert report_of(-scores, (0.0, 0.5)).verdict.startswith(opposite)


def test_what_temperature_gains_is_not_the_sources():
    settings = [Settings(), Settings(temperature_factor=4.0)]
    weighed = [Candidate((alpha, 1.0 - alpha), s) for s in settings for alpha in (0.0, 0.5)]
    scores = np.array([[0.01, 0.0], [-0.17, -0.18], [1.01, 1.0], [0.83, 0.84]])
    report = make_report(Choice(weighed, np.array([0.1, 0.1, 0.7, 0.1]), scores), NAMES, 1, 2)
    assert report.verdict.startswith("The source does not help: -0.180")


@pytest.mark.parametrize(
    ("gains", "starts"),
    [
        ([0.5, 0.6, 0.4, 0.5], "The source helps: +0.500"),
        ([0.5, -0.3, 0.4, -0.2], "It is unclear whether the source helps: +0.100"),
        ([0.5, -0.1, 0.4, 0.0], "The source probably helps: +0.200"),
        ([-0.5, -0.6, -0.4, -0.5], "The source does not help: -0.500"),
        ([0.0, 0.0, 0.0, 0.0], "It is unclear whether the source helps: +0.000"),
    ],
)
def test_verdicts(gains, starts):
    scores = np.stack([np.zeros(4), np.array(gains)])
    report = make_report(Choice(candidates(0.0, 0.5), np.array([0.5, 0.5]), scores), NAMES, 1, 4)
    assert report.verdict.startswith(starts), report.verdict
    assert "4 held-out target tasks" in report.verdict
    assert report.gain[1] == pytest.approx(np.mean(gains))
    assert report.gain_standard_error[1] == pytest.approx(np.std(gains, ddof=1) / 2)


def test_a_report_fits_the_terminal_and_travels_as_json():
    scores = np.array([[0.0, 1.0], [0.5, -np.inf], [2.0, 2.0]])
    choice = Choice(candidates(0.0, 0.5, 1.0), np.array([0.25, 0.0, 0.75]), scores)
    report = make_report(choice, NAMES, 1, 2)
    text = str(report)
    table = text.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= 80
    assert "diverged" in table
    assert "alpha = 1 (source-only)" in table
    again = TransferReport.from_json(report.to_json())
    assert str(again) == text
    np.testing.assert_array_equal(again.alpha, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("scores", [None, np.array([[0.0, 1.0], [0.5, 0.2]])], ids=["given", "searched"])
@pytest.mark.parametrize("alphas", [(0.0, 0.5), (0.2, 0.5)], ids=["with target-only", "without"])
def test_every_report_can_be_printed_and_drawn(scores, alphas, tmp_path):
    report = make_report(Choice(candidates(*alphas), np.array([0.5, 0.5]), scores), NAMES, 1, 2)
    assert "alpha" in repr(report)
    report.plot().savefig(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 5000


def test_candidates_are_described():
    names = ("a", "b", "c", "d", "e", "target")
    weights = [(0.0,) * 5 + (1.0,), (0.1, 0.2, 0.3, 0.2, 0.1, 0.1), (0.2, 0.3, 0.4, 0.0, 0.0, 0.1), (0.2,) * 5 + (0.0,)]
    candidates = [Candidate(each, SETTINGS) for each in weights]
    report = make_report(Choice(candidates, np.array([0.4, 0.6, 0.0, 0.0]), None), names, 5, 3, 9)
    assert report.describe(0) == "alpha = 0 (target-only)"
    assert report.describe(1) == "a 0.1, b 0.2, c 0.3 and 2 more"
    assert report.describe(2) == "a 0.2, b 0.3, c 0.4"
    assert report.describe(3) == "a 0.2, b 0.2, c 0.2 and 2 more (source-only)"
    assert [row[3] for row in report.rows()] == ["0.40", "0.60", "-", "-"]
    np.testing.assert_allclose(report.alpha, [0.0, 0.9, 0.9, 1.0])
    four = make_report(Choice([Candidate((0.2,) * 4 + (0.0, 0.2), SETTINGS)], np.ones(1), None), names, 5, 3, 9)
    assert four.describe(0) == "a 0.2, b 0.2, c 0.2 and 1 more"


def test_alpha_at_which_all_tasks_weigh_the_same():
    choice = Choice(candidates(0.5), np.ones(1), None)
    assert make_report(choice, NAMES, 1, 5, 15).pooled_alpha == 0.75
    assert make_report(choice, NAMES, 1, 5).pooled_alpha is None


def test_without_target_only_there_is_no_gain():
    report = make_report(Choice(candidates(0.2, 0.5), np.ones(2) / 2, np.array([[0.0, 1.0], [1.0, 3.0]])), NAMES, 1, 2)
    assert report.gain is report.gain_standard_error is report.source_gain is None
    assert report.score.tolist() == [0.5, 2.0]
    assert report.standard_error.tolist() == [0.5, 1.0]
    assert "Target-only (alpha = 0) was not among the candidates" in report.verdict
    diverged = np.array([[0.0, -np.inf], [1.0, 3.0]])
    report = make_report(Choice(candidates(0.0, 0.5), np.array([0.0, 1.0]), diverged), NAMES, 1, 2)
    assert report.gain is report.source_gain is None


def test_verdicts_without_scores_or_sources():
    one = make_report(Choice(candidates(0.3), np.ones(1), None), NAMES, 1, 5)
    assert one.verdict == "Nothing was compared: alpha = 0.3."
    several = make_report(Choice(candidates(0.3, 0.5), np.ones(2) / 2, None), NAMES, 1, 1)
    assert several.verdict == "Nothing was compared: alpha = 0.4 on average, because no target task could be held out."
    alone = make_report(Choice(candidates(0.0), np.ones(1), np.array([[0.0, 1.0]])), NAMES, 1, 2)
    assert alone.verdict == NO_SOURCE
    untried = make_report(Choice(candidates(0.0), np.ones(1), np.array([[0.0, 1.0]])), NAMES, 1, 2, 30)
    assert untried.verdict == "The source was not tried: alpha = 0 (target-only)."
    assert NO_SOURCE not in str(untried)
    diverged = np.array([[0.0, 0.1], [-np.inf, 0.0]])
    assert make_report(Choice(candidates(0.0, 0.5), np.array([1.0, 0.0]), diverged), NAMES, 1, 2).source_gain is None


def test_gains_are_paired_differences_to_target_only():
    """Target-only need not score zero, nor come first; columns line up whatever the lengths of the descriptions."""
    scores = np.array([[-1.0, -2.0, -4.0], [-1.5, -2.25, -5.0]])
    report = make_report(Choice(candidates(0.5, 0.0), np.array([0.75, 0.25]), scores), NAMES, 1, 3)
    differences = scores[0] - scores[1]
    assert report.gain == pytest.approx([differences.mean(), 0.0])
    assert report.gain_standard_error == pytest.approx([differences.std(ddof=1) / np.sqrt(3), 0.0])
    table = str(report).split("\n\n")[1].splitlines()
    assert len({len(line) for line in table}) == 1
    assert table[2].index("-2.333") < table[2].index("+0.583")
    assert [line[: len("alpha = 0 (target-only)")].rstrip() for line in table[2:]] == [
        "alpha = 0.5",
        "alpha = 0 (target-only)",
    ]


def test_candidates_made_from_the_scores_do_not_judge_the_source():
    """The best sources combined were found on the tasks that would judge them."""
    scores = np.array([[0.0] * 4, [0.1, -0.1, 0.1, -0.1], [5.0, 5.1, 4.9, 5.0]])
    made = [*candidates(0.0, 0.5), Candidate((0.7, 0.3), SETTINGS, from_scores=True)]
    report = make_report(Choice(made, np.array([0.0, 0.0, 1.0]), scores), NAMES, 1, 4)
    assert report.source_gain[0] == pytest.approx(0.0, abs=1e-12)
    assert report.verdict.startswith("It is unclear")
    assert report.gain[2] == pytest.approx(5.0)  # the table has it


def test_the_gain_in_plain_log_density_is_said_and_a_disagreement_too():
    """The robust score hides a reading that is missed by far."""
    scores = np.stack([np.zeros(6), np.array([0.4, 0.5, 0.6, 0.5, 0.4, 0.6])])
    plain = scores - np.array([[0.0], [1.0]]) * np.array([0, 0, 0, 0, 0, 30.0])
    for densities, disagrees in ((scores, False), (plain, True)):
        choice = Choice(candidates(0.0, 0.5), np.array([0.2, 0.8]), scores, densities)
        report = make_report(choice, NAMES, 1, 6)
        mean = f"{np.mean(densities[1]):+.3f}"
        assert f"Gain of the source in plain log density: {mean}" in report.score_words
        for words in (report.verdict, report.plain_words):
            assert (f"In plain log density the gain is {mean}" in words) == disagrees
        assert TransferReport.from_json(report.to_json()).plain_gain == report.plain_gain
    assert "robust score" in str(report)
    assert "robust score" in report.plot().axes[0].get_xlabel()


def test_a_source_without_weight_is_not_said_to_help():
    scores = np.stack([np.zeros(6), np.array([0.04, 0.05, 0.06, 0.05, 0.04, 0.06])])
    choice = Choice(candidates(0.0, 0.5), np.array([1.0, 0.0]), scores)
    effects = {"none": 0.0, "shift": 1.0, "curved": 0.0, "bend": 0.0}
    for covariates, why in (
        (effects, "with effects of covariates"),
        (None, "settings of the target alone"),
    ):
        report = make_report(choice, NAMES, 1, 6, 20, covariates=covariates)
        for words in (report.verdict, report.plain_words):
            assert "not used" in words
            assert why in words
            assert "more probable" not in words


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bound_and_the_sign_test_are_those_of_scipy(counts):
    helped, n = counts
    found, exact = Certificate(helped, 0, n), stats.binomtest(helped, n, 0.5, alternative="greater")
    assert found.p_value == pytest.approx(exact.pvalue)
    assert found.lower_bound == pytest.approx(exact.proportion_ci(0.95, "exact").low)


def test_ties_do_not_help_and_say_nothing_in_the_sign_test():
    found = certify(np.array([0.5, 0.0, -0.1, 0.2, 0.0]))
    assert found == Certificate(2, 2, 5)
    assert found.p_value == pytest.approx(stats.binomtest(2, 3, alternative="greater").pvalue)
    assert found.lower_bound == pytest.approx(stats.binomtest(2, 5, alternative="greater").proportion_ci(0.95).low)
    words = Certificate(17, 0, 20).words
    assert words.startswith("17 of 20 tasks are predicted better; for a new task the chance is at least 65% (95%")
    assert "(2 equally well)" in found.words
    assert Certificate(0, 0, 3).lower_bound == 0.0
