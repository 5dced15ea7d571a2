//! From layers of untyped trees to one typed value per key.
//!
//! Later layers win. A layer that gives a section another `kind` starts that section afresh, because the keys below
//! it belonged to the old kind. It knows the table of keys, not what a value is for.

use super::error::{ConfigError, Problem};
use super::keys::{KEYS, Key, Mark, is_section, names};
use super::nearest::nearest;
use super::origin::Origin;
use super::samples;
use super::tree::{Entry, Tree, YamlNode, parse_argument};
use super::value::{Length, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Keys of a neighbouring tool or command, and where they live here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("nodes", "several hosts: `dtrain node --nodes N`; ranks on this host: ranks=N"),
    ("world_size", "write ranks=N"),
    ("nproc_per_node", "write ranks=N"),
    ("num_workers", "write workers=N"),
    ("gradient_accumulation_steps", "write batch_size=B accumulation_steps=N, or global_batch=N"),
    ("learning_rate", "write optimizer.lr=X"),
    ("max_epochs", "write epochs=N"),
    ("num_epochs", "write epochs=N"),
    ("max_steps", "write steps=N"),
    ("eval_steps", "write validation.every=\"N steps\""),
    ("eval_strategy", "write validation.every=\"N steps\" or \"1 epoch\""),
    ("evaluation_strategy", "write validation.every=\"N steps\" or \"1 epoch\""),
    ("val_check_interval", "write validation.every=\"N steps\""),
    ("check_val_every_n_epoch", "write validation.every=\"N epochs\""),
    ("limit_val_batches", "write validation.samples=N"),
    ("eval_iters", "write validation.samples=N"),
    ("max_eval_samples", "write validation.samples=N"),
    ("save_steps", "write checkpoint.every=\"N steps\""),
    ("max_grad_norm", "write optimizer.clip_norm=X"),
    ("dtype", "write precision=f32"),
    ("mixed_precision", "write precision=bf16 or precision=f16, on GPUs"),
    ("allow_tf32", "write precision=tf32, on GPUs"),
    ("tf32", "write precision=tf32, on GPUs"),
    ("comm_dtype", "write wire=f32 or wire=bf16"),
    ("gradient_checkpointing", "write recompute=auto, on or off"),
    ("activation_checkpointing", "write recompute=auto, on or off"),
    ("dataset", "write data.kind=digits"),
];

/// One layer, flattened to dotted keys.
pub type Layer = Vec<Entry>;

/// The layer of a file.
///
/// *Errors*: a document that is no mapping, a key given twice (once dotted, once nested).
pub fn file_layer(document: YamlNode) -> Result<Layer, ConfigError> {
    let Tree::Map(entries) = document.tree else {
        let problem = Problem::new("a configuration is a mapping of keys to values").at(document.origin);
        return Err(problem
            .hint("write `key: value` lines; `dtrain train --print-config` shows them all")
            .into());
    };
    let mut layer = Layer::new();
    flatten("", entries, &mut layer);
    for (i, entry) in layer.iter().enumerate() {
        if layer[..i].iter().any(|earlier| earlier.key == entry.key) {
            return Err(Problem::new("given twice").key(&entry.key).at(entry.origin.clone()).into());
        }
    }
    Ok(layer)
}

/// The layer of `key=value` arguments; the last of two for one key counts.
///
/// *Errors*: an argument without `=`, an unclosed bracket.
pub fn argument_layer<S: AsRef<str>>(arguments: &[S]) -> Result<Layer, ConfigError> {
    let mut layer = Layer::new();
    for argument in arguments {
        let argument = argument.as_ref();
        let origin = Origin::Argument(Arc::from(argument));
        let Some((key, value)) = argument.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(Problem::new("expected key=value")
                .at(origin)
                .hint("a configuration file is given with -c FILE; `dtrain train --print-config` lists all keys")
                .into());
        };
        let node = parse_argument(value, &origin)?;
        let mut flat = Layer::new();
        flatten("", vec![Entry { key: key.trim().to_owned(), origin, node }], &mut flat);
        layer.retain(|entry| !flat.iter().any(|new| new.key == entry.key));
        layer.extend(flat);
    }
    Ok(layer)
}

fn flatten(prefix: &str, entries: Vec<Entry>, layer: &mut Layer) {
    for mut entry in entries {
        entry.key = format!("{prefix}{}", entry.key);
        let section = is_section(&entry.key);
        match entry.node.tree {
            Tree::Map(inner) => flatten(&format!("{}.", entry.key), inner, layer),
            // `data:` with nothing below it says nothing.
            _ if section && entry.node.is_empty() => {}
            // `model=mlp` is short for `model.kind=mlp`.
            tree if section => {
                let key = format!("{}.kind", entry.key);
                layer.push(Entry {
                    key,
                    origin: entry.origin,
                    node: YamlNode { origin: entry.node.origin, tree },
                });
            }
            tree => {
                entry.node.tree = tree;
                layer.push(entry);
            }
        }
    }
}

/// How strongly a value was asked for: 0 is a default, then the layers in their order.
pub type Strength = usize;

