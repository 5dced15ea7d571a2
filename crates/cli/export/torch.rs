//! A network as a plain `nn.Module`, in a folder that needs PyTorch and safetensors and no dtrain: `model.py`,
//! `model.safetensors`, and `predict.py`, which does the whole way from a table or an array to names and numbers.

use super::network::{Network, Parameter, joined};
use dtrain_data::{InputSpec, TargetSpec};
use dtrain_engine::device::{Cell, Gelu, Mask, RopeScaling};
use dtrain_engine::{Behind, Description, Part, Taken};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The files of the folder.
#[derive(Debug)]
pub struct Folder {
    /// `model.py`.
    pub model: String,
    /// What `model.safetensors` holds, by the names in `model.py`.
    pub tensors: BTreeMap<String, Parameter>,
    /// `predict.py`, where samples are no texts.
    pub predict: Option<&'static str>,
    /// `preparation.json`.
    pub preparation: String,
}

const PREDICT: &str = include_str!("predict.py");

/// Writes a network down.
#[must_use]
pub fn torch(network: &Network) -> Folder {
    let mut tensors: BTreeMap<String, Parameter> =
        network.parameters.iter().map(|(name, parameter)| (renamed(name), parameter.clone())).collect();
    for (name, values, shape) in around(network) {
        tensors.insert(name.to_owned(), Parameter { shape, values });
    }
    let texts = matches!(network.preparation.input, InputSpec::Tokens { .. });
    let preparation = serde_json::to_string_pretty(&network.preparation).unwrap_or_default();
    Folder { model: source(network), tensors, predict: (!texts).then_some(PREDICT), preparation }
}

/// What stands before and behind the stages: names, values and shapes of buffers.
fn around(network: &Network) -> Vec<(&'static str, Vec<f32>, Vec<usize>)> {
    let preparation = &network.preparation;
    let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
    let mut buffers = Vec::new();
    if let (InputSpec::Values { shape }, false) = (&preparation.input, preparation.mean.is_empty()) {
        let mut sides = vec![1; shape.len()];
        sides[0] = preparation.mean.len();
        buffers.push(("mean", narrow(&preparation.mean), sides.clone()));
        buffers.push(("factor", narrow(&preparation.factor), sides));
    }
    if let Some(scale) = &preparation.targets {
        buffers.push(("target_mean", narrow(&scale.mean), vec![scale.mean.len()]));
        buffers.push(("target_deviation", narrow(&scale.deviation), vec![scale.deviation.len()]));
    }
    buffers
}

/// A name that Python takes: those of a plain sequence are numbers.
fn renamed(name: &str) -> String {
    match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => format!("layer{name}"),
        false => name.to_owned(),
    }
}

/// Lines of `__init__` and of `forward`.
#[derive(Default)]
struct Body {
    init: Vec<String>,
    forward: Vec<String>,
    dropouts: usize,
}

fn source(network: &Network) -> String {
    let mut classes = String::new();
    let mut body = Body::default();
    for (name, _, shape) in around(network) {
        body.init.push(format!("self.register_buffer(\"{name}\", torch.zeros({}))", sides(&shape)));
    }
    let has = |name: &str| around(network).iter().any(|(other, ..)| *other == name);
    if has("mean") {
        body.forward.push("x = (x - self.mean) * self.factor".into());
    }
    let mut parts = &network.parts[..];
    while let Some(part) = parts.first() {
        let repeated = repeats(parts);
        if repeated > 0 {
            let (list, _) = part.name.split_once('.').unwrap_or((&part.name, ""));
            // One class a list: blocks of another have other shapes.
            let class = match classes.is_empty() {
                true => "Block".to_owned(),
                false => format!("{}{}", list[..1].to_uppercase(), &list[1..]),
            };
            classes += &block(&class, part);
            body.init.push(format!("self.{list} = nn.ModuleList({class}() for _ in range({repeated}))"));
            body.forward.push(format!("for block in self.{list}:"));
            body.forward.push("    x = block(x)".into());
            parts = &parts[repeated..];
        } else {
            body.stage(part, "x");
            parts = &parts[1..];
        }
    }
    if has("target_mean") {
        body.forward.push("x = x * self.target_deviation + self.target_mean".into());
    }
    let about: Vec<String> = network.about.iter().map(|(key, value)| format!("{key} {value}")).collect();
    let (input, output) = contract(network);
    let mut text = format!(
        "\"\"\"A trained model as a plain PyTorch module: {}.\n\nInput: {input}.\nOutput: {output}.\n\n\
         Written by `dtrain export`; it needs torch and safetensors.\n\"\"\"\n\nimport torch\nfrom torch import nn\n\
         from torch.nn import functional as F\n\n\n",
        about.join(", ")
    );
    let mut rest = classes;
    class(&mut rest, "Model", &body);
    if rest.contains("put(self, ") {
        text += PUT;
    }
    if rest.contains(" rotary(") {
        text += ROTARY;
    }
    text += &rest;
    text += "\ndef load(path=\"model.safetensors\"):\n    \"\"\"The model with its trained parameters, ready to predict.\"\"\"\n    \
             from safetensors.torch import load_file\n\n    model = Model()\n    \
             missing, unexpected = model.load_state_dict(load_file(path), strict=False)\n    \
             missing = [name for name in missing if not name.endswith(\"num_batches_tracked\")]\n    \
             if missing or unexpected:\n        raise ValueError(f\"{path} is of another model: {missing=} {unexpected=}\")\n    \
             return model.eval()\n";
    text
}

