"""The models that dtrain is measured beside, in plain PyTorch, each with its one batch. See README.md.

The four workloads begin with numbers that dtrain computes too (`hash01`), so that both sides can be shown to do the same work.
GPT-2 begins as PyTorch draws it, or with such numbers too (`begin_alike`). Nothing here trains or measures.

Shapes: B samples, T tokens, C width, H heads.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


def hash01(stream, n):
    """n numbers in [0, 1), a pure function of (stream, index): splitmix64, top 24 bits."""
    wrapped = lambda x: x - (1 << 64) if x >> 63 else x  # torch has no unsigned arithmetic; products wrap alike
    shifted = lambda z, by: (z >> by) & ((1 << (64 - by)) - 1)
    first = wrapped((stream * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64))
    z = torch.arange(n, dtype=torch.int64) * wrapped(0xD1B54A32D192ED03) + first
    z = (z ^ shifted(z, 30)) * wrapped(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * wrapped(0x94D049BB133111EB)
    z = z ^ shifted(z, 31)
    return shifted(z, 40).to(torch.float32) / float(1 << 24)


def uniform(stream, n, scale):
    return (hash01(stream, n) * 2 - 1) * scale


def integers(stream, n, upper):
    return (hash01(stream, n) * float(upper)).to(torch.int64).clamp_(max=upper - 1)


class Start:
    """Parameters as dtrain starts them too: one stream of `hash01` each, in the order in which they are made."""

    def __init__(self):
        self.streams = iter(range(1, 1000))

    def parameter(self, shape, scale):
        return nn.Parameter(uniform(next(self.streams), torch.Size(shape).numel(), scale).reshape(shape).clone())

    def scaled(self, shape, fan_in):
        return self.parameter(shape, 1 / torch.tensor(float(fan_in)).sqrt())

    def linear(self, n_in, n_out, bias=True):
        layer = nn.Linear(n_in, n_out, bias=bias)
        layer.weight = self.scaled((n_out, n_in), n_in)
        if bias:
            layer.bias = self.scaled((n_out,), n_in)
        return layer


def mlp(start):
    return nn.Sequential(
        start.linear(784, 1024), nn.ReLU(), start.linear(1024, 1024), nn.ReLU(), start.linear(1024, 10)
    )


class Block(nn.Module):
    """A pre-norm block of a transformer: of a GPT, or with attention to all places."""

    def __init__(self, width, heads, linear, gelu, causal=True, epsilon=1e-5):
        super().__init__()
        self.heads, self.gelu, self.causal = heads, gelu, causal
        norm = lambda: nn.LayerNorm(width, epsilon)
        self.norm1, self.qkv, self.proj = norm(), linear(width, 3 * width), linear(width, width)
        self.norm2, self.up, self.down = norm(), linear(width, 4 * width), linear(4 * width, width)

    def forward(self, h_BTC):
        B, T, C = h_BTC.shape
        qkv = self.qkv(self.norm1(h_BTC)).reshape(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(B, T, C)
        h_BTC = h_BTC + self.proj(mixed)
        return h_BTC + self.down(F.gelu(self.up(self.norm2(h_BTC)), approximate=self.gelu))


class Gpt(nn.Module):
    """256 byte tokens, width 256, 4 blocks of 8 heads, untied head."""

    def __init__(self, start):
        super().__init__()
        self.tokens, self.places = start.parameter((256, 256), 0.02), start.parameter((128, 256), 0.02)
        self.blocks = nn.ModuleList(Block(256, 8, start.linear, "none") for _ in range(4))
        self.norm, self.head = nn.LayerNorm(256), start.linear(256, 256, False)

    def forward(self, x_BT):
        h_BTC = F.embedding(x_BT, self.tokens) + self.places
        for block in self.blocks:
            h_BTC = block(h_BTC)
        return self.head(self.norm(h_BTC)).reshape(-1, 256)


@dataclass
class Size:
    """A member of the family of GPT-2: small as it is, its vocabulary of 50 257 padded to a multiple of 64, as nanoGPT and llm.c do."""

    vocabulary: int = 50304
    context: int = 1024
    layers: int = 12
    width: int = 768
    heads: int = 12


class Gpt2(nn.Module):
    """GPT-2, of small size: 12 blocks of width 768 and 12 heads, head tied to the tokens, no dropout: 124 M parameters.

    Source: Radford et al. 2019.
    """

    def __init__(self, size):
        super().__init__()
        self.size, width = size, size.width
        self.tokens, self.places = nn.Embedding(size.vocabulary, width), nn.Embedding(size.context, width)
        self.blocks = nn.ModuleList(Block(width, size.heads, nn.Linear, "tanh") for _ in range(size.layers))
        self.norm = nn.LayerNorm(width)
        for parameter, deviation in self.matrices():
            nn.init.normal_(parameter, std=deviation)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def matrices(self):
        """Every matrix in order, with the deviation of its start: what ends a branch is scaled by the number of branches."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                branch = name.endswith(("proj.weight", "down.weight"))
                yield parameter, 0.02 / (2 * self.size.layers) ** 0.5 if branch else 0.02

    @torch.no_grad()
    def begin_alike(self):
        """Starts with the numbers with which dtrain's benchmarks do: a stream of `hash01` for each matrix."""
        for stream, (parameter, deviation) in enumerate(self.matrices(), 1):
            parameter.copy_(uniform(stream, parameter.numel(), deviation).reshape(parameter.shape))

    def forward(self, x_BT):
        h_BTC = self.tokens(x_BT) + self.places.weight[: x_BT.shape[1]]
        for block in self.blocks:
            h_BTC = block(h_BTC)
        return F.linear(self.norm(h_BTC), self.tokens.weight).reshape(-1, self.size.vocabulary)


