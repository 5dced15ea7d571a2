//! A network as an ONNX file: opset 18, any number of samples at once, from raw values to what is predicted.
//!
//! Inputs: `input`, f32 `[batch, ...]` as they were before they were normalised (the features of a table, with words as ones
//! among zeros), or `input_ids`, i64 `[batch, context]`. Outputs: `probabilities` and `logits` of classes, `prediction` of
//! numbers in their own unit, `logits` of tokens.
//!
//! *Source*: onnx/docs/Operators.md.

use super::network::{Network, Parameter, joined};
use super::onnx_format::{
    Attribute, Dimension, GraphProto, ModelProto, NodeProto, OperatorSet, StringStringEntryProto,
    TensorProto, TensorShape, TensorType, TypeProto, ValueInfo,
};
use crate::error::CliError;
use dtrain_data::{InputSpec, TargetSpec};
use dtrain_engine::device::{Cell, Gelu, Mask, RotarySpeeds};
use dtrain_engine::{Behind, Description, Part, Taken};
use prost::Message;

const FLOAT: i32 = 1;
const INT64: i32 = 7;
/// What a message of protobuf may hold. *Units*: bytes.
const MOST: usize = i32::MAX as usize;

/// The file.
///
/// *Errors*: a model beyond 2 GiB.
pub fn onnx(network: &Network) -> Result<Vec<u8>, CliError> {
    let bytes: usize = network.parameters.values().map(|parameter| 4 * parameter.values.len()).sum();
    if bytes >= MOST - (1 << 20) {
        let error = CliError::usage("an ONNX file holds at most 2 GiB, and this model has more");
        return Err(error.hint("--to torch or safetensors have no such limit"));
    }
    let mut graph = Graph { network, nodes: Vec::new(), initializers: Vec::new(), count: 0, rank: 0 };
    let (input, x) = graph.input();
    let outputs = graph.chain("", &network.parts, x);
    let output = graph.output(outputs);
    let preparation = serde_json::to_string(&network.preparation).unwrap_or_default();
    let mut metadata: Vec<StringStringEntryProto> = network
        .about
        .iter()
        .map(|(key, value)| StringStringEntryProto { key: (*key).to_owned(), value: value.clone() })
        .collect();
    metadata.push(StringStringEntryProto { key: "preparation".into(), value: preparation });
    let model = ModelProto {
        ir_version: 8,
        producer_name: "dtrain".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: Some(GraphProto {
            node: graph.nodes,
            name: "dtrain".into(),
            initializer: graph.initializers,
            input: vec![input],
            output,
        }),
        opset_import: vec![OperatorSet { domain: String::new(), version: 18 }],
        metadata_props: metadata,
    };
    Ok(model.encode_to_vec())
}

struct Graph<'a> {
    network: &'a Network,
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    count: usize,
    /// Dimensions of the value in hand, that of the batch included.
    rank: usize,
}

/// An option that is whole numbers.
fn ints(name: &str, ints: impl IntoIterator<Item = i64>) -> Attribute {
    Attribute { name: name.into(), ints: ints.into_iter().collect(), kind: 7, ..Attribute::default() }
}

fn int(name: &str, i: i64) -> Attribute {
    Attribute { name: name.into(), i: Some(i), kind: 2, ..Attribute::default() }
}

fn float(name: &str, f: f32) -> Attribute {
    Attribute { name: name.into(), f: Some(f), kind: 1, ..Attribute::default() }
}

fn wide(sides: &[usize]) -> Vec<i64> {
    sides.iter().map(|side| *side as i64).collect()
}

/// Something that goes in or comes out, for any number of samples.
fn value(name: &str, element: i32, dims: &[usize]) -> ValueInfo {
    let batch = Dimension { value: None, name: Some("batch".into()) };
    let fixed = dims.iter().map(|side| Dimension { value: Some(*side as i64), name: None });
    let shape = Some(TensorShape { dim: std::iter::once(batch).chain(fixed).collect() });
    ValueInfo { name: name.into(), kind: Some(TypeProto { tensor: Some(TensorType { element, shape }) }) }
}