/// One value per key of the table, for the kinds that were chosen.
#[derive(Clone, Debug)]
pub struct Resolved {
    values: BTreeMap<&'static str, Slot>,
}

#[derive(Clone, Debug)]
struct Slot {
    value: Value,
    origin: Origin,
    strength: Strength,
}

impl Resolved {
    /// Lays the layers over each other and reads every value by its type.
    ///
    /// *Errors*: all unknown keys and all values that do not fit, at once.
    pub fn new(layers: Vec<Layer>) -> Result<Self, ConfigError> {
        let mut given = merge(layers);
        let mut problems = unknown_keys(&mut given);
        let mut resolved = Self { values: BTreeMap::new() };
        let mut missing = Vec::new();
        for key in KEYS {
            if !resolved.applies(key) {
                continue;
            }
            let (node, strength) = match given.remove(key.name) {
                Some((strength, entry)) => (entry.node, strength),
                None => match resolved.default_of(key) {
                    Some(text) => (default_node(text), 0),
                    None => {
                        missing.push(missing_key(key));
                        continue;
                    }
                },
            };
            match key.accepts.read(&node) {
                Ok(value) => {
                    resolved.values.insert(key.name, Slot { value, origin: node.origin, strength });
                }
                Err(wrong) => problems.push(wrong_value(key, wrong)),
            }
        }
        // What is left belongs to another kind. After another problem the kind itself may be the mistake.
        if problems.is_empty() {
            problems = missing;
            problems.extend(given.into_values().map(|(_, entry)| resolved.other_kind(entry)));
        }
        ConfigError::check(problems)?;
        Ok(resolved)
    }

    /// What a key is where nobody says it: what the table says, but for the model that suits the samples.
    fn default_of(&self, key: &Key) -> Option<&'static str> {
        let by_samples = if key.name == "model.kind" { samples::model(|key| self.get(key)) } else { None };
        by_samples.or(key.default)
    }

    fn applies(&self, key: &Key) -> bool {
        key.when.is_none_or(|(other, words)| {
            matches!(self.values.get(other), Some(Slot { value: Value::Word(word), .. }) if words.contains(word))
        })
    }

    fn other_kind(&self, entry: Entry) -> Problem {
        let rows = KEYS.iter().filter(|key| key.name == entry.key).filter_map(|key| key.when);
        let (other, words) = rows.fold(("", Vec::new()), |(_, mut words), (other, more)| {
            words.extend(more.iter().copied());
            (other, words)
        });
        let chosen = self.values.get(other).map_or_else(String::new, |slot| slot.value.to_string());
        Problem::new(format!("this key belongs to {other}: {}, but {other} is {chosen}", words.join(" | ")))
            .key(entry.key.as_str())
            .at(entry.origin)
            .hint(format!("remove {}, or write {other}={}", entry.key, words[0]))
    }

    /// Every key that applies, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &Value)> {
        KEYS.iter()
            .filter(|key| self.applies(key))
            .filter_map(|key| Some((key, &self.values.get(key.name)?.value)))
    }

    /// The value of a key, if it applies.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).map(|slot| &slot.value)
    }

    /// Where the value of a key was written.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        self.values.get(name).map_or(Origin::Default, |slot| slot.origin.clone())
    }

    /// How strongly it was asked for.
    #[must_use]
    pub fn strength(&self, name: &str) -> Strength {
        self.values.get(name).map_or(0, |slot| slot.strength)
    }

    /// Puts a derived value in the place of a given one.
    pub fn set(&mut self, name: &'static str, value: Value) {
        let slot = self.values.get_mut(name).expect("only a key that applies is derived");
        slot.value = value;
    }

    /// A problem with the value of a key, at its place.
    #[must_use]
    pub fn problem(&self, name: &str, message: impl Into<String>) -> Problem {
        Problem::new(message).key(name).at(self.origin(name))
    }

    /// The keys whose change makes another run.
    #[must_use]
    pub fn changed_bits(&self, new: &Self) -> Vec<&'static str> {
        let value = |resolved: &Self, name| resolved.get(name).cloned();
        // By the rows that hold: what a key changes may depend on another one.
        let rows = || self.iter().chain(new.iter());
        let marked = |name| rows().any(|(key, _)| key.name == name && key.mark == Mark::Bits);
        names().filter(|name| marked(*name) && value(self, name) != value(new, name)).collect()
    }
}

fn merge(layers: Vec<Layer>) -> BTreeMap<String, (Strength, Entry)> {
    let mut merged: BTreeMap<String, (Strength, Entry)> = BTreeMap::new();
    for (i, layer) in layers.into_iter().enumerate() {
        for kind in layer.iter().filter(|entry| entry.key.ends_with(".kind")) {
            let replaced = merged.get(&kind.key).is_some_and(|(_, old)| old.node.tree != kind.node.tree);
            if replaced {
                let section = kind.key.trim_end_matches("kind");
                merged.retain(|key, _| !key.starts_with(section));
            }
        }
        for entry in layer {
            merged.insert(entry.key.clone(), (i + 1, entry));
        }
    }
    merged
}

