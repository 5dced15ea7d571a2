//! The shapes of recurrent layers.
//!
//! It does not know who computes them.

/// What a recurrent layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Long short-term memory: input, forget, candidate and output gates, and a state behind the output.
    Lstm,
    /// Gated recurrent unit: reset and update gates, and a candidate.
    Gru,
}

impl Cell {
    /// Rows of its weights for each element of its output: gates of PyTorch's layer.
    #[must_use]
    pub fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }

    /// Its name in PyTorch.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::Gru => "gru",
        }
    }
}

/// One step of the cells of a layer: outputs are `[rows, time, hidden]`, gates `[rows, time, 4, hidden]`, of which those of a GRU are
/// reset, update, and the candidate's two parts, of the input and of the output before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellStep {
    /// Which cells.
    pub cell: Cell,
    /// Sequences.
    pub rows: usize,
    /// Places of a sequence.
    pub time: usize,
    /// Which of them.
    pub at: usize,
    /// Width of the output.
    pub hidden: usize,
}

/// Gates that the cells of a layer have memory for: `[rows, time, GATES, hidden]`.
pub const GATES: usize = 4;

/// What recurrent cells kept for their gradient.
#[derive(Clone, Copy, Debug)]
pub struct CellsKept<F, R = F> {
    /// What the gates came to, f32.
    pub gates: F,
    /// States behind the outputs, f32; empty where there are none.
    pub states: F,
    /// The outputs.
    pub y: R,
}

/// The gradients that go back through a step of recurrent cells.
#[derive(Debug)]
pub struct CellGradients<M, F = M> {
    /// Of the outputs, `[rows, time, hidden]`: read at this place; what goes past the weights is added to the one before.
    pub dy: M,
    /// Of the states, `[rows, hidden]`, f32: that of this place's, then that of the one before.
    pub dstates: F,
    /// Of the sums that gates are made of, as they lie: written at this place.
    pub dgates: M,
}
