"""The environment families, one row each. Standard library only, so that reading it is cheap."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

DISTRIBUTION = "mosaic-rl"
_HEADLESS_VARIABLES = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
_HARMLESS_MUJOCO_WARNING = re.compile(r"compiler attribute '\w+' is deprecated")
_PYGAME_HELP = "Set SDL_VIDEODRIVER=dummy, or check that pygame can be imported."

_ATARI_GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist BasicMath BattleZone
BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand CrazyClimber Crossbow
Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro Entombed Et FishingDerby
FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero HumanCannonball IceHockey
Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull KungFuMaster LaserGates LostLuggage
MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello Pacman Phoenix Pitfall Pitfall2 Pong Pooyan
PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot Skiing Solaris SpaceInvaders SpaceWar StarGunner
Superman Surround Tennis Tetris TicTacToe3D TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers
VideoChess VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge Zaxxon
""".split()  # noqa: SIM905 - a hundred quoted lines would not be clearer


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
    is_unsupported: bool = False
    """Recognized, but not supported by this version."""

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"pip install '{DISTRIBUTION}[{self.extra}]'" if self.extra else f"pip install {' '.join(self.packages)}"

    def owns_entry_point(self, entry_point: object) -> bool:
        return isinstance(entry_point, str) and entry_point.startswith(self.entry_points or ("\0",))

    def owns_name(self, env_id: str) -> bool:
        return self.pattern is not None and re.match(self.pattern, env_id) is not None


def _silence_mujoco() -> None:
    """Replace MuJoCo's warning handler, which would also write MUJOCO_LOG.TXT to the current folder."""
    mujoco = import_module("mujoco")
    set_handler: Callable[[Callable[[str], None]], None] | None = getattr(mujoco, "set_mju_user_warning", None)
    if set_handler is not None:
        set_handler(_show_mujoco)


def _show_mujoco(text: str) -> None:
    if not _HARMLESS_MUJOCO_WARNING.match(text):
        print(f"MuJoCo: {text}", file=sys.stderr)


_FAMILY_ROWS = (
    EnvFamily(
        name="toy_text",
        title="Toy text",
        about="Small grid worlds and card games with numbered states: FrozenLake, CliffWalking, Taxi, Blackjack.",
        sample_env_id="FrozenLake-v1",
        extra="train",
        packages=("gymnasium",),
        entry_points=("gymnasium.envs.toy_text",),
        environment_variables=_HEADLESS_VARIABLES,
    ),
    EnvFamily(
        name="classic_control",
        title="Classic control",
        about="Poles, carts and hills with a few numbers to observe; trained in seconds to minutes.",
        sample_env_id="CartPole-v1",
        extra="train",
        packages=("gymnasium",),
        entry_points=("gymnasium.envs.classic_control",),
        environment_variables=_HEADLESS_VARIABLES,
    ),
    EnvFamily(
        name="box2d",
        title="Box2D",
        about="Two-dimensional physics: landing, walking, driving from pixels.",
        sample_env_id="LunarLander-v3",
        extra="box2d",
        packages=("gymnasium", "Box2D"),
        entry_points=("gymnasium.envs.box2d",),
        environment_variables=_HEADLESS_VARIABLES,
    ),
    EnvFamily(
        name="mujoco",
        title="MuJoCo",
        about="Robots in a physics engine, moved by continuous torques.",
        sample_env_id="HalfCheetah-v5",
        extra="mujoco",
        packages=("gymnasium", "mujoco"),
        entry_points=("gymnasium.envs.mujoco",),
        # Without a display MuJoCo aborts unless off-screen rendering is selected before its import.
        environment_variables={"MUJOCO_GL": "egl"},
        no_rendering_variables={"MUJOCO_GL": "disable"},
        render_help=(
            "Set MUJOCO_GL=egl (or osmesa), and on Debian or Ubuntu: "
            "apt-get install libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri"
        ),
        after_import=_silence_mujoco,
    ),
    EnvFamily(
        name="atari",
        title="Atari",
        about="Games of the Atari 2600, seen as pixels, through the Arcade Learning Environment.",
        sample_env_id="ALE/Pong-v5",
        extra="atari",
        packages=("gymnasium", "ale_py"),
        registering_module="ale_py",
        entry_points=("ale_py",),
        pattern=rf"ALE/|({'|'.join(_ATARI_GAMES)})(-ram)?(NoFrameskip|Deterministic)?-v[0-5]$",
        known_ids=tuple(f"ALE/{game}-v5" for game in _ATARI_GAMES),
        environment_variables=_HEADLESS_VARIABLES,
    ),
    EnvFamily(
        name="minigrid",
        title="MiniGrid",
        about="Partially observed grid worlds with keys, doors and missions in text.",
        sample_env_id="MiniGrid-Empty-5x5-v0",
        extra="minigrid",
        packages=("gymnasium", "minigrid"),
        registering_module="minigrid",
        entry_points=("minigrid",),
        pattern=r"(MiniGrid|BabyAI)-",
        known_ids=("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-5x5-v0"),
        environment_variables=_HEADLESS_VARIABLES,
    ),
    EnvFamily(
        name="procgen",
        title="Procgen",
        about="Sixteen games with a new level in each episode.",
        sample_env_id="procgen-coinrun-v0",
        packages=("procgen",),
        pattern=r"procgen[-:/]",
        is_unsupported=True,
    ),
    EnvFamily(
        name="pettingzoo",
        title="PettingZoo",
        about="Several agents at once: board games, card games, arcade games.",
        sample_env_id="pettingzoo/connect_four_v3",
        extra="pettingzoo",
        packages=("pettingzoo",),
        pattern=r"pettingzoo[/:.]",
        is_unsupported=True,
    ),
    EnvFamily(
        name="functional",
        title="Functional (JAX)",
        about="Gymnasium's environments as pure functions, for JAX.",
        sample_env_id="phys2d/CartPole-v1",
        packages=("gymnasium", "jax"),
        entry_points=("gymnasium.envs.phys2d", "gymnasium.envs.tabular"),
    ),
)
FAMILIES: Mapping[str, EnvFamily] = {row.name: row for row in _FAMILY_ROWS}
