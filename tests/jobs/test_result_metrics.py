"""What of a result goes into a row."""

import math

import ray

from pld_ray.jobs.result_metrics import flatten_result, pool_figures, pool_row
from pld_ray.jobs.training_loop import learner_metrics


def test_a_loss_that_is_not_finite_is_kept_to_be_counted_and_a_timer_without_a_value_is_not():
    learner = {"q_mean": math.nan, "alpha": 0.5, "critic_loss": math.inf}
    result = {
        "learners": {"default_policy": learner, "__all_modules__": {"replay_online": 7}},
        "timers": {"env_runner_sampling_timer": math.nan, "learner_update_timer": 0.25},
        "num_env_steps_lost": 300,
    }
    row = flatten_result(result) | learner_metrics(result)
    assert math.isnan(row.pop("learner/q_mean"))
    assert row == {
        "learner/alpha": 0.5,
        "learner/critic_loss": math.inf,
        "replay/online": 7.0,
        "train/num_env_steps_lost": 300.0,
        "time/update_s": 0.25,
    }


def test_a_pool_without_a_batch_has_no_batch_size():
    counts = dict.fromkeys(("requests", "retries", "deadline_misses", "restarts"), 0)
    state = {"num_replicas": 1, "queue_depth": 0, "busy_share": 0.0}
    row = pool_figures({**counts, **state, "latency_ms": {}, "batches": 0, "rows": 0})
    assert row["pool/num_replicas"] == 1.0
    assert "pool/batch_size_mean" not in row


def test_a_pool_whose_controller_is_away_costs_a_row_its_figures_and_no_run(caplog):
    class Away:
        def metrics(self):
            raise ray.exceptions.GetTimeoutError("the controller does not answer")

    with caplog.at_level("WARNING", logger="pld_ray"):
        assert pool_row(Away()) == pool_row(None) == {}
    assert "no figures of the pool this time: the controller does not answer" in caplog.text
