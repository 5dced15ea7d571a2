//! What is fixed for the life of a replica: its tensors, its lengths and its limits.
//!
//! It does not know what a replica computes.

use crate::layout::Layout;
use crate::model::Model;
use crate::state::StateShape;
use dtrain_types::Bytes;

/// What is fixed for the life of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// Every tensor, and where it lies.
    pub layout: Layout,
    /// The shape of the state.
    pub state: StateShape,
    /// The least number of rows that a micro-batch may have in training: 2 where batch norm would see single values.
    pub min_rows: usize,
    /// How many micro-batches that follow one another it takes at once, at most: a power of two, or as many as any
    /// rank can have.
    pub group: u32,
    /// Outputs a row: the classes, for a classifier.
    pub outputs: usize,
    /// Metrics of its program's own, if it has one.
    pub own_metrics: usize,
    /// Where the memory goes.
    pub memory: MemoryTable,
}

impl About {
    /// Elements of a gradient: those of all parameters, then the sums of all statistics.
    #[must_use]
    pub fn gradient_len(&self) -> usize {
        self.layout.gradient_len()
    }

    /// A replica of `model` with these buffers.
    pub(crate) fn of<D: crate::device::Device>(model: &Model<D>, lengths: &BufferLengths) -> Self {
        Self {
            layout: model.layout().clone(),
            state: lengths.state,
            min_rows: model.min_rows(),
            group: model.group() as u32,
            outputs: model.loss_rows(1).width,
            own_metrics: 0,
            memory: MemoryTable::of(lengths),
        }
    }
}

/// Where the memory of a replica goes, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable {
    /// What, and how many bytes.
    pub rows: Vec<(&'static str, Bytes)>,
}

/// Elements of the buffers of a replica, whatever memory they are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLengths {
    /// The state.
    pub state: StateShape,
    /// What a device has of parameters beside them, to multiply.
    pub copy: usize,
    /// A gradient buffer.
    pub gradient: usize,
    /// What is kept from the forward to the backward pass, and the outputs.
    pub activations: usize,
    /// What is free between stages, and the gradient of the outputs where it cannot take their place.
    pub scratch: usize,
}

impl MemoryTable {
    pub(crate) fn of(lengths: &BufferLengths) -> Self {
        let bytes = |elements: usize| Bytes(elements as u64 * 4);
        let [parameters, stats, first, second, average] = lengths.state.lengths();
        let mut rows = vec![
            ("parameters", bytes(parameters)),
            ("running statistics", bytes(stats)),
            ("optimizer state", bytes(first + second)),
            ("one gradient buffer", bytes(lengths.gradient)),
            ("activations", bytes(lengths.activations)),
            ("scratch", bytes(lengths.scratch)),
        ];
        if lengths.copy > 0 {
            rows.insert(1, ("parameters in halves", bytes(lengths.copy)));
        }
        if average > 0 {
            let behind = rows.iter().position(|(what, _)| *what == "one gradient buffer");
            rows.insert(behind.expect("it is there"), ("moving average", bytes(average)));
        }
        Self { rows }
    }

    /// All rows together.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes(self.rows.iter().map(|(_, bytes)| bytes.0).sum())
    }
}
