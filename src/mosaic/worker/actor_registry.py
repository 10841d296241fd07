"""Who can act in play sessions: descriptions of actors, without what they import."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec

from mosaic.contracts.setting_field import SettingField

ENTRY_POINT_GROUP = "mosaic.actors"


@dataclass(frozen=True)
class ActorDescription:
    """One kind of actor."""

    kind: str
    title: str
    about: str
    target: str
    """What its target is, such as `a run`; empty where it takes none."""
    make: str
    """`module:name` of what makes one from an ActorChoice and a Seat; it raises BadInput if it does not fit."""
    needs: tuple[str, ...] = ()
    """What a user must have: `key`, `model`, `window`."""
    is_multi_agent: bool = True
    """Whether it can act for an agent among others."""
    is_discrete_only: bool = False
    extra: str | None = None
    """The extra of our distribution that installs what it imports."""
    packages: tuple[str, ...] = ()
    """Packages that must be importable to make one."""
    options: tuple[SettingField, ...] = ()
    """What a choice of it may set; what makes it gets all of them, checked, with defaults."""
    examples: tuple[str, ...] = ()
    """Targets that are shipped with it."""
    file_filter: str = ""
    """Where the target may be a file: its names, as a file dialog takes them, such as `Agents (*.asl)`."""
    problem: str = ""
    """Why it cannot be chosen, where its package cannot be loaded."""

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def install_hint(self) -> str:
        """The command that installs what is missing; empty where nothing is."""
        if self.is_installed:
            return ""
        return f"pip install 'mosaic-rl[{self.extra}]'" if self.extra else f"pip install {' '.join(self.packages)}"

    @property
    def capabilities(self) -> str:
        """What it can act in, in a few words."""
        actions = "numbered actions only" if self.is_discrete_only else "all kinds of actions"
        return f"{actions}, {'one or several agents' if self.is_multi_agent else 'one agent'}"


LLM_OPTIONS = (
    SettingField(
        "base_url", "str", None, "The address of the server; unset: OPENAI_BASE_URL, else Ollama's.", is_optional=True
    ),
    SettingField("temperature", "float", None, "Unset: the server's default.", {"ge": 0, "le": 2}, is_optional=True),
    SettingField(
        "max_tokens",
        "int",
        4096,
        "Of one answer, thoughts included; four times as many after one that was cut off.",
        {"ge": 1},
        is_optional=True,
    ),
    # Not optional: `none` is a value that servers know.
    SettingField("reasoning_effort", "str", "", "Such as none, low or high; empty: the server's default."),
    SettingField("timeout_s", "float", 60.0, "For one decision, with all attempts.", {"gt": 0, "le": 3600}),
    SettingField("history", "int", 4, "Earlier turns in the prompt.", {"ge": 0, "le": 200}),
    SettingField(
        "fallback",
        "str",
        None,
        "The action after a bad answer; unset: the idle action, else the first legal one.",
        is_optional=True,
    ),
    SettingField("template", "str", None, "A file with another prompt.", is_optional=True),
    SettingField("max_calls", "int", None, "Requests of the session.", {"ge": 0}, is_optional=True),
    SettingField("max_tokens_total", "int", None, "Tokens of the session.", {"ge": 0}, is_optional=True),
    SettingField(
        "max_cost", "float", None, "Cost of the session, in the currency of the prices.", {"ge": 0}, is_optional=True
    ),
    SettingField("price_per_million_input", "float", None, "Of tokens sent.", {"ge": 0}, is_optional=True),
    SettingField("price_per_million_output", "float", None, "Of tokens received.", {"ge": 0}, is_optional=True),
)
_OWN = (
    ActorDescription(
        "human",
        "Human",
        "Acts by keys and buttons, in a window.",
        "",
        "mosaic.features.play.worker_actors:HumanActor",
        needs=("window",),
        options=(SettingField("keys", "json", {}, "By action, the key that means it."),),
    ),
    ActorDescription("random", "Random", "Samples its actions.", "", "mosaic.worker.actors:RandomActor"),
    ActorDescription(
        "policy",
        "Trained policy",
        "Acts as a policy that was trained here, or of a file.",
        "a run or a file",
        "mosaic.worker.actors:PolicyActor",
        options=(
            SettingField("stochastic", "bool", False, "Whether actions are sampled."),
            SettingField("algo", "str", None, "The algorithm, where the file does not state it.", is_optional=True),
            SettingField("vecnormalize", "str", None, "Stable-Baselines3's file of that name.", is_optional=True),
        ),
        file_filter="Policies (*.cleanrl_model *.zip)",
    ),
    ActorDescription(
        "script",
        "Script",
        "A Python file that defines act(observation, info), or a file with one action per line.",
        "a file or an example",
        "mosaic.features.play.worker_actors:ScriptActor",
        examples=("cart_pole", "frozen_lake", "mountain_car"),
        file_filter="Scripts (*.py *.txt)",
    ),
    ActorDescription(
        "llm",
        "Language model",
        "Asks a model for each action, through any OpenAI-compatible endpoint.",
        "the name of a model",
        "mosaic.features.play.worker_llm:LlmActor",
        needs=("model",),
        is_discrete_only=True,
        extra="llm",
        packages=("httpx",),
        options=LLM_OPTIONS,
    ),
)


@cache
def discover_actors() -> dict[str, ActorDescription]:
    """Return all kinds of actors, by kind: our own, and those that other packages name by entry point.

    One that cannot be loaded is listed with the problem, and the others work.
    """
    actors = {description.kind: description for description in _OWN}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            description = entry.load()()
            if not isinstance(description, ActorDescription):
                raise TypeError(f"it returned {description!r}, which is not an ActorDescription")
        except Exception as error:
            problem = f"The actor {entry.name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
            description = ActorDescription(entry.name, entry.name, problem, "", "", problem=problem)
        actors.setdefault(description.kind, description)
    return actors