/// What goes in and what comes out, in words.
fn contract(network: &Network) -> (String, String) {
    let preparation = &network.preparation;
    let input = match &preparation.input {
        InputSpec::Values { shape } => {
            format!("f32 [batch, {}], raw values: they are normalised here", sides(shape))
        }
        InputSpec::Tokens { length, vocabulary } => {
            format!("token ids [batch, time], at most {length} of them, each below {vocabulary}")
        }
    };
    let output = match preparation.target {
        TargetSpec::Class { classes } => {
            format!("logits [batch, {classes}]; their softmax is the probabilities")
        }
        TargetSpec::ClassPerToken { classes } => format!("logits [batch, time, {classes}]"),
        TargetSpec::Values { width } => format!("[batch, {width}], in the unit of the target"),
    };
    (input, output)
}

/// How many blocks `NAME.0`, `NAME.1`, ... begin here, if all of that name are of one kind.
fn repeats(parts: &[Part]) -> usize {
    let Some(first) = parts.first() else { return 0 };
    let Some((list, "0")) = first.name.split_once('.') else { return 0 };
    let same = |(at, part): (usize, &Part)| part.name == format!("{list}.{at}") && part.stage == first.stage;
    let alike = parts.iter().enumerate().take_while(|(at, part)| same((*at, part))).count();
    let of_list = |part: &&Part| part.name.split_once('.').is_some_and(|(other, _)| other == list);
    if parts.iter().filter(of_list).count() == alike { alike } else { 0 }
}

/// What keeps modules and parameters under names with dots.
const PUT: &str = "def put(module, name, value):\n    *path, last = name.split(\".\")\n    for step in path:\n        \
                   if not hasattr(module, step):\n            setattr(module, step, nn.Module())\n        \
                   module = getattr(module, step)\n    setattr(module, last, value)\n\n\n";

/// What turns queries and keys by their places, and has keys and values for each head.
const ROTARY: &str = "def rotary(x, heads, kv_heads, theta, factor=1.0, fast=None):\n    batch, time, width = x.shape\n    \
                      head = width // (heads + 2 * kv_heads)\n    \
                      rates = theta ** -(torch.arange(0, head, 2, dtype=torch.float64, device=x.device) / head)\n    \
                      share = torch.zeros_like(rates)\n    \
                      if fast:\n        \
                      low, high, context = fast\n        \
                      share = ((context * rates / (2 * torch.pi) - low) / (high - low)).clamp(0, 1)\n    \
                      rates = rates / factor * (1 - share) + rates * share\n    \
                      places = torch.arange(time, dtype=torch.float64, device=x.device)\n    \
                      angles = (places[:, None] * rates)[:, None]\n    \
                      cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)\n    \
                      x = x.view(batch, time, -1, head)\n    \
                      a, b = x[:, :, : heads + kv_heads].chunk(2, -1)\n    \
                      turned = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)\n    \
                      q, k, v = turned[:, :, :heads], turned[:, :, heads:], x[:, :, heads + kv_heads :]\n    \
                      k, v = (each.repeat_interleave(heads // kv_heads, 2) for each in (k, v))\n    \
                      return torch.cat([q, k, v], 2).flatten(2)\n\n\n";

fn block(class_name: &str, part: &Part) -> String {
    let mut body = Body::default();
    let inner = Part { name: String::new(), tied: None, stage: part.stage.clone() };
    body.stage(&inner, "x");
    let mut text = String::new();
    class(&mut text, class_name, &body);
    text + "\n"
}

fn class(text: &mut String, name: &str, body: &Body) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()");
    for line in &body.init {
        let _ = writeln!(text, "        {line}");
    }
    let _ = writeln!(text, "\n    def forward(self, x):");
    for line in &body.forward {
        let _ = writeln!(text, "        {line}");
    }
    let _ = writeln!(text, "        return x\n");
}

