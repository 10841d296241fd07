"""The model card: what the Hub shows of a policy, and what its search and leaderboards read."""

from __future__ import annotations

import json
from typing import Any

from mosaic import __version__
from mosaic.hub.description import VIDEO_FILE, PolicyDescription

Json = dict[str, Any]


def model_card(policy: PolicyDescription, evaluation: Json | None, repo: str, has_video: bool) -> str:
    """README.md: metadata in YAML, then words for people."""
    parts = [
        _front_matter(policy, evaluation),
        f"# {policy.algo} on {policy.env_id}\n",
        _introduction(policy),
        _results_section(policy, evaluation),
        f"[A recorded episode]({VIDEO_FILE})\n" if has_video else "",
        _usage_section(policy, repo),
        _settings_section(policy),
        _versions_line(policy),
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(policy: PolicyDescription, evaluation: Json | None) -> str:
    """A JSON string is a YAML string, too: nothing in a name can break out of its line."""
    tags = [policy.env_id, policy.algo, "deep-reinforcement-learning", "reinforcement-learning", "mosaic-rl"]
    value = format_reward(evaluation) if evaluation is not None else format_reward({"avg_return": policy.score})
    lines = ["---", "library_name: mosaic-rl", "pipeline_tag: reinforcement-learning", "tags:"]
    lines += [f"- {_yaml_string(tag)}" for tag in dict.fromkeys(tags)]
    if value is not None:
        env, algo = _yaml_string(policy.env_id), _yaml_string(policy.algo)
        lines += [
            "model-index:",
            f"- name: {algo}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {env}",
            f"      type: {env}",
            "    metrics:",
            "    - type: mean_reward",
            f"      value: {_yaml_string(value)}",
            f"      name: {'mean_reward' if evaluation is not None else 'mean_reward of the last training episodes'}",
            "      verified: false",
        ]
    return "\n".join([*lines, "---", ""])


def format_reward(evaluation: Json) -> str | None:
    """`499.20 +/- 2.40`, as the Hub's leaderboards read it."""
    mean, deviation = evaluation.get("avg_return"), evaluation.get("std_return")
    if mean is None:
        return None
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} +/- {deviation:.2f}"


def _yaml_string(text: str) -> str:
    return json.dumps(text)


def _introduction(policy: PolicyDescription) -> str:
    steps = "" if policy.step is None else f", saved after {policy.step:,} environment steps"
    return f"A policy for `{policy.env_id}`, trained with `{policy.algo}` in MOSAIC {__version__}{steps}.\n"


def _results_section(policy: PolicyDescription, evaluation: Json | None) -> str:
    if evaluation is None:
        if policy.score is None:
            return ""
        return f"## Results\n\nMean return of its last training episodes: {policy.score:.2f}. Not evaluated apart.\n"
    rows = [("episodes", str(evaluation.get("episodes", "?")))]
    interval = evaluation.get("ci95")
    mean = f"{evaluation['avg_return']:.2f}"
    if isinstance(interval, (list, tuple)) and len(interval) == 2 and None not in interval:
        mean += f" (95 % interval: {interval[0]:.2f} to {interval[1]:.2f})"
    rows.append(("mean return", mean))
    names = {
        "std_return": "standard deviation",
        "median_return": "median",
        "iqm": "interquartile mean",
        "min_return": "minimum",
        "max_return": "maximum",
    }
    rows += [(name, f"{evaluation[key]:.2f}") for key, name in names.items() if _is_number(evaluation.get(key))]
    how = "deterministic actions" if evaluation.get("deterministic", True) else "sampled actions"
    return f"## Results\n\nPlayed with {how} on seeds that training did not use.\n\n{_table(rows, ('', ''))}"


def _usage_section(policy: PolicyDescription, repo: str) -> str:
    text = (
        f"## Use it\n\n```bash\npip install 'mosaic-rl[train,hub]'\nmosaic pull {repo}\nmosaic eval last\n```\n\n"
        "The weights are in `safetensors`, everything else is JSON or plain arrays; loading runs no code of this "
        "repository.\n"
    )
    if policy.model is not None:
        text += f"`{policy.model}` holds the same weights in the form that CleanRL's scripts read.\n"
    return text


def _settings_section(policy: PolicyDescription) -> str:
    rows = [(f"`{name}`", f"`{json.dumps(value)}`") for name, value in sorted(policy.settings.items())]
    return f"## Settings\n\n{_table(rows, ('setting', 'value'))}" if rows else ""


def _versions_line(policy: PolicyDescription) -> str:
    said = ", ".join(f"{name} {version}" for name, version in sorted(policy.versions.items()))
    return f"Made with {said}.\n" if said else ""


def _table(rows: list[tuple[str, str]], headers: tuple[str, str]) -> str:
    lines = [f"| {headers[0]} | {headers[1]} |", "|---|---|"]
    lines += [f"| {_escape_cell(name)} | {_escape_cell(value)} |" for name, value in rows]
    return "\n".join(lines) + "\n"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
