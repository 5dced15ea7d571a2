//! What a model is trained to make small.
//!
//! A loss gives the *sum* of weighted losses of a micro-batch, its gradient, and the normaliser beside it: the one
//! division happens after the reduction, when the whole step's normaliser is known.

use crate::batch::Targets;
use crate::device::{CrossEntropy, Device, Outputs, Rows};
use crate::error::EngineError;
use crate::stage::Input;

/// Words of a mixed target: a class, the other class, and the share of the first.
pub(crate) const MIXED: usize = 3;

/// A loss and its options.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// Cross entropy over class ids, on the last dimension of the outputs; as PyTorch's.
    CrossEntropy {
        /// Share of the target that is spread evenly over all classes, in `[0, 1)`.
        label_smoothing: f32,
        /// Weight of each class; empty for all ones.
        class_weights: Vec<f32>,
        /// Rows with this target count for nothing.
        ignore_index: Option<u32>,
    },
    /// Squared error, averaged over the outputs and over the samples.
    MeanSquaredError,
}

impl Loss {
    /// Cross entropy without options.
    #[must_use]
    pub fn cross_entropy() -> Self {
        Self::CrossEntropy { label_smoothing: 0.0, class_weights: Vec::new(), ignore_index: None }
    }

    /// Whether the options make sense for a model with so many outputs.
    ///
    /// *Errors*: [`EngineError::Option`] and [`EngineError::Loss`].
    pub fn check(&self, outputs: usize) -> Result<(), EngineError> {
        let Self::CrossEntropy { label_smoothing, class_weights, .. } = self else { return Ok(()) };
        if outputs < 2 {
            return Err(EngineError::Loss(format!(
                "cross entropy needs at least 2 classes, the model has {outputs} output"
            )));
        }
        if !(0.0..1.0).contains(label_smoothing) {
            let reason = format!("must be at least 0 and below 1, got {label_smoothing}");
            return Err(EngineError::Option { key: "loss.label_smoothing", reason });
        }
        let weights = class_weights.len();
        if weights != 0 && weights != outputs {
            let reason = format!("{weights} weights for a model with {outputs} outputs");
            return Err(EngineError::Option { key: "loss.class_weights", reason });
        }
        match class_weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
            Some(w) => {
                let reason = format!("must be finite numbers of at least 0, got {w}");
                Err(EngineError::Option { key: "loss.class_weights", reason })
            }
            None => Ok(()),
        }
    }

    /// Whether targets are class ids; otherwise they are values in the shape of the outputs.
    pub(crate) fn takes_classes(&self) -> bool {
        matches!(self, Self::CrossEntropy { .. })
    }

    /// Whether targets fit: their kind, their number, and each class id.
    ///
    /// *Errors*: [`EngineError::Kind`], [`EngineError::Length`], [`EngineError::Target`].
    pub fn check_targets(&self, shape: Rows, targets: &Targets<'_>) -> Result<(), EngineError> {
        match (self, targets) {
            (Self::CrossEntropy { ignore_index, .. }, Targets::Classes(classes)) => {
                expect_length("targets", shape.rows, classes.len())?;
                let outside = |target: u32| target as usize >= shape.width && Some(target) != *ignore_index;
                match classes.iter().position(|target| outside(*target)) {
                    Some(row) => Err(EngineError::Target { target: classes[row], row, classes: shape.width }),
                    None => Ok(()),
                }
            }
            (Self::MeanSquaredError, Targets::Values(values)) => {
                expect_length("targets", shape.rows * shape.width, values.len())
            }
            (_, Targets::Mixed(_)) => {
                Err(EngineError::Kind { expected: "targets of one sample each", got: "mixed ones" })
            }
            (Self::CrossEntropy { .. }, Targets::Values(_)) => {
                Err(EngineError::Kind { expected: "class ids as targets", got: "values" })
            }
            (Self::MeanSquaredError, Targets::Classes(_)) => {
                Err(EngineError::Kind { expected: "values as targets", got: "class ids" })
            }
        }
    }

    /// Whether mixed targets fit: their number, and each class id.
    ///
    /// *Errors*: [`EngineError::Length`], [`EngineError::Target`].
    pub(crate) fn check_mixed(&self, shape: Rows, targets: &[u32]) -> Result<(), EngineError> {
        expect_length("targets", MIXED * shape.rows, targets.len())?;
        let outside = |target: &&u32| **target as usize >= shape.width;
        let rows = targets.chunks_exact(MIXED).enumerate();
        match rows.filter_map(|(row, words)| Some((row, words[..2].iter().find(outside)?))).next() {
            Some((row, target)) => Err(EngineError::Target { target: *target, row, classes: shape.width }),
            None => Ok(()),
        }
    }

    /// [`Loss::of`] for targets that are mixed.
    ///
    /// *Panics* on other targets.
    pub(crate) fn of_mixed<D: Device>(
        &self,
        device: &D,
        shape: Rows,
        outputs: Outputs<D::Ref<'_>, D::Mut<'_>>,
        targets: Input<'_, D>,
        scale: D::Scalar,
    ) -> D::Sums {
        let (Self::CrossEntropy { label_smoothing, class_weights, .. }, Input::Ids(targets)) =
            (self, targets)
        else {
            unreachable!("the targets were checked")
        };
        let (label_smoothing, ignore_index) = (*label_smoothing, None);
        let options = CrossEntropy { label_smoothing, class_weights, ignore_index, scale };
        device.mixed_cross_entropy(shape, &options, outputs, targets)
    }

    /// The sums of a micro-batch, for [`Device::sums`], and, where it takes the outputs' place, the gradient of the sum of losses,
    /// times `scale`.
    ///
    /// *Panics* on targets of another kind than [`Loss::check_targets`] lets through.
    pub fn of<D: Device>(
        &self,
        device: &D,
        shape: Rows,
        outputs: Outputs<D::Ref<'_>, D::Mut<'_>>,
        targets: Input<'_, D>,
        scale: D::Scalar,
    ) -> D::Sums {
        match (self, targets) {
            (Self::CrossEntropy { label_smoothing, class_weights, ignore_index }, Input::Ids(classes)) => {
                let options = CrossEntropy {
                    label_smoothing: *label_smoothing,
                    class_weights,
                    ignore_index: *ignore_index,
                    scale,
                };
                device.cross_entropy(shape, &options, outputs, classes)
            }
            (Self::MeanSquaredError, Input::Values(values)) => {
                device.squared_error(shape, scale, outputs, values)
            }
            _ => unreachable!("the targets were checked"),
        }
    }
}

