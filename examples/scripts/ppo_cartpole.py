"""PPO in one file that does not use MOSAIC: torch, a vector environment, a SummaryWriter.

python examples/scripts/ppo_cartpole.py --total-timesteps 50000
mosaic run -- python examples/scripts/ppo_cartpole.py --total-timesteps 50000
mosaic run -- python examples/scripts/ppo_cartpole.py --env-id ALE/Breakout-v5 --num-envs 8
"""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--entropy", type=float, default=0.01)
    parser.add_argument("--save", help="where to save the model")
    return parser.parse_args()


def make(env_id: str) -> gym.Env:
    if env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        env = gym.wrappers.RecordEpisodeStatistics(gym.make(env_id, frameskip=1))
        env = gym.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
        return gym.wrappers.FrameStackObservation(env, 4)
    return gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, shape: tuple, actions: int) -> None:
        super().__init__()
        if len(shape) == 3:
            self.body = nn.Sequential(
                nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(),
                layer(32 * 9 * 9, 256), nn.ReLU(),
            )  # fmt: skip
            width, self.scale = 256, 255.0
        else:
            self.body = nn.Sequential(layer(shape[0], 64), nn.Tanh(), layer(64, 64), nn.Tanh())
            width, self.scale = 64, 1.0
        self.actor, self.critic = layer(width, actions, 0.01), layer(width, 1, 1.0)

    def forward(self, observations: torch.Tensor) -> tuple:
        hidden = self.body(observations / self.scale)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    writer = SummaryWriter(f"runs/{args.env_id.replace('/', '_')}__ppo__{args.seed}__{int(time.time())}")
    envs = gym.vector.SyncVectorEnv(
        [lambda: make(args.env_id)] * args.num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    agent = Agent(envs.single_observation_space.shape, envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    batch = args.num_envs * args.num_steps
    step, began, cpu = 0, time.perf_counter(), time.process_time()
    observation = torch.as_tensor(envs.reset(seed=args.seed)[0], dtype=torch.float32)
    done = torch.zeros(args.num_envs)
    spent = []
    while step < args.total_timesteps:
        rows, before_it = [], time.process_time()
        for _ in range(args.num_steps):
            step += args.num_envs
            with torch.no_grad():
                policy, value = agent(observation)
                action = policy.sample()
                logprob = policy.log_prob(action)
            before, was_done = observation, done
            seen, reward, terminated, truncated, infos = envs.step(action.numpy())
            observation = torch.as_tensor(seen, dtype=torch.float32)
            done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
            rows.append((before, action, logprob, value, torch.as_tensor(reward, dtype=torch.float32), was_done))
            final = infos.get("final_info", {})
            for index in np.flatnonzero(final.get("_episode", ())):
                print(f"global_step={step}, episodic_return={final['episode']['r'][index]}")
                writer.add_scalar("charts/episodic_return", final["episode"]["r"][index], step)
                writer.add_scalar("charts/episodic_length", final["episode"]["l"][index], step)
        seen, actions, logprobs, values, rewards, dones = (torch.stack(part) for part in zip(*rows, strict=True))
        with torch.no_grad():
            following = agent(observation)[1]
            advantages, running = torch.zeros_like(rewards), torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                alive = 1 - (done if t == args.num_steps - 1 else dones[t + 1])
                after = following if t == args.num_steps - 1 else values[t + 1]
                delta = rewards[t] + args.gamma * after * alive - values[t]
                running = delta + args.gamma * args.gae_lambda * alive * running
                advantages[t] = running
        flat = [part.flatten(0, 1) for part in (seen, actions, logprobs, advantages, advantages + values)]
        for _ in range(args.epochs):
            for rows_now in torch.randperm(batch).chunk(args.minibatches):
                b_seen, b_actions, b_logprobs, b_advantages, b_returns = (part[rows_now] for part in flat)
                policy, value = agent(b_seen)
                ratio = (policy.log_prob(b_actions) - b_logprobs).exp()
                b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                policy_loss = -torch.min(b_advantages * ratio, b_advantages * clipped).mean()
                value_loss = 0.5 * (value - b_returns).square().mean()
                entropy = policy.entropy().mean()
                optimizer.zero_grad()
                (policy_loss + 0.5 * value_loss - args.entropy * entropy).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        for name, loss in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", entropy)):
            writer.add_scalar(f"losses/{name}", loss.item(), step)
        writer.add_scalar("charts/SPS", step / (time.perf_counter() - began), step)
        spent.append(round(time.process_time() - before_it, 6))
    took = {"steps": step, "began": began, "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    took["iterations_cpu_s"] = spent
    print("took", json.dumps(took), flush=True)
    if args.save:
        torch.save(agent.state_dict(), args.save)
    envs.close()
    writer.close()


if __name__ == "__main__":
    main()
