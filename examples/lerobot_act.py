#!/usr/bin/env python3
"""An ACT policy of LeRobot, trained on episodes in LeRobot's data set format: an arm's tip goes to where a camera sees a spot.

    pip install .[torch] lerobot
    python examples/lerobot_act.py ranks=2

The episodes are made here, once, and written as a `LeRobotDataset`; with your own, `episodes()` is what changes. What comes out is opened
by `ACTPolicy.from_pretrained`.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.act.processor_act import make_act_pre_post_processors

import dtrain

FOLDER, NAME = Path("reach-episodes"), "local/reach"
EPISODES, FRAMES, HELD_OUT, FPS, SIDE, CHUNK = 12, 20, 2, 10, 64, 8
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "observation.images.top": {"dtype": "image", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
}


def write_episodes():
    """Each goes straight from a random place to a random spot. The folder is there whole, or not at all."""
    part = FOLDER.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    written = LeRobotDataset.create(NAME, fps=FPS, root=part, features=FEATURES, use_videos=False)
    random = np.random.default_rng(5)
    grid = (np.arange(SIDE) + 0.5) / SIDE
    for _ in range(EPISODES):
        spot, place = random.random((2, 2))
        near = np.exp(-((grid[None, :] - spot[0]) ** 2 + (grid[:, None] - spot[1]) ** 2) / 0.01)
        image = np.repeat((255 * near)[..., None], 3, 2).astype(np.uint8)
        for _ in range(FRAMES):
            action = place + 0.2 * (spot - place)
            state = {"observation.state": place.astype(np.float32), "action": action.astype(np.float32)}
            written.add_frame({**state, "observation.images.top": image, "task": "reach the spot"})
            place = action
        written.save_episode()
    written.finalize()
    part.rename(FOLDER)


def episodes(which):
    """Frames with the actions of the next ones: `action_is_pad` says which lie behind the end of the episode."""
    return LeRobotDataset(NAME, root=FOLDER, episodes=list(which), delta_timestamps={"action": [step / FPS for step in range(CHUNK)]})


def config():
    def vector():
        return PolicyFeature(FeatureType.STATE, (2,))

    return ACTConfig(
        input_features={"observation.state": vector(), "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))}, device="cpu", push_to_hub=False,
        chunk_size=CHUNK, n_action_steps=CHUNK, dim_model=64, n_heads=4, dim_feedforward=128, n_encoder_layers=2, n_vae_encoder_layers=2,
        latent_dim=8, pretrained_backbone_weights=None,
    )  # fmt: skip


def model():
    return ACTPolicy(config())


def processors():
    """Normalisation by the statistics of the episodes, and its opposite."""
    return make_act_pre_post_processors(config(), dataset_stats=LeRobotDataset(NAME, root=FOLDER).meta.stats)


def loss(policy, batch):
    count = len(batch["action"])
    batch = prepare(batch)
    if policy.training:
        # Its mean is over all actions of the chunks, so samples are its weight.
        return policy(batch)[0] * count, count
    # Held out: how far the actions are away, without a look at them.
    away = (policy.predict_action_chunk(batch) - batch["action"]).abs() * ~batch["action_is_pad"].unsqueeze(-1)
    return away.mean((1, 2)).sum(), count


if __name__ == "__main__":
    if not FOLDER.exists():
        write_episodes()
    prepare, finish = processors()
    result = dtrain.train(
        model, data=lambda: episodes(range(EPISODES - HELD_OUT)), val=lambda: episodes(range(EPISODES - HELD_OUT, EPISODES)), loss=loss,
        optimizer=dtrain.AdamW(lr=3e-4, weight_decay=1e-4, clip_norm=10.0), epochs=4, global_batch=40, micro_batch=10, warmup="none",
        name="act",
    )  # fmt: skip
    policy = model()
    policy.load_state_dict(result.load())
    folder = result.run / "policy"
    policy.save_pretrained(folder)
    seen = {key: value for key, value in episodes([EPISODES - 1])[0].items() if key.startswith("observation")}
    actions = [finish(each.select_action(prepare(dict(seen)))) for each in (policy, ACTPolicy.from_pretrained(folder))]
    assert torch.equal(*actions), "what was saved is what was trained"
    print(f"{folder}: the tip is at {seen['observation.state'].tolist()}, and goes to {actions[0].flatten().tolist()}")
