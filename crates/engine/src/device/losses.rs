//! What losses are asked, and what they say.
//!
//! It does not know who computes them.

/// What a loss says of one micro-batch; sums in row order, f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSums {
    /// Sum of weighted losses.
    pub loss: f64,
    /// Sum of the weights: the normaliser.
    pub weight: f64,
    /// Rows counted (not ignored).
    pub counted: u64,
    /// Counted rows whose greatest logit (the first of equals) is the target's.
    pub correct: u64,
}

/// The outputs that a loss is asked about: memory to read, or memory to write.
#[derive(Debug)]
pub enum Outputs<R, M> {
    /// They stay as they are.
    Kept(R),
    /// The gradient of the *sum* of weighted losses takes their place.
    Replaced(M),
}

/// Options of cross entropy over class ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy<'a, S = f32> {
    /// Share of the target that is spread evenly over all classes, in `[0, 1)`.
    pub label_smoothing: f32,
    /// Weight of each class; empty for all ones. As in PyTorch, with smoothing the spread part is weighted too.
    pub class_weights: &'a [f32],
    /// Rows with this target count for nothing.
    pub ignore_index: Option<u32>,
    /// What the gradient is multiplied by: a power of two, so that this is exact.
    pub scale: S,
}
