"""Item 4: labels. The meta-training step against differentiating through Newton; adaptation against scikit-learn."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.tasks.types import Task, TestTask
from metaprior.wfem import MAP, LinearMean, LinearRBFKernel, MLPKernel, MLPMean, Training, WFEMClassifier
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.objective import log_gibbs
from metaprior.wfem.runs import Run
from metaprior.wfem.settings import Settings
from speed import contestants_jax
from speed.contestants_jax import kernel, network, squared_distances, unrolled_log_evidence
from speed.problem import FEATURES, HIDDEN, OUTPUT_SCALE, data_of, first_particle, measured_run, networks_of
from speed.report import Section, rows_of
from speed.step import OURS, Disagreement, our_training
from speed.timing import Contestant, alternate

N_TASKS, N_SAMPLES, INPUT_DIM = 20, 10, 16
N_NEWTON = 10
N_QUERIES = 20
SUBSET = 100
TOLERANCE = 1e-4
PROBABILITY_TOLERANCE = 0.02  # scikit-learn integrates the sigmoid approximately


def measure(quick: bool, say: Callable[[str], None]) -> list[Section]:
    """Measure the training step with two priors, and adaptation."""
    rounds, n_steps = (3, 100) if quick else (9, 300)
    sections = [training_step(name, rounds, n_steps, say) for name in ("linear+rbf", "mlp")[: 1 if quick else 2]]
    return [*sections, adaptation(200 if quick else 1000, 3 if quick else 7, say)]


def make_label_tasks(n_tasks: int, n_samples: int, seed: int = 0) -> list[Task]:
    """Make tasks with labels from noisy hyperplanes around a common direction, with balanced classes."""
    rng = np.random.default_rng(seed)
    normals = rng.standard_normal(INPUT_DIM) + 0.5 * rng.standard_normal((n_tasks, INPUT_DIM))
    x = rng.standard_normal((n_tasks, n_samples, INPUT_DIM))
    latent = np.einsum("tsd,td->ts", x, normals) + rng.standard_normal((n_tasks, n_samples))
    y = (latent > np.median(latent, axis=1, keepdims=True)).astype(float)
    return list(map(Task, x, y))


def label_settings(prior: str, hidden: Sequence[int] = HIDDEN) -> Settings:
    """Return a linear plus RBF kernel, or the paper's networks."""
    if prior == "linear+rbf":
        parts: tuple[Any, Any] = (LinearMean(1.0), LinearRBFKernel())
    else:
        parts = (MLPMean(hidden), MLPKernel(hidden, n_features=FEATURES, output_scale=OUTPUT_SCALE))
    likelihood = Bernoulli()
    return Settings(mean=parts[0], kernel=parts[1], likelihood=likelihood, temperature="bayes", standardize=False)


