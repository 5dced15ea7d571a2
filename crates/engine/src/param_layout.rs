//! The tensors that a stage keeps over the whole run: their names, shapes, beginnings, and where they lie in its slices.
//!
//! What is trained, what follows the data and what stays as it is are counted apart, each from 0. It does not know devices or values.

use std::ops::Range;

/// One parameter tensor in its stage's slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name within the stage, as PyTorch would call it: `weight`, `qkv.bias`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Offset in the stage's slice, in elements.
    pub offset: usize,
    /// Whether weight decay applies (matrices yes, biases and gains no, as nanoGPT has it).
    pub decays: bool,
    /// How it starts.
    pub init: Init,
}

impl Parameter {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f32),
    /// Uniform in `[-bound, bound)`.
    Uniform(f32),
    /// Normal with this deviation.
    Normal(f32),
    /// The first element is this, the others are 0.
    First(f32),
}

/// What a stage keeps over the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParamLayout {
    /// The parameters, in order of offset, without gaps.
    pub parameters: Vec<Parameter>,
    /// Running statistics, in order of offset, without gaps; they start as `init` says and do not decay.
    pub stats: Vec<Parameter>,
    /// Parameters that stay as they are, in order of offset, without gaps: they lie apart from the others, and have no gradient.
    pub frozen: Vec<Parameter>,
}

impl ParamLayout {
    /// A stage that keeps nothing.
    pub const NOTHING: Self = Self { parameters: Vec::new(), stats: Vec::new(), frozen: Vec::new() };

    /// Elements of all parameters.
    #[must_use]
    pub fn parameters_len(&self) -> usize {
        self.parameters.iter().map(Parameter::elements).sum()
    }

    /// Elements of all running statistics.
    #[must_use]
    pub fn stats_len(&self) -> usize {
        self.stats.iter().map(Parameter::elements).sum()
    }

    /// Elements of all parameters that stay as they are.
    #[must_use]
    pub fn frozen_len(&self) -> usize {
        self.frozen.iter().map(Parameter::elements).sum()
    }

    /// The same with all parameters among those that stay as they are. *Panics* if some are there already.
    #[must_use]
    pub(crate) fn all_frozen(self) -> Self {
        assert!(self.frozen.is_empty(), "a stage that has no other inside");
        Self { parameters: Vec::new(), stats: self.stats, frozen: self.parameters }
    }

    /// Adds a parameter behind the others. Tensors of two or more dimensions decay.
    #[must_use]
    pub fn with(mut self, name: &str, shape: &[usize], init: Init) -> Self {
        let offset = self.parameters_len();
        let decays = shape.len() > 1;
        self.parameters.push(Parameter { name: name.into(), shape: shape.to_vec(), offset, decays, init });
        self
    }

    /// Adds a running statistic behind the others.
    #[must_use]
    pub fn with_stat(mut self, name: &str, shape: &[usize], init: Init) -> Self {
        let offset = self.stats_len();
        self.stats.push(Parameter { name: name.into(), shape: shape.to_vec(), offset, decays: false, init });
        self
    }

    /// Puts the tensors of a stage behind the others, with `name` in front of theirs unless it is empty; says where they lie then.
    pub(crate) fn append(&mut self, name: &str, stage: Self) -> Place {
        let prefix = prefix(name);
        let moved = |list: Vec<Parameter>, by: usize| {
            let moved =
                |p: Parameter| Parameter { name: format!("{prefix}{}", p.name), offset: p.offset + by, ..p };
            list.into_iter().map(moved).collect::<Vec<_>>()
        };
        let (params, stats, frozen) = (self.parameters_len(), self.stats_len(), self.frozen_len());
        self.parameters.extend(moved(stage.parameters, params));
        self.stats.extend(moved(stage.stats, stats));
        self.frozen.extend(moved(stage.frozen, frozen));
        Place {
            params: params..self.parameters_len(),
            stats: stats..self.stats_len(),
            frozen: frozen..self.frozen_len(),
        }
    }
}

/// What stands in front of the names of a stage's tensors.
pub(crate) fn prefix(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{name}.") }
}

/// Where the tensors of a stage lie among those of the one that it is inside of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its parameters.
    pub params: Range<usize>,
    /// Its running statistics.
    pub stats: Range<usize>,
    /// Its parameters that stay as they are.
    pub frozen: Range<usize>,
}
