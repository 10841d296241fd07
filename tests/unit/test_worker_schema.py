"""The schema file matches the code."""

from __future__ import annotations

import json

from tests.helpers.cli_trainer import call

from cleanrl_worker import describe
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell.schema_generator import build_schema, render_schema
from mosaic.base.algorithm_schema import load_algorithms
from mosaic.contracts.extras import RESERVED_EXTRAS
from mosaic.contracts.options import OPTIONS


def test_the_committed_schema_is_up_to_date() -> None:
    """R3.13: schema of the algorithms."""
    committed = describe().schemas
    assert committed is not None
    assert committed.read_text() == render_schema(), (
        "out of date: python -m cleanrl_worker.shell.schema_generator --write"
    )


def test_the_schema_file_has_one_line_for_each_setting() -> None:
    schema = build_schema()
    assert json.loads(render_schema()) == schema
    lines = [line.strip().rstrip(",") for line in render_schema().splitlines()]
    for algorithm in schema["algorithms"].values():
        assert {json.dumps(field, ensure_ascii=False) for field in algorithm["fields"]} <= set(lines)


def test_every_setting_has_a_simple_type_and_a_sentence() -> None:
    for name, described in build_schema()["algorithms"].items():
        assert described["summary"]
        assert described["help"] == f"docs/{name}.md"
        assert load_algorithms()[name].help_page().startswith("# "), f"docs/{name}.md is missing"
        for field in described["fields"]:
            assert field["type"] in ("int", "ints", "float", "bool", "str", "choice", "mapping", "json", "wrappers"), (
                field
            )
            assert field["help"].endswith("."), field
            assert field["group"], field


def test_the_schema_has_types_defaults_and_limits_of_the_code() -> None:
    fields = {field["name"]: field for field in build_schema()["algorithms"]["ppo"]["fields"]}
    config = load_algorithm("ppo").Config(env_id="CartPole-v1")
    assert {name: field["default"] for name, field in fields.items()} == config.model_dump(mode="json")
    assert fields["learning_rate"]["type"] == "float"
    assert fields["learning_rate"]["constraints"] == {"gt": 0, "lt": 1}
    assert (fields["target_kl"]["is_optional"], fields["target_kl"]["default"]) == (True, None)
    assert fields["backend"]["constraints"] == {"choices": ["auto", "numpy", "torch"]}
    assert fields["anneal_lr"]["type"] == "bool"


def test_every_worker_option_is_there() -> None:
    reserved = """
    mode policy_path tensorboard_dir track_wandb wandb_project_name wandb_entity wandb_run_name wandb_api_key
    wandb_email wandb_use_vpn_proxy wandb_http_proxy wandb_https_proxy capture_video eval_capture_video video_mode
    fastlane_video_mode fastlane_grid_limit
    grid_limit fastlane_only seed_override eval_batch_size eval_episodes eval_repeat eval_stochastic save_model
    record_steps record_episodes
    upload_model hf_entity algo_params cleanrl cleanrl_python
    """
    assert set(RESERVED_EXTRAS) == set(reserved.split())
    supported = {extra for name in build_schema()["options"] for extra in OPTIONS[name].extras}
    assert set(RESERVED_EXTRAS) - supported == {"algo_params", "cleanrl", "cleanrl_python"}
    worker_fields = {field["name"] for field in build_schema()["worker_fields"]}
    assert worker_fields == {
        "run_id", "algo", "env_id", "total_timesteps", "seed", "worker_id", "agent_id", "algo_params", "cleanrl",
        "cleanrl_python",
    }  # fmt: skip


def test_no_algorithm_setting_has_the_name_of_a_reserved_extra() -> None:
    for name in ALGORITHMS:
        assert not set(RESERVED_EXTRAS) & set(load_algorithm(name).Config.model_fields)


def test_the_description_reads_the_same_file() -> None:
    assert json.loads(render_schema())["algorithms"].keys() == describe().read_schema()["algorithms"].keys()


def test_the_json_of_the_algorithms_contains_the_help_pages() -> None:
    entries = json.loads(call(None, "algorithms", "--json").out)
    assert {entry["name"] for entry in entries} == {*ALGORITHMS, "bdi_q"}
    assert all(entry["help"].startswith("# ") for entry in entries)
    assert json.loads(call(None, "algorithms", "ppo", "--json").out) in entries
