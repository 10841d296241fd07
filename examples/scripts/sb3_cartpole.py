"""A plain Stable-Baselines3 script. Run it with: mosaic run -- python examples/scripts/sb3_cartpole.py"""

import sys

from stable_baselines3 import PPO

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
model = PPO("MlpPolicy", "CartPole-v1", verbose=1, seed=1, device="cpu")
model.learn(total_timesteps=steps)
model.save("ppo_cartpole")
