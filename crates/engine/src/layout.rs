//! Where every tensor of a model lies in the flat buffers.
//!
//! A layout does not know the values, the optimizer, or which rank holds which slice.

use crate::param_layout::Init;
use std::ops::Range;

/// The flat buffer that a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// f32 master parameters.
    Parameters,
    /// Running statistics.
    Stats,
    /// The optimizer's first buffer: AdamW's first moment, SGD's momentum. Same offsets as the parameters; or whatever an optimizer
    /// keeps that takes parameters together ([`Layout::kept`]).
    First,
    /// The optimizer's second buffer: AdamW's second moment. Same offsets as the parameters.
    Second,
    /// The moving average of the parameters. Same offsets as they.
    Average,
    /// Parameters that stay as they are and lie apart ([`Layout::frozen`]): no section of a state.
    Frozen,
}

impl Section {
    /// How many a state has.
    pub const COUNT: usize = 5;

    /// All sections of a state, in the order in which they are digested and saved.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Parameters, Self::Stats, Self::First, Self::Second, Self::Average];

    /// Those that only holders have, where replicas hold shards of a state.
    pub const MOMENTS: [Self; 2] = [Self::First, Self::Second];

    /// Whether it is one of them.
    #[must_use]
    pub fn is_of_moments(self) -> bool {
        Self::MOMENTS.contains(&self)
    }

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Stats => "stats",
            Self::First => "optimizer.m",
            Self::Second => "optimizer.v",
            Self::Average => "average",
            Self::Frozen => "frozen",
        }
    }
}

/// One named tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its full name: `0.weight`, `blocks.0.qkv.bias`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// [`Section::Parameters`], [`Section::Stats`] or [`Section::Frozen`].
    pub section: Section,
    /// First element in its section.
    pub offset: usize,
    /// Whether weight decay applies, where it applies to some.
    pub decays: bool,
    /// Whether it applies in no case.
    pub never_decays: bool,
    /// What the learning rate is multiplied by.
    pub lr_factor: f64,
    /// Whether it stays as it is, and its gradient counts nowhere.
    pub frozen: bool,
    /// Its number among all tensors of the model, whichever of them stay as they are: what it starts with depends on it.
    pub number: usize,
    /// Whether it is a weight of a hidden layer, where names say which are ([`Grouping::hidden`](crate::Grouping::hidden)).
    pub hidden: Option<bool>,
    /// How it starts.
    pub init: Init,
}

impl Tensor {
    /// A tensor of no group of its own: what decays of it is matrices.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        shape: &[usize],
        section: Section,
        offset: usize,
        init: Init,
    ) -> Self {
        let decays = section == Section::Parameters && shape.len() > 1;
        let (name, shape) = (name.into(), shape.to_vec());
        Self {
            name,
            shape,
            section,
            offset,
            decays,
            never_decays: false,
            lr_factor: 1.0,
            frozen: false,
            number: 0,
            hidden: None,
            init,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its elements in its section.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// The slices of one top-level stage: the unit of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSlice {
    /// Its name in the model.
    pub name: String,
    /// What it is.
    pub kind: &'static str,
    /// Its parameters, and their gradients.
    pub parameters: Range<usize>,
    /// Its running statistics.
    pub stats: Range<usize>,
}

/// Every tensor of a model, parameters first, each section in order of offset without gaps.
///
/// A gradient buffer is `[gradients of all parameters | sums of all statistics]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// All tensors: those of [`Section::Parameters`], then those of [`Section::Stats`].
    pub tensors: Vec<Tensor>,
    /// The top-level stages, in forward order.
    pub stages: Vec<StageSlice>,
    /// Elements of all parameters.
    pub parameters: usize,
    /// Elements of all running statistics.
    pub stats: usize,
    /// What an optimizer keeps that takes parameters together (that of another program, or Muon), in [`Section::First`] without gaps;
    /// nothing where moments are as long as the parameters.
    pub kept: Vec<Tensor>,
    /// Parameters that stay as they are, in [`Section::Frozen`] without gaps: they belong to no state, since nothing changes them, and have no
    /// gradient. Others that stay as they are lie among the parameters, because a part of their stage is trained.
    pub frozen: Vec<Tensor>,
}

impl Layout {
    /// Elements of a gradient buffer.
    #[must_use]
    pub fn gradient_len(&self) -> usize {
        self.parameters + self.stats
    }

    /// Elements of what such an optimizer keeps.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.kept.last().map_or(0, |tensor| tensor.range().end)
    }

    /// Elements of the parameters that lie apart.
    #[must_use]
    pub fn frozen_len(&self) -> usize {
        self.frozen.last().map_or(0, |tensor| tensor.range().end)
    }

    /// The first element of the parameters that is not frozen.
    #[must_use]
    pub fn first_trained(&self) -> usize {
        let trained = |tensor: &&Tensor| tensor.section == Section::Parameters && !tensor.frozen;
        self.tensors.iter().find(trained).map_or(0, |tensor| tensor.offset)
    }

    /// The parameters that stay as they are and lie among the others, in rising runs.
    #[must_use]
    pub fn frozen_among_others(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for range in self.tensors.iter().filter(|tensor| tensor.frozen).map(Tensor::range) {
            match runs.last_mut() {
                Some(run) if run.end == range.start => run.end = range.end,
                _ => runs.push(range),
            }
        }
        runs
    }

    /// The tensor with this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