impl Graph<'_> {
    fn node(&mut self, kind: &str, inputs: &[&str], attribute: Vec<Attribute>) -> String {
        self.nodes_of(kind, inputs, attribute, 1).remove(0)
    }

    fn nodes_of(
        &mut self,
        kind: &str,
        inputs: &[&str],
        attribute: Vec<Attribute>,
        outputs: usize,
    ) -> Vec<String> {
        self.count += 1;
        let name = format!("{}_{}", kind.to_lowercase(), self.count);
        let output: Vec<String> = match outputs {
            1 => vec![name.clone()],
            _ => (0..outputs).map(|at| format!("{name}_{at}")).collect(),
        };
        let input = inputs.iter().map(|input| (*input).to_owned()).collect();
        self.nodes.push(NodeProto { input, output: output.clone(), name, op_type: kind.into(), attribute });
        output
    }

    /// A node under a name of its own.
    fn named(&mut self, kind: &str, inputs: &[&str], attribute: Vec<Attribute>, output: &str) {
        let made = self.node(kind, inputs, attribute);
        let node = self.nodes.last_mut().expect("it was just added");
        debug_assert_eq!(node.output[0], made);
        node.output[0] = output.to_owned();
    }

    fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> String {
        if !self.initializers.iter().any(|tensor| tensor.name == name) {
            let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.initializers.push(TensorProto {
                dims: wide(shape),
                data_type: FLOAT,
                name: name.into(),
                raw_data,
            });
        }
        name.to_owned()
    }

    fn constant(&mut self, value: f32) -> String {
        self.count += 1;
        let name = format!("constant_{}", self.count);
        self.floats(&name, &[], &[value])
    }

    fn shape(&mut self, sides: &[i64]) -> String {
        self.count += 1;
        let name = format!("shape_{}", self.count);
        let raw_data = sides.iter().flat_map(|side| side.to_le_bytes()).collect();
        let dims = vec![sides.len() as i64];
        self.initializers.push(TensorProto { dims, data_type: INT64, name: name.clone(), raw_data });
        name
    }

    fn parameter(&mut self, stage: &str, name: &str) -> String {
        let Parameter { shape, values } = self.network.parameter(stage, name);
        self.floats(&joined(stage, name), shape, values)
    }

    /// A parameter of a stage, or those of the stages that it is side by side as one.
    fn side_by_side(&mut self, stage: &str, parts: &[(&'static str, usize)], name: &str) -> String {
        if parts.is_empty() {
            return self.parameter(stage, name);
        }
        let (mut shape, mut all) = (Vec::new(), Vec::new());
        for (part, _) in parts {
            let parameter = self.network.parameter(&joined(stage, part), name);
            all.extend_from_slice(&parameter.values);
            match shape.first_mut() {
                None => shape.clone_from(&parameter.shape),
                Some(rows) => *rows += parameter.shape[0],
            }
        }
        self.floats(&joined(stage, name), &shape, &all)
    }

    /// What goes in, and the value that the first stage takes.
    fn input(&mut self) -> (ValueInfo, String) {
        let preparation = &self.network.preparation;
        match &preparation.input {
            InputSpec::Tokens { length, .. } => {
                self.rank = 2;
                (value("input_ids", INT64, &[*length]), "input_ids".into())
            }
            InputSpec::Values { shape } => {
                self.rank = shape.len() + 1;
                let info = value("input", FLOAT, shape);
                if preparation.mean.is_empty() {
                    return (info, "input".into());
                }
                let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
                let (mean, factor) = (narrow(&preparation.mean), narrow(&preparation.factor));
                let mut sides = vec![1; shape.len()];
                sides[0] = mean.len();
                let mean = self.floats("preparation.mean", &sides, &mean);
                let factor = self.floats("preparation.factor", &sides, &factor);
                let centred = self.node("Sub", &["input", &mean], vec![]);
                (info, self.node("Mul", &[&centred, &factor], vec![]))
            }
        }
    }

    /// What comes out.
    fn output(&mut self, x: String) -> Vec<ValueInfo> {
        let preparation = &self.network.preparation;
        match preparation.target {
            TargetSpec::Class { classes } => {
                self.named("Identity", &[&x], vec![], "logits");
                self.named("Softmax", &[&x], vec![int("axis", -1)], "probabilities");
                let classes = [classes as usize];
                vec![value("probabilities", FLOAT, &classes), value("logits", FLOAT, &classes)]
            }
            TargetSpec::ClassPerToken { classes } => {
                self.named("Identity", &[&x], vec![], "logits");
                vec![value("logits", FLOAT, &[preparation.spec().input_width(), classes as usize])]
            }
            TargetSpec::Values { width } => {
                match &preparation.targets {
                    None => self.named("Identity", &[&x], vec![], "prediction"),
                    Some(scale) => {
                        let narrow =
                            |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
                        let (deviation, mean) = (narrow(&scale.deviation), narrow(&scale.mean));
                        let deviation = self.floats("preparation.target_deviation", &[width], &deviation);
                        let mean = self.floats("preparation.target_mean", &[width], &mean);
                        let scaled = self.node("Mul", &[&x, &deviation], vec![]);
                        self.named("Add", &[&scaled, &mean], vec![], "prediction");
                    }
                }
                vec![value("prediction", FLOAT, &[width])]
            }
        }
    }

    fn chain(&mut self, prefix: &str, parts: &[Part], mut x: String) -> String {
        for part in parts {
            let name = joined(prefix, &part.name);
            let tied = part.tied.as_ref().map(|tied| joined(prefix, tied));
            x = self.stage(&name, tied.as_deref(), &part.stage, x);
        }
        x
    }

    fn stage(&mut self, name: &str, tied: Option<&str>, stage: &Description, x: String) -> String {
        match stage {
            Description::Linear { bias, parts, behind, .. } => {
                let weight = match tied {
                    Some(tied) => self.parameter("", tied),
                    None => self.side_by_side(name, parts, "weight"),
                };
                let bias = bias.then(|| self.side_by_side(name, parts, "bias"));
                let y = if self.rank == 2 {
                    let mut inputs = vec![x.as_str(), &weight];
                    inputs.extend(bias.as_deref());
                    self.node("Gemm", &inputs, vec![int("transB", 1)])
                } else {
                    let turned = self.node("Transpose", &[&weight], vec![ints("perm", [1, 0])]);
                    let y = self.node("MatMul", &[&x, &turned], vec![]);
                    bias.map_or(y.clone(), |bias| self.node("Add", &[&y, &bias], vec![]))
                };
                self.behind(*behind, y)
            }
            Description::Conv { kernel, stride, padding, bias, behind, .. } => {
                let weight = self.parameter(name, "weight");
                let bias = bias.then(|| self.parameter(name, "bias"));
                let mut inputs = vec![x.as_str(), &weight];
                inputs.extend(bias.as_deref());
                let pads = [wide(padding), wide(padding)].concat();
                let options = vec![
                    ints("kernel_shape", wide(kernel)),
                    ints("strides", wide(stride)),
                    ints("pads", pads),
                ];
                let y = self.node("Conv", &inputs, options);
                self.behind(*behind, y)
            }
            Description::MaxPool { dimensions, window, stride, padding } => {
                let all = |side: usize| vec![side as i64; *dimensions];
                let mut options = vec![ints("kernel_shape", all(*window)), ints("strides", all(*stride))];
                if *padding > 0 {
                    options.push(ints("pads", [all(*padding), all(*padding)].concat()));
                }
                self.node("MaxPool", &[&x], options)
            }
            Description::AvgPool { window, stride } => {
                let options = vec![ints("kernel_shape", wide(window)), ints("strides", wide(stride))];
                self.node("AveragePool", &[&x], options)
            }
            Description::BatchNorm { epsilon, .. } => {
                let of = ["weight", "bias", "running_mean", "running_var"].map(|of| self.parameter(name, of));
                let inputs = [x.as_str(), &of[0], &of[1], &of[2], &of[3]];
                self.node("BatchNormalization", &inputs, vec![float("epsilon", *epsilon)])
            }
            Description::LayerNorm { epsilon, .. } => {
                let of = ["weight", "bias"].map(|of| self.parameter(name, of));
                let options = vec![int("axis", -1), float("epsilon", *epsilon)];
                self.node("LayerNormalization", &[&x, &of[0], &of[1]], options)
            }
            Description::RmsNorm { epsilon, .. } => {
                let gain = self.parameter(name, "weight");
                self.rms_norm(*epsilon, &x, &gain)
            }
            Description::HeadNorm { heads, kv_heads, head, epsilon } => {
                let counts = [*heads, *kv_heads, *kv_heads].map(|heads| (heads * head) as i64);
                let lengths = self.shape(&counts);
                let parts = self.nodes_of("Split", &[&x, &lengths], vec![int("axis", -1)], 3);
                let [queries, keys] = [(0, *heads, "q_norm.weight"), (1, *kv_heads, "k_norm.weight")].map(
                    |(at, heads, gain)| {
                        let gain = self.parameter(name, gain);
                        let apart = self.shape(&[0, 0, heads as i64, *head as i64]);
                        let rows = self.node("Reshape", &[&parts[at], &apart], vec![]);
                        let normed = self.rms_norm(*epsilon, &rows, &gain);
                        let together = self.shape(&[0, 0, counts[at]]);
                        self.node("Reshape", &[&normed, &together], vec![])
                    },
                );
                self.node("Concat", &[&queries, &keys, &parts[2]], vec![int("axis", -1)])
            }
            Description::Pointwise(behind) => self.behind(*behind, x),
            Description::Flatten => {
                self.rank = 2;
                self.node("Flatten", &[&x], vec![int("axis", 1)])
            }
            Description::Dropout { .. } => x,
            Description::Embedding { .. } => {
                self.rank = 3;
                let of = ["tokens", "places"].map(|of| self.parameter(name, of));
                let tokens = self.node("Gather", &[&of[0], &x], vec![int("axis", 0)]);
                self.node("Add", &[&tokens, &of[1]], vec![])
            }
            Description::Lookup { .. } => {
                self.rank = 3;
                let table = self.parameter(name, "weight");
                self.node("Gather", &[&table, &x], vec![int("axis", 0)])
            }
            Description::Rotary { heads, kv_heads, head, time, theta, scaling } => {
                let speeds = RotarySpeeds::new(*theta, *head, *scaling);
                self.rotary([*heads, *kv_heads, *head, *time], speeds, &x)
            }
            Description::SwiGlu { .. } => {
                let parts = self.nodes_of("Split", &[&x], vec![int("axis", -1), int("num_outputs", 2)], 2);
                let share = self.node("Sigmoid", &[&parts[0]], vec![]);
                let gate = self.node("Mul", &[&parts[0], &share], vec![]);
                self.node("Mul", &[&gate, &parts[1]], vec![])
            }
            Description::Attention { heads, head, time, mask } => {
                self.attention([*heads, *head, *time], *mask, &x)
            }
            Description::Chain(parts) => self.chain(name, parts, x),
            Description::Residual(inner) => {
                let y = self.stage(name, None, inner, x.clone());
                self.node("Add", &[&x, &y], vec![])
            }
            Description::Projected { branch, name: beside, shortcut } => {
                let rank = self.rank;
                let y = self.stage(name, None, branch, x.clone());
                self.rank = rank;
                let z = self.stage(&joined(name, beside), None, shortcut, x);
                self.node("Add", &[&y, &z], vec![])
            }
            Description::Turn => {
                let flat = self.shape(&[0, 0, -1]);
                self.rank = 3;
                let places = self.node("Reshape", &[&x, &flat], vec![]);
                self.node("Transpose", &[&places], vec![ints("perm", [0, 2, 1])])
            }
            Description::ClassToken { .. } => {
                let [token, places] =
                    ["class_token", "encoder.pos_embedding"].map(|of| self.parameter(name, of));
                // As many tokens as there are samples: the size of the batch is only known then.
                let shape = self.node("Shape", &[&x], vec![]);
                let (from, to) = (self.shape(&[0]), self.shape(&[1]));
                let batch = self.node("Slice", &[&shape, &from, &to], vec![]);
                let ones = self.shape(&[1, 1]);
                let sides = self.node("Concat", &[&batch, &ones], vec![int("axis", 0)]);
                let tokens = self.node("Expand", &[&token, &sides], vec![]);
                let all = self.node("Concat", &[&tokens, &x], vec![int("axis", 1)]);
                self.node("Add", &[&all, &places], vec![])
            }
            Description::Take(taken) => {
                self.rank = 2;
                let at = self.index(if *taken == Taken::First { 0 } else { -1 });
                self.node("Gather", &[&x, &at], vec![int("axis", 1)])
            }
            Description::Recurrent { cell, inputs, hidden, layer } => {
                self.recurrent(name, *cell, [*inputs, *hidden, *layer], &x)
            }
            Description::Own(kind) => unreachable!("a network has no stage of kind {kind}"),
        }
    }

    /// A layer of recurrent cells over `[batch, time, inputs]`. ONNX has gates in another order, and time in front.
    fn recurrent(&mut self, name: &str, cell: Cell, [inputs, hidden, layer]: [usize; 3], x: &str) -> String {
        let (kind, order): (_, &[usize]) = match cell {
            Cell::Lstm => ("LSTM", &[0, 3, 1, 2]),
            Cell::Gru => ("GRU", &[1, 0, 2]),
        };
        let rows = order.len() * hidden;
        let ordered = |graph: &Self, of: &str, width: usize| -> Vec<f32> {
            let values = &graph.network.parameter(name, &format!("{of}_l{layer}")).values;
            let gate =
                |gate: &usize| values[gate * hidden * width..(gate + 1) * hidden * width].iter().copied();
            order.iter().flat_map(gate).collect()
        };
        let given = [("weight_ih", inputs), ("weight_hh", hidden), ("bias_ih", 1), ("bias_hh", 1)];
        let [of_inputs, of_outputs, bias_in, bias_out] = given.map(|(of, width)| ordered(self, of, width));
        let biases = [bias_in, bias_out].concat();
        let called = |of: &str| format!("{}.{of}_l{layer}", if name.is_empty() { "recurrent" } else { name });
        let w = self.floats(&called("w"), &[1, rows, inputs], &of_inputs);
        let r = self.floats(&called("r"), &[1, rows, hidden], &of_outputs);
        let b = self.floats(&called("b"), &[1, 2 * rows], &biases);
        let x = self.node("Transpose", &[x], vec![ints("perm", [1, 0, 2])]);
        let mut options = vec![int("hidden_size", hidden as i64)];
        if cell == Cell::Gru {
            options.push(int("linear_before_reset", 1));
        }
        // [time, directions, batch, hidden]
        let y = self.node(kind, &[&x, &w, &r, &b], options);
        let direction = self.shape(&[1]);
        let y = self.node("Squeeze", &[&y, &direction], vec![]);
        self.node("Transpose", &[&y], vec![ints("perm", [1, 0, 2])])
    }

    /// A whole number.
    fn index(&mut self, at: i64) -> String {
        self.count += 1;
        let name = format!("index_{}", self.count);
        let raw_data = at.to_le_bytes().to_vec();
        self.initializers.push(TensorProto { dims: vec![], data_type: INT64, name: name.clone(), raw_data });
        name
    }

    /// An RMS norm of the last dimension.
    fn rms_norm(&mut self, epsilon: f32, x: &str, gain: &str) -> String {
        let (axis, epsilon) = (self.shape(&[-1]), self.constant(epsilon));
        let squares = self.node("Mul", &[x, x], vec![]);
        let mean = self.node("ReduceMean", &[&squares, &axis], vec![]);
        let sum = self.node("Add", &[&mean, &epsilon], vec![]);
        let root = self.node("Sqrt", &[&sum], vec![]);
        let y = self.node("Div", &[x, &root], vec![]);
        self.node("Mul", &[&y, gain], vec![])
    }

    /// Queries and keys turned by their places, and keys and values for each head.
    fn rotary(&mut self, [heads, kv_heads, head, time]: [usize; 4], speeds: RotarySpeeds, x: &str) -> String {
        let half = head / 2;
        let table = |of: fn(f64) -> f64| -> Vec<f32> {
            let angle = |at: usize| (at / head) as f64 * speeds.of(at % half);
            (0..time * head).map(|at| of(angle(at)) as f32).collect()
        };
        let cosines = self.floats("rotary_cosines", &[time, 1, head], &table(f64::cos));
        let sines = self.floats("rotary_sines", &[time, 1, head], &table(f64::sin));
        let [all, wide, narrow, group] =
            [heads + 2 * kv_heads, heads, kv_heads, heads / kv_heads].map(|count| count as i64);
        let [time, head] = [time, head].map(|count| count as i64);
        let (apart, sizes) = (self.shape(&[0, time, all, head]), self.shape(&[wide, narrow, narrow]));
        let x = self.node("Reshape", &[x, &apart], vec![]);
        let mut parts = self.nodes_of("Split", &[&x, &sizes], vec![int("axis", 2)], 3);
        for part in &mut parts[..2] {
            let halves = self.nodes_of("Split", &[part], vec![int("axis", 3), int("num_outputs", 2)], 2);
            let back = self.node("Neg", &[&halves[1]], vec![]);
            let across = self.node("Concat", &[&back, &halves[0]], vec![int("axis", 3)]);
            let along = self.node("Mul", &[part, &cosines], vec![]);
            let across = self.node("Mul", &[&across, &sines], vec![]);
            *part = self.node("Add", &[&along, &across], vec![]);
        }
        for part in &mut parts[1..] {
            let (alone, each) = (self.shape(&[0, time, narrow, 1, head]), self.shape(&[1, 1, 1, group, 1]));
            let shared = self.node("Reshape", &[part, &alone], vec![]);
            let shared = self.node("Expand", &[&shared, &each], vec![]);
            let spread = self.shape(&[0, time, wide, head]);
            *part = self.node("Reshape", &[&shared, &spread], vec![]);
        }
        let together = self.node("Concat", &[&parts[0], &parts[1], &parts[2]], vec![int("axis", 2)]);
        let packed = self.shape(&[0, time, 3 * wide * head]);
        self.node("Reshape", &[&together, &packed], vec![])
    }

    fn attention(&mut self, [heads, head, time]: [usize; 3], mask: Mask, x: &str) -> String {
        let parts = self.nodes_of("Split", &[x], vec![int("axis", 2), int("num_outputs", 3)], 3);
        let apart = self.shape(&[0, time as i64, heads as i64, head as i64]);
        let [q, k, v] = [(0, [0, 2, 1, 3]), (1, [0, 2, 3, 1]), (2, [0, 2, 1, 3])].map(|(at, order)| {
            let heads = self.node("Reshape", &[&parts[at], &apart], vec![]);
            self.node("Transpose", &[&heads], vec![ints("perm", order)])
        });
        let scores = self.node("MatMul", &[&q, &k], vec![]);
        let scale = self.constant(1.0 / (head as f32).sqrt());
        let mut scores = self.node("Mul", &[&scores, &scale], vec![]);
        if mask == Mask::Causal {
            // Nobody sees what comes behind.
            let behind = |at: usize| if at % time > at / time { f32::NEG_INFINITY } else { 0.0 };
            let mask: Vec<f32> = (0..time * time).map(behind).collect();
            let mask = self.floats("causal_mask", &[time, time], &mask);
            scores = self.node("Add", &[&scores, &mask], vec![]);
        }
        let shares = self.node("Softmax", &[&scores], vec![int("axis", -1)]);
        let seen = self.node("MatMul", &[&shares, &v], vec![]);
        let seen = self.node("Transpose", &[&seen], vec![ints("perm", [0, 2, 1, 3])]);
        let together = self.shape(&[0, time as i64, (heads * head) as i64]);
        self.node("Reshape", &[&seen, &together], vec![])
    }

    fn behind(&mut self, behind: Behind, x: String) -> String {
        match behind {
            Behind::Nothing => x,
            Behind::Relu => self.node("Relu", &[&x], vec![]),
            Behind::Gelu(form) => {
                let [half, one] = [0.5, 1.0].map(|value| self.constant(value));
                let inner = match form {
                    Gelu::Exact => {
                        let root = self.constant(std::f32::consts::SQRT_2);
                        let scaled = self.node("Div", &[&x, &root], vec![]);
                        self.node("Erf", &[&scaled], vec![])
                    }
                    Gelu::Tanh => {
                        let [share, root] = [0.044_715, (2.0 / std::f32::consts::PI).sqrt()]
                            .map(|value| self.constant(value));
                        let square = self.node("Mul", &[&x, &x], vec![]);
                        let cube = self.node("Mul", &[&square, &x], vec![]);
                        let cube = self.node("Mul", &[&cube, &share], vec![]);
                        let sum = self.node("Add", &[&x, &cube], vec![]);
                        let scaled = self.node("Mul", &[&sum, &root], vec![]);
                        self.node("Tanh", &[&scaled], vec![])
                    }
                };
                let shifted = self.node("Add", &[&inner, &one], vec![]);
                let halved = self.node("Mul", &[&x, &half], vec![]);
                self.node("Mul", &[&halved, &shifted], vec![])
            }
        }
    }
}