fn unknown_keys(given: &mut BTreeMap<String, (Strength, Entry)>) -> Vec<Problem> {
    let unknown: Vec<String> =
        given.keys().filter(|key| !names().any(|name| name == *key)).cloned().collect();
    let report = |key: String| {
        let (_, entry) = given.remove(&key).expect("just listed");
        let problem = Problem::new("there is no such key").key(key.as_str()).at(entry.origin);
        match nearest(&key, names()) {
            Some(name) => problem.hint(format!("did you mean {name}?")),
            None => match ELSEWHERE.iter().find(|(word, _)| *word == key) {
                Some((_, hint)) => problem.hint(*hint),
                None => problem.hint(section_hint(&key)),
            },
        }
    };
    unknown.into_iter().map(report).collect()
}

fn section_hint(key: &str) -> String {
    match key.split_once('.').filter(|(section, _)| is_section(section)) {
        Some((section, _)) => {
            let keys = names().filter_map(|name| name.strip_prefix(section)?.strip_prefix('.'));
            format!("the keys of {section} are {}", keys.collect::<Vec<_>>().join(", "))
        }
        None => "`dtrain train --print-config` lists all keys".to_owned(),
    }
}

fn default_node(text: &str) -> YamlNode {
    parse_argument(text, &Origin::Default).expect("a default in the table is well formed")
}

fn missing_key(key: &Key) -> Problem {
    let (other, words) = key.when.expect("only keys of a kind can be required");
    Problem::new(format!("needed for {other}: {}", words.join(" | ")))
        .key(key.name)
        .hint(format!("write {}=..., {}", key.name, key.help))
}

fn wrong_value(key: &Key, wrong: &YamlNode) -> Problem {
    let message = format!("expected {}, got {}", key.accepts.expected(), wrong.describe());
    let problem = Problem::new(message).key(key.name).at(wrong.origin.clone());
    if key.accepts.reads_unquoted(wrong) {
        return problem.hint("remove the quotes");
    }
    let suggestion = match &wrong.tree {
        Tree::Scalar { text, .. } => key.accepts.suggestion(text),
        _ => None,
    };
    match suggestion {
        Some(word) => problem.hint(format!("did you mean {word}?")),
        None => problem.hint(format!("{}: {}", key.name, key.help)),
    }
}

/// Typed views of values. A key that is absent or of another type is a mistake in the table, not of the user.
impl Resolved {
    fn expect(&self, name: &str) -> &Value {
        self.get(name).unwrap_or_else(|| panic!("the table has no value for {name}"))
    }

    /// The word of a choice.
    ///
    /// *Panics* on another type, as all of these do.
    #[must_use]
    pub fn word(&self, name: &str) -> &'static str {
        match self.expect(name) {
            Value::Word(word) => word,
            other => panic!("{name} is no word: {other:?}"),
        }
    }

    /// A text, or `None` for `none`.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.expect(name) {
            Value::Text(text) => Some(text),
            Value::Word("none") => None,
            other => panic!("{name} is no text: {other:?}"),
        }
    }

    /// A flag.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        match self.expect(name) {
            Value::Bool(flag) => *flag,
            other => panic!("{name} is no flag: {other:?}"),
        }
    }

    /// A whole number, or `None` for `none` and `auto`.
    #[must_use]
    pub fn int<T: TryFrom<i128>>(&self, name: &str) -> Option<T> {
        match self.expect(name) {
            Value::Int(number) => match T::try_from(*number) {
                Ok(number) => Some(number),
                Err(_) => panic!("the table lets {name} be {number}"),
            },
            Value::Word(_) => None,
            other => panic!("{name} is no whole number: {other:?}"),
        }
    }

    /// A whole number that is always there.
    #[must_use]
    pub fn count<T: TryFrom<i128>>(&self, name: &str) -> T {
        self.int(name).unwrap_or_else(|| panic!("{name} is not a number here"))
    }

    /// A number, or `None` for `none`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.expect(name) {
            Value::Number(number) => Some(*number),
            Value::Word("none") => None,
            other => panic!("{name} is no number: {other:?}"),
        }
    }

    /// A time.
    #[must_use]
    pub fn time(&self, name: &str) -> Duration {
        match self.expect(name) {
            Value::Time(time) => *time,
            other => panic!("{name} is no time: {other:?}"),
        }
    }

    /// A size in bytes, or `None` for `none`.
    #[must_use]
    pub fn size(&self, name: &str) -> Option<u64> {
        match self.expect(name) {
            Value::Size(size) => Some(*size),
            Value::Word("none") => None,
            other => panic!("{name} is no size: {other:?}"),
        }
    }

    /// A stretch of training, or `None` for `none`.
    #[must_use]
    pub fn length(&self, name: &str) -> Option<Length> {
        match self.expect(name) {
            Value::Length(length) => Some(*length),
            Value::Word("none") => None,
            other => panic!("{name} is no length: {other:?}"),
        }
    }

    /// The values of a list; empty for `none`.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Value] {
        match self.expect(name) {
            Value::List(values) => values,
            Value::Word("none") => &[],
            other => panic!("{name} is no list: {other:?}"),
        }
    }
}
