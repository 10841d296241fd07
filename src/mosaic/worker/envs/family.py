"""The description of an environment family. Standard library only, so that reading the catalog is cheap."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.setting_field import SettingField

__all__ = ["DISTRIBUTION", "HEADLESS_VARIABLES", "EnvEntry", "EnvFamily", "KeyBinding"]

DISTRIBUTION = "mosaic-rl"
HEADLESS_VARIABLES = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
_PYGAME_HELP = "Set SDL_VIDEODRIVER=dummy, or check that pygame can be imported."


@dataclass(frozen=True)
class EnvEntry:
    """What a person who plays needs to know about some environments of a family."""

    pattern: str
    """Recognizes their ids, without a namespace."""
    about: str
    settings: tuple[SettingField, ...] = ()
    """What their constructor takes and a person may want to change."""
    actions: tuple[str, ...] = ()
    """The names of their discrete actions, in order; empty: continuous, or known only from the environment."""
    observation_names: tuple[str, ...] = ()
    """What the numbers of their observations are, in order, where they are few."""
    keys: tuple[KeyBinding, ...] = ()
    idle_action: str | None = None
    """What happens while no key is held, in real time; None: the environment waits for a key."""
    rate_hz: float | None = None
    """Steps per second for a human, in real time; None: the environment's own rate."""
    rules: tuple[str | tuple[Mapping[str, object], str], ...] = ()
    """What someone must be told who sees no picture; with settings, where they have these values."""
    symbols: str | None = None
    """`module:function` that returns their state as a grid of symbols."""
    words: str | None = None
    """`module:function` that returns their state as text, for an agent."""
    moves: str | None = None
    """`module:function` that names their discrete actions; where names differ by turn, those that are legal then."""

    def with_defaults(self, pattern: str, **defaults: object) -> EnvEntry:
        """Return the entry of ids that are registered with other defaults of some settings."""
        settings = (replace(one, default=defaults.get(one.name, one.default)) for one in self.settings)
        return replace(self, pattern=pattern, settings=tuple(settings))

    @property
    def is_real_time(self) -> bool:
        return self.idle_action is not None or self.rate_hz is not None


@dataclass(frozen=True)
class EnvFamily:
    name: str
    title: str
    about: str
    """One sentence for users who choose an environment."""
    sample_env_id: str
    """The environment used to check whether the family works on this machine."""
    extra: str | None = None
    """The extra of our distribution that installs it."""
    packages: tuple[str, ...] = ()
    """Packages that must be importable to create one."""
    requirements: str = ""
    """What pip installs where no extra does; empty: the packages."""
    registering_module: str | None = None
    """The module whose import registers its ids."""
    entry_points: tuple[str, ...] = ()
    """Prefixes of the entry points of its environments."""
    pattern: str | None = None
    """Recognizes its ids when the package that registers them is not installed."""
    known_ids: tuple[str, ...] = ()
    """Ids to list while it is not installed."""
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    """Set before the import, unless already set by the user."""
    render_help: str = _PYGAME_HELP
    """Advice for the user when rendering fails."""
    after_import: Callable[[], None] | None = None
    """Called after its packages are imported."""
    no_rendering_variables: Mapping[str, str] = field(default_factory=dict)
    """Set when its graphics cannot be loaded and rendering is not requested: it can still be trained."""
    game_packages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What single environments need besides, by a part of their id: a module, and how pip names what has it."""
    is_unsupported: bool = False
    """Recognized, but not supported by this version."""
    entries: tuple[EnvEntry, ...] = ()
    """The first whose pattern fits describes an environment."""
    is_reproducible: bool = True
    """Whether an episode can be simulated again from its start and its actions."""
    has_several_agents: bool = False
    """Of PettingZoo: played in sessions, and trained on by algorithms for several agents alone."""
    has_turns: bool = False
    """Whether its agents act by turns; nothing can be trained on such an environment."""

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        if self.extra:
            return f"pip install '{DISTRIBUTION}[{self.extra}]'"
        return f"pip install {self.requirements or ' '.join(self.packages)}"

    def missing_package(self, env_id: str) -> str:
        """Return what is to be installed for this environment besides the family; empty where nothing is."""
        found = (needed for part, needed in self.game_packages.items() if part in env_id)
        return next((package for module, package in found if find_spec(module) is None), "")

    def find_entry(self, env_id: str) -> EnvEntry | None:
        name = env_id.rpartition("/")[2]
        return next((entry for entry in self.entries if re.match(entry.pattern, name)), None)

    def owns(self, env_id: str, entry_point: object) -> bool:
        is_own = isinstance(entry_point, str) and entry_point.startswith(self.entry_points or ("\0",))
        return is_own or self.owns_name(env_id)

    def owns_name(self, env_id: str) -> bool:
        return self.pattern is not None and re.match(self.pattern, env_id) is not None
