"""The models that the tests train, each a whole program: `python programs.py KIND [SETTINGS]`."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtrain

GENERATOR = torch.Generator().manual_seed(11)
SAMPLES = 480


def mlp():
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
    x = torch.randn(SAMPLES, 20, generator=GENERATOR)
    return net, x, x[:, :3].argmax(1)


def cnn():
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    x = torch.randn(SAMPLES, 1, 8, 8, generator=GENERATOR)
    return net, x, (x.mean((1, 2, 3)) * 40).long().clamp(-1, 1) + 1


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 16, num_layers=2, dropout=0.1, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def lstm():
    x = torch.randn(SAMPLES, 12, 6, generator=GENERATOR)
    return Lstm(), x, x[:, -1, :3].argmax(1)


class Gpt(nn.Module):
    """Its head is the table of tokens, and its causal mask a buffer."""

    def __init__(self, vocabulary=17, width=32, time=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(time, width))
        block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(time))

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.places, mask=self.mask, is_causal=True))


def gpt():
    text = torch.arange(SAMPLES)[:, None] * 5 + torch.arange(17)[None, :] * 3
    ids = text % 17
    return Gpt(), ids[:, :-1], ids[:, 1:]


def compiled():
    """Compiled by PyTorch in part, and with a last micro-batch of an epoch that is smaller than the others."""
    net, x, y = gpt()
    net.blocks.compile()
    return net, torch.cat([x, x[:13]]), torch.cat([y, y[:13]])


class Recomputed(Gpt):
    """It computes its blocks once more in the backward pass, dropout and all, instead of keeping what they gave."""

    def forward(self, ids):
        x = self.tokens(ids) + self.places
        for block in self.blocks.layers:
            x = checkpoint(block, x, self.mask, is_causal=True, use_reentrant=False)
        return self.head(x)


def recomputed():
    _, x, y = gpt()
    return Recomputed(), x, y


def foreign():
    """Its updates are PyTorch's."""
    return mlp()


KINDS = {"mlp": mlp, "foreign": foreign, "cnn": cnn, "lstm": lstm, "gpt": gpt, "compiled": compiled, "recomputed": recomputed}


def loss(net, batch):
    x, y = batch
    out = net(x)
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="sum"), y.numel()


def accuracy(net, batch):
    x, y = batch
    return int((net(x).argmax(-1) == y).sum()), y.numel()


def error(net, batch):
    right, of = accuracy(net, batch)
    return right - of, of


def sureness(net, batch):
    x, y = batch
    return net(x).softmax(-1).amax(-1).sum(), y.numel()


def first_or_not(net, batch):
    """The logit of the first class against all others, and which are of it."""
    x, y = batch
    out = net(x).flatten(0, -2)
    return out[:, 0] - out[:, 1:].logsumexp(-1), y.flatten() == 0


def areas(scores, labels):
    """Under the curves, by all pairs and by all thresholds."""
    of, others = scores[labels], scores[~labels]
    ordered = (of[:, None] > others).double() + (of[:, None] == others).double() / 2
    precisions = [(labels & (scores >= score)).sum() / (scores >= score).sum() for score in of]
    return ordered.mean().item(), torch.stack(precisions).double().mean().item()


#: What is tried beside, with one of the kinds each.
GROUPS = {"gpt": {"ema": 0.9}, "lstm": {"lr_factors": {"*bias*": 2.0}, "no_decay": ["*bias*"]}}


def optimizer(kind):
    if kind == "foreign":
        return dtrain.torch_optimizer(lambda params: torch.optim.Adam(params, lr=3e-3, amsgrad=True), clip_norm=1.0, ema=0.9)
    return dtrain.AdamW(lr=3e-3, clip_norm=1.0, **GROUPS.get(kind, {}))


def main():
    kind = sys.argv.pop(1)
    _, x, y = KINDS[kind]()
    result = dtrain.train(
        lambda: KINDS[kind]()[0],
        data=(x[80:], y[80:]),
        val=(x[:80], y[:80]),
        loss=loss,
        metrics={
            "accuracy": accuracy,
            "auc": dtrain.roc_auc(first_or_not),
            "error": error,
            "precise": dtrain.average_precision(first_or_not),
            "sureness": sureness,
        },
        optimizer=optimizer(kind),
        epochs=4,
        global_batch=40,
        micro_batch=8,
        warmup="none",
        name=kind,
        # The name of the kind stands between this file and the settings.
        argv=sys.argv[1:],
    )
    net = KINDS[kind]()[0]
    net.load_state_dict(result.load("last"))
    net.eval()
    with torch.no_grad():
        right, of = accuracy(net, (x[:80], y[:80]))
        sure, _ = sureness(net, (x[:80], y[:80]))
        auc, precise = areas(*first_or_not(net, (x[:80], y[:80])))
    print(f"accuracy {right / of:.6f} told {result.val_accuracy:.6f}", file=sys.stderr)
    print(f"error {right / of - 1:.6f} told {result.metrics['error']:.6f}", file=sys.stderr)
    print(f"auc {auc:.6f} told {result.metrics['auc']:.6f}", file=sys.stderr)
    print(f"precise {precise:.6f} told {result.metrics['precise']:.6f}", file=sys.stderr)
    print(f"sureness {sure / of:.5f} told {result.metrics['sureness']:.5f}", file=sys.stderr)


if __name__ == "__main__":
    main()
