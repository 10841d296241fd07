"""Atari: games of the Arcade Learning Environment."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily

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


ENTRIES = (
    EnvEntry(
        pattern="",
        about="A game of the Atari 2600. The joystick is the arrow keys, the button is Space.",
        settings=(
            SettingField("mode", "int", None, "The mode of the game.", {"ge": 0}, is_optional=True),
            SettingField("difficulty", "int", None, "The difficulty of the game.", {"ge": 0}, is_optional=True),
            SettingField(
                "repeat_action_probability",
                "float",
                0.25,
                "Sticky actions: how often the last action is repeated.",
                {"ge": 0, "le": 1},
            ),
            SettingField(
                "frameskip",
                "int",
                4,
                "Frames per action; of a range such as 2,5, a number is drawn each time.",
                {"ge": 1, "le": 60, "is_range": True},
            ),
            SettingField("full_action_space", "bool", False, "Whether all 18 actions are available."),
            SettingField("obs_type", "choice", "rgb", "What is observed.", {"choices": ("rgb", "grayscale", "ram")}),
        ),
        idle_action="noop",
        rate_hz=15,
    ),
)

FAMILY = EnvFamily(
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
    environment_variables=HEADLESS_VARIABLES,
    entries=ENTRIES,
)
