"""The table of options: each is stated once, and the payload, the flags and the forms agree with it."""

from __future__ import annotations

import subprocess
import sys
import typing
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from mosaic.base.algorithm_schema import supported_options
from mosaic.base.run_payloads import build_payload
from mosaic.cli.parameters import build_flag
from mosaic.contracts.errors import BadInput, refuse_key
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, Option, set_option
from mosaic.contracts.payload import Payload
from mosaic.window.form_model import FieldTexts, Refusals

DIFFERENT_DEFAULTS = {"save_model", "eval_batch_size", "tags", "seed", "kind"}
"""Unset means something of its own in the payload, or the type is another."""
IN_SECTIONS = [option for option in OPTIONS.values() if not option.path.startswith(CONFIG_PATH)]
BOUNDED = [option for option in IN_SECTIONS if {"ge", "gt"} & set(option.constraints or {})]


def field_at(option: Option) -> Any:
    model: Any = Payload
    for key in option.keys[:-1]:
        model = model.model_fields[key].annotation
        assert issubclass(model, BaseModel)
    return model.model_fields[option.keys[-1]]


@pytest.mark.parametrize("option", IN_SECTIONS, ids=lambda option: option.name)
def test_the_payload_has_every_option_with_its_default(option: Option) -> None:
    found = field_at(option)
    if option.name not in DIFFERENT_DEFAULTS:
        assert found.default == option.default
    if option.type == "choice" and option.name != "kind":
        literal = typing.get_args(found.annotation)[0] if option.is_optional else found.annotation
        assert set(typing.get_args(literal)) == set(option.constraints["choices"])  # type: ignore[index]


@pytest.mark.parametrize("option", BOUNDED, ids=lambda option: option.name)
def test_the_payload_the_form_and_the_flag_refuse_the_same_values(option: Option) -> None:
    rules = option.constraints or {}
    too_small = rules["ge"] - 1 if "ge" in rules else rules["gt"]
    payload: dict[str, Any] = {"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}}
    set_option(payload, option, too_small)
    with pytest.raises(ValidationError) as refused:
        Payload.model_validate(payload)
    assert ".".join(map(str, refused.value.errors()[0]["loc"])) == option.path
    with pytest.raises(BadInput, match=f"^{option.flag} must be "):
        option.parse(str(too_small))
    with pytest.raises(BadInput, match=f"^{option.flag} must be "):
        build_flag(option).type.convert(str(too_small), None, None)


def test_a_run_that_asks_for_gpus_waits_for_them() -> None:
    resources = build_payload({"id": "cleanrl", "config": {}}, {"gpus": 2, "cpus": None})["resources"]
    assert resources == {"gpus": {"requested": 2, "mandatory": True}}


def test_a_worker_without_a_schema_supports_the_options_of_every_worker() -> None:
    names = {option.name for option in supported_options("script")}
    assert {"memory_mb", "tags", "tensorboard"} <= names
    assert not {"video_mode", "save_model"} & names
    assert supported_options("cleanrl") == tuple(OPTIONS.values())


def test_a_refusal_marks_the_field_whose_path_it_names() -> None:
    error = refuse_key("artifacts.video.mode", "input should be 'single', 'grid' or 'off'")
    form, refusals = FieldTexts((OPTIONS["seed"], OPTIONS["video_mode"])), Refusals()
    assert refusals.take(error, form.fields)
    assert refusals.messages(form) == {"video_mode": "Input should be 'single', 'grid' or 'off'."}


def test_the_table_and_the_flags_need_no_pydantic() -> None:
    code = (
        "import sys, mosaic.contracts.options, mosaic.contracts.extras, mosaic.features.train.cli;"
        "sys.exit('pydantic' in sys.modules or 'grpc' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("text", ["3M", "3 M", "3000k", "3,000,000", "3_000_000", "3e6", "3000000", "0.003G"])
def test_numbers_are_read_as_people_and_the_program_write_them(text: str) -> None:
    assert OPTIONS["total_timesteps"].parse(text) == 3_000_000


@pytest.mark.parametrize("text", ["3,00", "3,0000", "M", "3m", "3MM", "1,000,00", ",000"])
def test_what_is_not_clearly_a_number_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="must be a whole number"):
        OPTIONS["total_timesteps"].parse(text)
