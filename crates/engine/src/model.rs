//! A model: stages planned for one size of micro-batch, their layout, and the loss behind them.
//!
//! A model holds no numbers: parameters lie in a [`crate::State`], activations in a replica's arena. It does not
//! know the optimizer.

use crate::batch::{Batch, Inputs};
use crate::device::{Device, Rows};
use crate::error::EngineError;
use crate::layout::{Layout, Section, StageSlice, Tensor};
use crate::loss::{Loss, expect_length};
use crate::stage::{ArenaPlan, Parameter, Shape, Stage};
use crate::stages::Chain;

/// Stages planned for one size of micro-batch. See the file's comment.
pub struct Model<D: Device> {
    pub(crate) chain: Chain<D>,
    pub(crate) loss: Loss,
    layout: Layout,
    input: Shape,
    output: Shape,
    plan: ArenaPlan,
}

impl<D: Device> Model<D> {
    /// Plans `stages` for micro-batches of at most `input.rows()` samples, and checks that the loss fits.
    ///
    /// *Errors*: [`EngineError::Stage`] names the stage that does not fit its input; [`Loss::check`].
    pub fn new(device: &D, mut stages: Chain<D>, input: Shape, loss: Loss) -> Result<Self, EngineError> {
        if input.rows() == 0 {
            return Err(EngineError::Rows { rows: 0, planned: 0 });
        }
        if stages.is_empty() {
            let reason = "it has no stage".into();
            return Err(EngineError::Stage { stage: "model".into(), kind: "chain", reason });
        }
        let mut plan = ArenaPlan::default();
        let output = stages
            .plan_stages(device, &input, &mut plan)
            .map_err(|(stage, kind, reason)| EngineError::Stage { stage, kind, reason })?;
        let width = output.width().map_err(EngineError::Loss)?;
        loss.check(width)?;
        let layout = layout(&stages);
        Ok(Self { chain: stages, loss, layout, input, output, plan })
    }

    /// Every tensor, and where it lies.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The input's shape; its rows are those of the greatest micro-batch.
    #[must_use]
    pub fn input(&self) -> &Shape {
        &self.input
    }

    /// The output's shape.
    #[must_use]
    pub fn output(&self) -> &Shape {
        &self.output
    }

    /// What a pass needs of memory and of its micro-batch.
    #[must_use]
    pub fn plan(&self) -> ArenaPlan {
        self.plan
    }

    /// How many token ids it knows, if it takes any.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.chain.vocabulary()
    }

    /// Checks the number of rows and the inputs.
    ///
    /// *Errors*: [`EngineError::Rows`], [`EngineError::Kind`], [`EngineError::Length`], [`EngineError::Token`].
    pub fn check_inputs(&self, rows: usize, inputs: Inputs<'_>) -> Result<(), EngineError> {
        let planned = self.input.rows();
        if rows == 0 || rows > planned {
            return Err(EngineError::Rows { rows, planned });
        }
        let length = rows * self.input.per_row();
        match (&self.input, inputs) {
            (Shape::Values { .. }, Inputs::Values(values)) => expect_length("inputs", length, values.len()),
            (Shape::Tokens { .. }, Inputs::Tokens(tokens)) => {
                expect_length("inputs", length, tokens.len())?;
                let vocabulary = self.vocabulary().unwrap_or(usize::MAX);
                match tokens.iter().position(|token| *token as usize >= vocabulary) {
                    Some(place) => Err(EngineError::Token { token: tokens[place], place, vocabulary }),
                    None => Ok(()),
                }
            }
            (Shape::Values { .. }, Inputs::Tokens(_)) => {
                Err(EngineError::Kind { expected: "values as inputs", got: "token ids" })
            }
            (Shape::Tokens { .. }, Inputs::Values(_)) => {
                Err(EngineError::Kind { expected: "token ids as inputs", got: "values" })
            }
        }
    }

    /// Checks a batch to train with: its inputs, its targets, and that it has enough rows.
    ///
    /// *Errors*: as [`Model::check_inputs`] and [`Loss::check_targets`]; [`EngineError::SingleValue`].
    pub fn check_batch(&self, batch: &Batch<'_>) -> Result<(), EngineError> {
        self.check_inputs(batch.rows, batch.inputs)?;
        if batch.rows < self.min_rows() {
            return Err(EngineError::SingleValue { needed: self.min_rows(), rows: batch.rows });
        }
        self.loss.check_targets(self.loss_rows(batch.rows), &batch.targets)
    }

    /// The least number of rows that a micro-batch may have in training.
    #[must_use]
    pub fn min_rows(&self) -> usize {
        self.plan.min_rows.max(1)
    }

    /// The outputs of `rows` samples as rows of the loss: one a sample, or one a place of a sequence.
    #[must_use]
    pub fn loss_rows(&self, rows: usize) -> Rows {
        let width = self.output.width().expect("the plan found a width");
        Rows { rows: rows * self.output.per_row() / width, width }
    }
}

fn layout<D: Device>(chain: &Chain<D>) -> Layout {
    let tensor = |section: Section| {
        move |p: &Parameter| Tensor {
            name: p.name.clone(),
            shape: p.shape.clone(),
            section,
            offset: p.offset,
            decays: p.decays,
            init: p.init,
        }
    };
    let of = Stage::<D>::layout(chain);
    let parameters = of.parameters.iter().map(tensor(Section::Parameters));
    let stats = of.stats.iter().map(tensor(Section::Stats));
    let slice = |child: &crate::stages::Child<D>| StageSlice {
        name: child.name.clone(),
        kind: child.stage.kind(),
        parameters: child.params.clone(),
        stats: child.stats.clone(),
    };
    Layout {
        tensors: parameters.chain(stats).collect(),
        stages: chain.children().iter().map(slice).collect(),
        parameters: of.parameters_len(),
        stats: of.stats_len(),
    }
}