def label_run(prior: str, n_tasks: int = N_TASKS, n_samples: int = N_SAMPLES, hidden: Sequence[int] = HIDDEN) -> Run:
    """Return a run of the measured problem; a quarter of the tasks are from the target."""
    tasks, n_target = make_label_tasks(n_tasks, n_samples), max(n_tasks // 4, 1)
    return measured_run(label_settings(prior, hidden), tasks=[tasks[n_target:], tasks[:n_target]])


def plain_parameters(prior: str, theta: Any) -> Any:
    """Convert the library's parameters, or the mean of their hyper-prior, to those of `plain_objective`."""
    if prior == "mlp":
        return networks_of(theta)
    linear, rbf = theta.kernel.first, theta.kernel.second
    scales = (linear.log_output_scale, rbf.log_output_scale, rbf.log_length_scale)
    return tuple(np.asarray(leaf) for leaf in (*scales, theta.mean.weight, theta.mean.bias))


def plain_objective(prior: str, run: Run, n_newton: int = N_NEWTON) -> Callable[[Any], Any]:
    """Return the negative log Gibbs density in plain jax, which differentiates through Newton's steps."""
    data, center = data_of(run), plain_parameters(prior, run.problem.hyperprior.mean)
    moments = {"linear+rbf": _linear_rbf, "mlp": _networks}[prior]

    def one_task(parameters: Any, x: Any, y: Any) -> Any:
        mean, covariance = moments(parameters, x)
        return unrolled_log_evidence(covariance, mean, y, n_newton)

    def objective(parameters: Any) -> Any:
        evidences = jax.vmap(one_task, in_axes=(None, 0, 0))(parameters, data.x, data.y)
        distance = jax.tree.map(lambda value, mean: value - mean, parameters, center)
        fit = data.temperature * jnp.sum(data.weights * evidences) / data.y.shape[1]
        return -fit - contestants_jax.log_hyperprior(distance)

    return objective


def _linear_rbf(parameters: Any, x: Any) -> tuple[Any, Any]:
    log_linear, log_rbf, log_length, weight, bias = parameters
    scaled = x * jnp.exp(-log_length)
    covariance = jnp.exp(log_linear) * (x @ x.T) + jnp.exp(log_rbf - 0.5 * squared_distances(scaled, scaled))
    return x @ weight / math.sqrt(x.shape[1]) + bias, covariance


def _networks(parameters: Any, x: Any) -> tuple[Any, Any]:
    features = network(parameters.features, x)
    return network(parameters.mean, x)[:, 0], kernel(features, features)


def check_agreement(prior: str, run: Run, objective: Callable[[Any], Any]) -> float:
    """Return the largest relative difference of losses and gradients; raise if it is large."""
    theta = first_particle(run.particles)
    ours = jax.jit(jax.value_and_grad(lambda theta: -log_gibbs(theta, run.problem)))(theta)
    plain = jax.jit(jax.value_and_grad(objective))(plain_parameters(prior, theta))
    leaves = [jax.tree.leaves(gradient) for gradient in (plain_parameters(prior, ours[1]), plain[1])]
    first, second = (np.concatenate([np.asarray(leaf).ravel() for leaf in part]) for part in leaves)
    of_loss = abs(float(ours[0]) - float(plain[0])) / abs(float(ours[0]))
    of_gradient = float(np.linalg.norm(first - second) / np.linalg.norm(first))
    if not max(of_loss, of_gradient) <= TOLERANCE:
        raise Disagreement(
            f"differentiating through Newton differs: loss by {of_loss:.1e}, gradient by {of_gradient:.1e}"
        )
    return max(of_loss, of_gradient)


def training_step(prior: str, rounds: int, n_steps: int, say: Callable[[str], None]) -> Section:
    """Measure implicit gradients against differentiating through Newton's steps."""
    run = label_run(prior)
    objective = plain_objective(prior, run)
    agreement = check_agreement(prior, run, objective)
    say(f"{prior}: losses and gradients agree to {agreement:.1e}")
    plain = contestants_jax.Training(plain_parameters(prior, first_particle(run.particles)), objective)
    contestants = [
        Contestant(OURS, our_training(run, MAP(), n_steps), n_steps),
        Contestant(f"plain jax, {N_NEWTON} Newton steps", lambda: plain.in_chunks(n_steps // 100), n_steps),
    ]
    times = alternate(contestants, rounds, say)
    configuration = {"prior": prior, "tasks": N_TASKS, "samples": N_SAMPLES, "input_dim": INPUT_DIM}
    notes = [
        f"{N_TASKS} tasks of {N_SAMPLES} samples in {INPUT_DIM} dimensions; losses and gradients checked to agree",
        "ours iterates to convergence with a line search and takes implicit gradients at the mode; plain jax takes "
        f"{N_NEWTON} full Newton steps in a scan and differentiates through them; both in scans of 100 training steps",
    ]
    title = f"Meta-training step of the classifier, {prior} prior"
    return Section(title, configuration, "step", rows_of(times, OURS), notes, {"agreement": agreement})


def adaptation(n_tasks: int, rounds: int, say: Callable[[str], None]) -> Section:
    """Measure class probabilities of new tasks by the same GP: a linear plus RBF kernel, untrained, with zero mean."""
    few = make_label_tasks(4, N_SAMPLES)
    training = Training(n_steps=0, standardize=False)
    meta = WFEMClassifier("linear+rbf", "zero", training=training, random_state=0).fit(few[:2], few[2:])
    drawn = make_label_tasks(n_tasks, N_SAMPLES + N_QUERIES, seed=1)
    tasks = [TestTask(x[:N_SAMPLES], y[:N_SAMPLES], x[N_SAMPLES:], y[N_SAMPLES:]) for x, y in drawn]
    tasks = [task for task in tasks if 0.0 < task.y_context.mean() < 1.0]  # scikit-learn needs both labels
    subset = tasks[: min(SUBSET, n_tasks // 4)]
    difference = float(np.abs(our_probabilities(meta, subset) - sklearn_probabilities(subset)).max())
    if not difference <= PROBABILITY_TOLERANCE:
        raise Disagreement(f"scikit-learn's probabilities differ by up to {difference:.2g}")
    say(f"probabilities agree to {difference:.1e}")
    learned = "scikit-learn, task by task"
    contestants = [
        Contestant(OURS, lambda: our_probabilities(meta, tasks), len(tasks)),
        Contestant(learned, lambda: sklearn_probabilities(subset), len(subset)),
    ]
    times = alternate(contestants, rounds, say)
    configuration = {"tasks": len(tasks), "labeled": N_SAMPLES, "queries": N_QUERIES, "input_dim": INPUT_DIM}
    notes = [
        f"{len(tasks)} tasks of {N_SAMPLES} labeled and {N_QUERIES} query points; scikit-learn gets {len(subset)}; "
        f"the same kernel, probabilities equal up to {difference:.1e} (scikit-learn approximates the integral)",
        "ours computes in float64",
    ]
    title = "Adaptation of the classifier, from a list of tasks"
    return Section(title, configuration, "task", rows_of(times, OURS), notes, {"difference": difference})


def our_probabilities(meta: Any, tasks: Sequence[TestTask]) -> np.ndarray:
    """Return p(y = 1) at every query."""
    adapted = meta.adapt_many([(task.x_context, task.y_context) for task in tasks])
    return np.stack(adapted.predict_proba([task.x_query for task in tasks]))[:, :, 1]


def sklearn_probabilities(tasks: Sequence[TestTask]) -> np.ndarray:
    """Return p(y = 1) at every query, (tasks, queries)."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
    from threadpoolctl import threadpool_limits

    linear_scale, length_scale = LinearRBFKernel().linear_scale / INPUT_DIM, math.sqrt(INPUT_DIM)
    rows = []
    with threadpool_limits(1):  # matrices this small gain nothing from threads
        for task in tasks:
            linear = ConstantKernel(linear_scale) * DotProduct(0.0, "fixed")
            smooth = ConstantKernel(LinearRBFKernel().rbf_scale) * RBF(length_scale)
            classifier = GaussianProcessClassifier(linear + smooth, optimizer=None)
            rows.append(classifier.fit(task.x_context, task.y_context).predict_proba(task.x_query)[:, 1])
    return np.stack(rows)