/// *Errors*: [`EngineError::Length`] if the two differ.
pub(crate) fn expect_length(what: &'static str, expected: usize, got: usize) -> Result<(), EngineError> {
    if expected == got { Ok(()) } else { Err(EngineError::Length { what, expected, got }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighted(class_weights: Vec<f32>) -> Loss {
        Loss::CrossEntropy { label_smoothing: 0.0, class_weights, ignore_index: Some(99) }
    }

    #[test]
    fn options_that_do_not_fit_the_model_are_refused() {
        let refused = |loss: Loss, outputs| loss.check(outputs).expect_err("it does not fit").to_string();
        assert_eq!(
            refused(weighted(vec![1.0; 3]), 4),
            "loss.class_weights: 3 weights for a model with 4 outputs"
        );
        assert!(refused(weighted(vec![1.0, -2.0]), 2).contains("got -2"));
        let smooth = Loss::CrossEntropy { label_smoothing: 1.0, class_weights: vec![], ignore_index: None };
        assert!(refused(smooth, 4).starts_with("loss.label_smoothing"));
        assert!(refused(Loss::cross_entropy(), 1).contains("at least 2 classes"));
        weighted(vec![1.0; 4]).check(4).expect("one weight a class");
        Loss::MeanSquaredError.check(1).expect("a regression has one output");
    }

    #[test]
    fn a_target_outside_the_classes_is_named_unless_it_is_the_ignored_one() {
        let shape = Rows { rows: 3, width: 4 };
        let check = |classes: &[u32]| weighted(vec![]).check_targets(shape, &Targets::Classes(classes));
        assert_eq!(check(&[0, 99, 3]), Ok(()));
        assert_eq!(check(&[0, 1, 4]), Err(EngineError::Target { target: 4, row: 2, classes: 4 }));
        assert_eq!(check(&[0, 1]), Err(EngineError::Length { what: "targets", expected: 3, got: 2 }));
        let values = Loss::MeanSquaredError.check_targets(shape, &Targets::Classes(&[0]));
        assert!(matches!(values, Err(EngineError::Kind { .. })));
    }
}
