//! What is fixed for the life of a replica: its tensors, its lengths and its limits.
//!
//! It does not know what a replica computes.

use crate::device::NORM_BLOCK;
use crate::layout::Layout;
use crate::model::Model;
use crate::own_metric::OwnMetric;
use crate::sharing::WORDS;
use crate::state::StateShape;
use crate::windows::Windows;
use dtrain_types::Bytes;

/// A slot for windows is no shorter than this. *Units*: floats.
const LEAST_SLOT: usize = 1 << 16;
/// More floats than the words of a micro-batch take that travel beside its gradient.
const TRAILER: usize = 16;

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
    /// The windows of its gradients, where they are to be had window by window.
    pub windows: Option<Windows>,
    /// Metrics of its program's own, if it has one.
    pub own_metrics: Vec<OwnMetric>,
    /// Where the memory goes.
    pub memory: MemoryTable,
}

impl About {
    /// Elements of a gradient: those of all parameters, then the sums of all statistics.
    #[must_use]
    pub fn gradient_len(&self) -> usize {
        self.layout.gradient_len()
    }

    /// Elements of the slots through which ranks exchange what they have: a gradient, or as much as windows of one need, and all else that
    /// travels in a step of so many micro-batches.
    #[must_use]
    pub fn slot_len(&self, micro_batches: u32) -> usize {
        match &self.windows {
            None => self.gradient_len(),
            Some(windows) => {
                let words = WORDS * self.layout.parameters.div_ceil(NORM_BLOCK);
                windows.longest().max(words).max(LEAST_SLOT).max(TRAILER * micro_batches as usize)
            }
        }
    }

    /// A replica of `model` with these buffers.
    pub(crate) fn of<D: crate::device::Device>(model: &Model<D>, lengths: &BufferLengths) -> Self {
        Self {
            layout: model.layout().clone(),
            state: lengths.state,
            min_rows: model.min_rows(),
            group: model.group() as u32,
            outputs: model.loss_rows(1).width,
            windows: None,
            own_metrics: Vec::new(),
            memory: MemoryTable::of(lengths),
        }
    }

    /// A replica of a program that makes the passes, with these buffers and these metrics of the program's own.
    pub(crate) fn of_program(layout: Layout, lengths: &BufferLengths, own_metrics: Vec<OwnMetric>) -> Self {
        Self {
            layout,
            state: lengths.state,
            min_rows: 1,
            group: 1,
            outputs: 0,
            windows: None,
            own_metrics,
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
    /// Parameters that stay as they are, apart from the state.
    pub frozen: usize,
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
        if lengths.frozen > 0 {
            rows.insert(0, ("frozen parameters", bytes(lengths.frozen)));
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