/// `1, 28, 28`.
fn sides(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// One number where all are the same, as people write it.
fn same(sides: &[usize]) -> String {
    match sides.iter().all(|side| *side == sides[0]) {
        true => sides[0].to_string(),
        false => format!("({})", self::sides(sides)),
    }
}

fn wrapped(behind: Behind, value: &str) -> String {
    match behind {
        Behind::Nothing => value.to_owned(),
        Behind::Relu => format!("F.relu({value})"),
        Behind::Gelu(Gelu::Exact) => format!("F.gelu({value})"),
        Behind::Gelu(Gelu::Tanh) => format!("F.gelu({value}, approximate=\"tanh\")"),
    }
}

impl Body {
    fn module(&mut self, name: &str, made: String) -> String {
        let name = renamed(name);
        if name.contains('.') {
            self.init.push(format!("put(self, \"{name}\", nn.{made})"));
            return format!("self.get_submodule(\"{name}\")");
        }
        self.init.push(format!("self.{name} = nn.{made}"));
        format!("self.{name}")
    }

    /// A parameter of a stage, by the name that it has there.
    fn parameter(&mut self, stage: &str, name: &str, shape: &[usize]) -> String {
        let name = renamed(&joined(stage, name));
        self.init.push(format!("put(self, \"{name}\", nn.Parameter(torch.zeros({})))", sides(shape)));
        format!("self.get_parameter(\"{name}\")")
    }

    fn set(&mut self, x: &str, value: String) {
        self.forward.push(format!("{x} = {value}"));
    }

    /// Adds a stage that works on the variable `x`.
    fn stage(&mut self, part: &Part, x: &str) {
        let name = part.name.as_str();
        match &part.stage {
            Description::Linear { inputs, outputs, bias, parts, behind } => {
                let bias = if *bias { "" } else { ", bias=False" };
                let mut layer = |name: &str, outputs: usize| {
                    format!("{}({x})", self.module(name, format!("Linear({inputs}, {outputs}{bias})")))
                };
                let value = match &part.tied {
                    Some(tied) => format!("F.linear({x}, self.{tied})"),
                    None if parts.is_empty() => layer(name, *outputs),
                    None => {
                        let parts = parts.iter().map(|(part, outputs)| layer(&joined(name, part), *outputs));
                        format!("torch.cat([{}], -1)", parts.collect::<Vec<_>>().join(", "))
                    }
                };
                self.set(x, wrapped(*behind, &value));
            }
            Description::Conv { channels, outputs, kernel, stride, padding, bias, behind } => {
                let (d, bias) = (kernel.len(), if *bias { "True" } else { "False" });
                let (kernel, stride, padding) = (same(kernel), same(stride), same(padding));
                let made = format!(
                    "Conv{d}d({channels}, {outputs}, {kernel}, stride={stride}, padding={padding}, bias={bias})"
                );
                let module = self.module(name, made);
                self.set(x, wrapped(*behind, &format!("{module}({x})")));
            }
            Description::MaxPool { dimensions, window, stride, padding } => {
                let padding = if *padding > 0 { format!(", padding={padding}") } else { String::new() };
                self.set(x, format!("F.max_pool{dimensions}d({x}, {window}, {stride}{padding})"));
            }
            Description::AvgPool { window, stride } => {
                self.set(x, format!("F.avg_pool2d({x}, {}, {})", same(window), same(stride)));
            }
            Description::BatchNorm { channels, dimensions, epsilon } => {
                let d = (*dimensions).max(1);
                let module = self.module(name, format!("BatchNorm{d}d({channels}, eps={epsilon})"));
                self.set(x, format!("{module}({x})"));
            }
            Description::LayerNorm { width, epsilon } => {
                let module = self.module(name, format!("LayerNorm({width}, eps={epsilon})"));
                self.set(x, format!("{module}({x})"));
            }
            Description::RmsNorm { width, epsilon } => {
                let module = self.module(name, format!("RMSNorm({width}, eps={epsilon:e})"));
                self.set(x, format!("{module}({x})"));
            }
            Description::HeadNorm { heads, kv_heads, head, epsilon } => {
                let norms = ["q_norm", "k_norm"].map(|norm| {
                    self.module(&joined(name, norm), format!("RMSNorm({head}, eps={epsilon:e})"))
                });
                let widths = [*heads, *kv_heads, *kv_heads].map(|heads| heads * head);
                self.forward.push(format!("q, k, v = {x}.split({widths:?}, -1)"));
                for (part, module) in ["q", "k"].iter().zip(norms) {
                    self.forward
                        .push(format!("{part} = {module}({part}.unflatten(-1, (-1, {head}))).flatten(-2)"));
                }
                self.set(x, "torch.cat((q, k, v), -1)".to_owned());
            }
            Description::Pointwise(behind) => self.set(x, wrapped(*behind, x)),
            Description::Flatten => self.set(x, format!("{x}.flatten(1)")),
            Description::Dropout { rate } => {
                self.dropouts += 1;
                let module = self.module(&format!("dropout_{}", self.dropouts), format!("Dropout({rate})"));
                self.set(x, format!("{module}({x})"));
            }
            Description::Embedding { vocabulary, time, width } => {
                for (table, rows) in [("tokens", vocabulary), ("places", time)] {
                    self.init.push(format!("self.{table} = nn.Parameter(torch.zeros({rows}, {width}))"));
                }
                self.set(x, format!("F.embedding({x}, self.tokens) + self.places[: {x}.shape[1]]"));
            }
            Description::Lookup { vocabulary, width } => {
                let module = self.module(name, format!("Embedding({vocabulary}, {width})"));
                self.set(x, format!("{module}({x})"));
            }
            Description::Rotary { heads, kv_heads, theta, scaling, .. } => {
                let scaled = match scaling {
                    RopeScaling::None => String::new(),
                    RopeScaling::Linear { factor } => format!(", {factor:?}"),
                    RopeScaling::Llama3 { factor, low, high, context } => {
                        format!(", {factor:?}, ({low:?}, {high:?}, {context:?})")
                    }
                };
                self.set(x, format!("rotary({x}, {heads}, {kv_heads}, {theta:?}{scaled})"));
            }
            Description::SwiGlu { .. } => {
                self.forward.push(format!("gate, {x} = {x}.chunk(2, -1)"));
                self.set(x, format!("F.silu(gate) * {x}"));
            }
            Description::Attention { heads, head, mask, .. } => {
                let causal = if *mask == Mask::Causal { ", is_causal=True" } else { "" };
                self.forward.push(format!("batch, time, _ = {x}.shape"));
                self.forward.push(format!(
                    "q, k, v = {x}.view(batch, time, 3, {heads}, {head}).permute(2, 0, 3, 1, 4)"
                ));
                self.forward.push(format!("{x} = F.scaled_dot_product_attention(q, k, v{causal})"));
                self.set(x, format!("{x}.transpose(1, 2).reshape(batch, time, {})", heads * head));
            }
            Description::Chain(parts) => {
                for inner in parts {
                    let name = joined(name, &inner.name);
                    self.stage(&Part { name, tied: inner.tied.clone(), stage: inner.stage.clone() }, x);
                }
            }
            Description::Residual(inner) => {
                let y = format!("{x}_branch");
                self.set(&y, x.to_owned());
                let inner = Part { name: name.to_owned(), tied: None, stage: (**inner).clone() };
                self.stage(&inner, &y);
                self.set(x, format!("{x} + {y}"));
            }
            Description::Projected { branch, name: beside, shortcut } => {
                let (y, z) = (format!("{x}_branch"), format!("{x}_shortcut"));
                let beside = joined(name, beside);
                for (value, name, stage) in [(&y, name, branch), (&z, beside.as_str(), shortcut)] {
                    self.set(value, x.to_owned());
                    let inner = Part { name: name.to_owned(), tied: None, stage: (**stage).clone() };
                    self.stage(&inner, value);
                }
                self.set(x, format!("{y} + {z}"));
            }
            Description::Turn => self.set(x, format!("{x}.flatten(2).transpose(1, 2)")),
            Description::ClassToken { time, width } => {
                let token = self.parameter(name, "class_token", &[1, 1, *width]);
                let places = self.parameter(name, "encoder.pos_embedding", &[1, *time, *width]);
                self.set(x, format!("torch.cat([{token}.expand({x}.shape[0], -1, -1), {x}], 1) + {places}"));
            }
            Description::Take(Taken::First) => self.set(x, format!("{x}[:, 0]")),
            Description::Take(Taken::Last) => self.set(x, format!("{x}[:, -1]")),
            Description::Recurrent { cell, inputs, hidden, layer } => {
                let rows = cell.gates() * hidden;
                let shapes: [(&str, &[usize]); 4] = [
                    ("weight_ih", &[rows, *inputs]),
                    ("weight_hh", &[rows, *hidden]),
                    ("bias_ih", &[rows]),
                    ("bias_hh", &[rows]),
                ];
                let given = shapes.map(|(of, shape)| self.parameter(name, &format!("{of}_l{layer}"), shape));
                self.set("zeros", format!("{x}.new_zeros(1, {x}.shape[0], {hidden})"));
                let start = if *cell == Cell::Lstm { "(zeros, zeros)" } else { "zeros" };
                let given = given.join(", ");
                let call = format!(
                    "torch.{}({x}, {start}, [{given}], True, 1, 0.0, False, False, True)",
                    cell.name()
                );
                self.set(x, format!("{call}[0]"));
            }
            Description::Own(kind) => unreachable!("a network has no stage of kind {kind}"),
        }
    }
}