class Vit(nn.Module):
    """ViT-B/16 as torchvision has it, without dropout: images of 224 x 224, 12 blocks of width 768 and 12 heads, 1 000 classes.

    Source: Dosovitskiy et al. 2020.
    """

    def __init__(self):
        super().__init__()
        width, places = 768, (224 // 16) ** 2 + 1
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.empty(1, places, width))
        nn.init.normal_(self.places, std=0.02)
        self.blocks = nn.ModuleList(Block(width, 12, nn.Linear, "none", causal=False, epsilon=1e-6) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, 1000)

    def forward(self, x):
        h_BTC = self.patches(x).flatten(2).transpose(1, 2)
        h_BTC = torch.cat([self.token.expand(len(x), -1, -1), h_BTC], 1) + self.places
        for block in self.blocks:
            h_BTC = block(h_BTC)
        return self.head(self.norm(h_BTC)[:, 0])


class LlamaBlock(nn.Module):
    """A block of SmolLM2 135M: products of one input in one, keys and values of three heads for nine of queries."""

    width, heads, kv_heads, head, wide = 576, 9, 3, 64, 1536

    def __init__(self):
        super().__init__()
        linear = lambda n_in, n_out: nn.Linear(n_in, n_out, bias=False)
        self.norm1, self.norm2 = (nn.RMSNorm(self.width, 1e-5) for _ in range(2))
        self.qkv, self.proj = linear(self.width, (self.heads + 2 * self.kv_heads) * self.head), linear(self.width, self.width)
        self.gate_up, self.down = linear(self.width, 2 * self.wide), linear(self.wide, self.width)

    def forward(self, h_BTC, cos_TK, sin_TK):
        B, T, C = h_BTC.shape
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        qkv = self.qkv(self.norm1(h_BTC)).reshape(B, T, -1, self.head).transpose(1, 2).split(sizes, 1)
        q, k = (x * cos_TK + torch.cat([-x[..., self.head // 2 :], x[..., : self.head // 2]], -1) * sin_TK for x in qkv[:2])
        mixed = F.scaled_dot_product_attention(q, k, qkv[2], is_causal=True, enable_gqa=True)
        h_BTC = h_BTC + self.proj(mixed.transpose(1, 2).reshape(B, T, C))
        gate, up = self.gate_up(self.norm2(h_BTC)).chunk(2, -1)
        return h_BTC + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """SmolLM2 135M as transformers has it: 30 blocks, rotary positions, head tied to 49 152 tokens.

    Source: Touvron et al. 2023, Allal et al. 2025.
    """

    vocabulary, time, theta = 49152, 2048, 100_000

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(self.vocabulary, LlamaBlock.width)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(30))
        self.norm = nn.RMSNorm(LlamaBlock.width, 1e-5)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        speeds_K = self.theta ** (-torch.arange(0, LlamaBlock.head, 2) / LlamaBlock.head)
        turns_TK = torch.outer(torch.arange(self.time), speeds_K).repeat(1, 2)
        # Rounded once: in f32 they would make queries and keys f32 again.
        self.register_buffer("cos_TK", turns_TK.cos().bfloat16())
        self.register_buffer("sin_TK", turns_TK.sin().bfloat16())

    def forward(self, x_BT):
        h_BTC = self.tokens(x_BT)
        for block in self.blocks:
            h_BTC = block(h_BTC, self.cos_TK, self.sin_TK)
        return F.linear(self.norm(h_BTC), self.tokens.weight).reshape(-1, self.vocabulary)


class Cnn(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.w1, self.b1 = start.scaled((32, 1, 3, 3), 9), start.scaled((32,), 9)
        self.w2, self.b2 = start.scaled((64, 32, 3, 3), 288), start.scaled((64,), 288)
        self.fc1, self.fc2 = start.linear(9216, 128), start.linear(128, 10)

    def forward(self, x):
        h = F.relu(F.conv2d(F.relu(F.conv2d(x, self.w1, self.b1)), self.w2, self.b2))
        return self.fc2(F.relu(self.fc1(F.max_pool2d(h, 2).flatten(1))))


class Cnn3d(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.w1, self.b1 = start.scaled((16, 1, 3, 3, 3), 27), start.scaled((16,), 27)
        self.w2, self.b2 = start.scaled((32, 16, 3, 3, 3), 432), start.scaled((32,), 432)
        self.fc = start.linear(32768, 10)

    def forward(self, x):
        h = F.relu(F.conv3d(x, self.w1, self.b1, padding=1))
        return self.fc(F.relu(F.conv3d(h, self.w2, self.b2, stride=2, padding=1)).flatten(1))


@dataclass
class Work:
    """A model and its one batch, on the CPU. A row of the output is a sample, or a token."""

    model: nn.Module
    x: torch.Tensor
    y: torch.Tensor


WORKS = ("mlp", "gpt", "cnn", "cnn3d")
BATCH = dict(mlp=128, gpt=8, cnn=128, cnn3d=16)


def work(name, batch=None):
    """One of dtrain's four workloads, with its own batch or a larger one, which begins with the same samples."""
    start, batch = Start(), batch or BATCH[name]
    if name == "gpt":
        x, y = (integers(stream, batch * 128, 256) for stream in (1000, 1001))
        return Work(Gpt(start), x.reshape(batch, 128), y)
    make, shape = dict(mlp=(mlp, (784,)), cnn=(Cnn, (1, 28, 28)), cnn3d=(Cnn3d, (1, 8, 32, 32)))[name]
    x = uniform(1000, batch * torch.Size(shape).numel(), 1.0).reshape(batch, *shape)
    return Work(make(start), x, integers(1001, batch, 10))


def gpt2(batch, context):
    """GPT-2 small on tokens that mean nothing."""
    torch.manual_seed(7)
    x, y = (integers(stream, batch * context, 50257) for stream in (1000, 1001))
    return Work(Gpt2(Size(context=context)), x.reshape(batch, context), y)


def vit(batch):
    """ViT-B/16 on images that mean nothing."""
    torch.manual_seed(7)
    x = uniform(1000, batch * 3 * 224 * 224, 1.0).reshape(batch, 3, 224, 224)
    return Work(Vit(), x, integers(1001, batch, 1000))


def llama(batch):
    """SmolLM2 135M on tokens that mean nothing."""
    torch.manual_seed(7)
    x, y = (integers(stream, batch * Llama.time, Llama.vocabulary) for stream in (1000, 1001))
    return Work(Llama(), x.reshape(batch, Llama.time), y)
