//! A model: stages planned for one size of micro-batch, their layout, and the loss behind them.
//!
//! A model holds no numbers: parameters lie in a [`crate::State`], activations in a replica's arena. It does not
//! know the optimizer.

use crate::batch::{BatchView, Inputs, Targets};
use crate::describe::Description;
use crate::device::{Device, Outputs, Rows};
use crate::error::EngineError;
use crate::groups::Grouping;
use crate::layout::{Layout, Section, StageSlice, Tensor};
use crate::loss::{Loss, MIXED, expect_length};
use crate::loss_scale::{LossScale, LossScaling};
use crate::param_layout::{ParamLayout, Parameter};
use crate::stage::{ArenaPlan, Input, KvCache, Shape, Stage};
use crate::stages::{BatchNorm, Chain};
use crate::update_facts::UpdateFacts;
use crate::windows::Windows;
use std::ops::Range;

/// Stages planned for one size of micro-batch. See the file's comment.
pub struct Model<D: Device> {
    pub(crate) chain: Chain<D>,
    pub(crate) loss: Loss,
    layout: Layout,
    /// Runs of parameters that stay as they are, and lie among the others.
    pub(crate) frozen: Vec<Range<usize>>,
    input: Shape,
    output: Shape,
    /// Values from one row of the outputs to the next.
    pitch: usize,
    plan: ArenaPlan,
    scaling: Option<LossScaling>,
    /// Whether it is trained on targets that are mixed.
    mixes: bool,
}

/// The most bytes that the activations of stacked micro-batches may take; a single one may take more.
const STACKED_BYTES: usize = 128 << 20;
/// Rows of the loss beyond which products gain nothing from more.
const STACKED_ROWS: usize = 1024;

impl<D: Device> Model<D> {
    /// Plans `stages` for micro-batches of at most `input.rows()` samples, and checks that the loss fits.
    ///
    /// *Errors*: [`EngineError::Stage`] names the stage that does not fit its input; [`Loss::check`].
    pub fn new(device: &D, stages: Chain<D>, input: Shape, loss: Loss) -> Result<Self, EngineError> {
        Self::for_passes_over(1, device, stages, input, loss)
    }

    /// The same, planned for passes over as many as `most` micro-batches at once: over fewer where so many would need
    /// more memory than 128 MiB, or have more rows than are of use. Bits do not depend on it.
    ///
    /// `stages` makes the model's stages: once to see what they need and, if several fit, once for them.
    ///
    /// *Order*: how many it comes to is a function of the arguments alone. *Errors*: as [`Model::new`], and those of
    /// `stages`.
    pub fn in_groups(
        device: &D,
        mut stages: impl FnMut() -> Result<Chain<D>, EngineError>,
        input: Shape,
        loss: Loss,
        most: u32,
    ) -> Result<Self, EngineError> {
        let one = Self::new(device, stages()?, input.clone(), loss.clone())?;
        let group = one.group_that_fits(most as usize);
        if group == 1 {
            return Ok(one);
        }
        Self::for_passes_over(group, device, stages()?, input, loss)
    }

    /// A power of two, so that groups are subtrees of every root, or all there are.
    fn group_that_fits(&self, most: usize) -> usize {
        if self.chain.has_ties() {
            return 1;
        }
        let rows = self.loss_rows(self.input.rows());
        let elements = self.plan.saved
            + self.plan.scratch
            + self.outputs_len(self.input.rows()) * if self.reads_outputs() { 2 } else { 1 }
            + self.input.rows() * self.input.per_row();
        let fits = (STACKED_BYTES / (4 * elements).max(1)).min(STACKED_ROWS / rows.rows.max(1)).max(1);
        if fits >= most { most.max(1) } else { 1 << fits.ilog2() }
    }

    /// The same model of texts for whoever goes on with them: a pass takes at most `tokens` of their newest tokens, and the keys and values of those before are kept
    /// in room of the replica ([`ModelReplica::decode`](crate::ModelReplica::decode)). Nothing where a stage or the device needs all tokens each time.
    ///
    /// *Errors*: as [`Model::new`].
    pub fn decoding(
        device: &D,
        stages: Chain<D>,
        tokens: usize,
        kv_cache: KvCache,
        loss: Loss,
    ) -> Result<Option<Self>, EngineError> {
        if !(stages.decodes() && device.decodes()) {
            return Ok(None);
        }
        let mut plan = ArenaPlan::default();
        plan.kv_cache = Some(kv_cache);
        Self::planned(plan, device, stages, Shape::Tokens { rows: tokens, time: 1 }, loss).map(Some)
    }

    fn for_passes_over(
        group: usize,
        device: &D,
        stages: Chain<D>,
        input: Shape,
        loss: Loss,
    ) -> Result<Self, EngineError> {
        let mut plan = ArenaPlan::default();
        plan.group = group;
        Self::planned(plan, device, stages, input, loss)
    }

    fn planned(
        mut plan: ArenaPlan,
        device: &D,
        mut stages: Chain<D>,
        input: Shape,
        loss: Loss,
    ) -> Result<Self, EngineError> {
        let group = plan.group;
        if input.rows() == 0 {
            return Err(EngineError::Rows { rows: 0, planned: 0 });
        }
        if stages.is_empty() {
            let reason = "it has no stage".into();
            return Err(EngineError::Stage { stage: "model".into(), kind: "chain", reason });
        }
        assert!(
            group == 1 || !stages.has_ties(),
            "what two stages share is added up one micro-batch at a time"
        );
        let output = stages
            .plan_stages(device, &input.with_rows(input.rows() * group), &mut plan)
            .map(|output| output.with_rows(input.rows()))
            .map_err(|(stage, kind, reason)| EngineError::Stage { stage, kind, reason })?;
        let width = output.width().map_err(EngineError::Loss)?;
        loss.check(width)?;
        let layout = layout(&stages);
        let pitch = if group == 1 && stages.pads() { device.row_pitch(width) } else { width };
        let frozen = Vec::new();
        Ok(Self {
            chain: stages,
            loss,
            layout,
            frozen,
            input,
            output,
            pitch,
            plan,
            scaling: None,
            mixes: false,
        })
    }

    /// The same with a loss that is scaled: the scale is one more tensor of the layout, behind the running statistics.
    ///
    /// *Panics* if it is scaled already.
    #[must_use]
    pub fn scaling_loss(mut self, scaling: LossScaling) -> Self {
        assert_eq!(self.scaling, None, "a loss is scaled once");
        self.layout.tensors.push(scaling.tensor(self.layout.stats));
        self.layout.stats += LossScale::ELEMENTS;
        self.scaling = Some(scaling);
        self
    }

    /// The same model, trained on [`Targets::Mixed`] where its targets are classes. Evaluation takes targets as before.
    ///
    /// *Errors*: [`EngineError::Option`] with micro-batches of one, and with classes that are ignored.
    pub fn mixing_targets(mut self) -> Result<Self, EngineError> {
        let option = |key, reason: &str| Err(EngineError::Option { key, reason: reason.into() });
        if self.input.rows() < 2 {
            return option(
                "micro_batch",
                "samples are mixed with others of their micro-batch, and it has one",
            );
        }
        let Loss::CrossEntropy { ignore_index, .. } = &self.loss else { return Ok(self) };
        if ignore_index.is_some() {
            return option("loss.ignore_index", "targets that are mixed cannot be ignored");
        }
        self.mixes = true;
        Ok(self)
    }

    /// Words of a class to train on.
    pub(crate) fn class_words(&self) -> usize {
        if self.mixes { MIXED } else { 1 }
    }

    /// Classes to train on, or mixtures of them, from words.
    pub(crate) fn class_targets<'a>(&self, words: &'a [u32]) -> Targets<'a> {
        if self.mixes { Targets::Mixed(words) } else { Targets::Classes(words) }
    }

    /// The sums of what is trained on, as [`Loss::of`]; the gradient takes the outputs' place.
    pub(crate) fn training_loss(
        &self,
        device: &D,
        shape: Rows,
        outputs: D::Mut<'_>,
        targets: Input<'_, D>,
        scale: D::Scalar,
    ) -> D::Sums {
        let outputs = Outputs::Replaced(outputs);
        match self.mixes {
            true => self.loss.of_mixed(device, shape, outputs, targets, scale),
            false => self.loss.of(device, shape, outputs, targets, scale),
        }
    }

    /// The same model, with parameters in groups.
    ///
    /// *Errors*: as [`Grouping::apply`].
    pub fn grouped(mut self, grouping: &Grouping) -> Result<Self, EngineError> {
        grouping.apply(&mut self.layout)?;
        if self.layout.tensors.iter().any(|tensor| tensor.frozen) {
            self.set_apart();
        }
        self.chain.stop_in_front_of(self.layout.first_trained());
        self.frozen = self.layout.frozen_among_others();
        Ok(self)
    }

    /// Puts parameters that stay as they are apart from the others, stage by stage.
    fn set_apart(&mut self) {
        let of = |tensors: &[Tensor], name: &str, section| {
            tensors.iter().find(|tensor| tensor.section == section && tensor.name == name).cloned()
        };
        let before = std::mem::take(&mut self.layout);
        self.chain.freeze("", &|name| {
            of(&before.tensors, name, Section::Parameters).is_some_and(|tensor| tensor.frozen)
        });
        let after = layout(&self.chain);
        let moved = |tensor: &Tensor| {
            let known = of(&before.tensors, &tensor.name, Section::Parameters);
            let known = known.expect("a tensor that was there before");
            Tensor { offset: tensor.offset, section: tensor.section, ..known }
        };
        let stats = before.tensors.iter().filter(|tensor| tensor.section == Section::Stats);
        let parameters = after.tensors.iter().filter(|tensor| tensor.section == Section::Parameters);
        self.layout = Layout {
            tensors: parameters.map(moved).chain(stats.cloned()).collect(),
            frozen: after.frozen.iter().map(moved).collect(),
            stats: before.stats,
            ..after
        };
    }

    /// How the loss is scaled, if it is.
    #[must_use]
    pub fn scaling(&self) -> Option<LossScaling> {
        self.scaling
    }

    /// The running statistics of the stages: what is behind them in their section is the loss scale.
    pub(crate) fn stats_of_stages(&self) -> usize {
        self.layout.stats - self.scaling.map_or(0, |_| LossScale::ELEMENTS)
    }

    /// What an update has to know of it.
    #[must_use]
    pub fn update_facts(&self) -> UpdateFacts {
        UpdateFacts {
            parameters: self.layout.parameters,
            stats: self.stats_of_stages(),
            momentum: BatchNorm::MOMENTUM,
            scaling: self.scaling,
        }
    }

    /// Every tensor, and where it lies.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The windows of its gradients.
    #[must_use]
    pub fn windows(&self) -> Windows {
        Windows::of(&self.layout, &self.chain.ties(), self.chain.itinerary())
    }

    /// The same, where fewer than so many elements make no window: for models that are tiny on purpose.
    #[must_use]
    pub fn windows_of_at_least(&self, least: usize) -> Windows {
        Windows::of_at_least(least, &self.layout, &self.chain.ties(), self.chain.itinerary())
    }

    /// What it is made of.
    #[must_use]
    pub fn describe(&self) -> Description {
        self.chain.describe()
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

    /// How many micro-batches a pass can go over.
    #[must_use]
    pub fn group(&self) -> usize {
        self.plan.group
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
    pub fn check_batch(&self, batch: &BatchView<'_>) -> Result<(), EngineError> {
        self.check_inputs(batch.rows, batch.inputs)?;
        if batch.rows < self.min_rows() {
            return Err(EngineError::SingleValue { needed: self.min_rows(), rows: batch.rows });
        }
        let shape = self.loss_rows(batch.rows);
        match &batch.targets {
            Targets::Mixed(words) if self.mixes => self.loss.check_mixed(shape, words),
            _ if self.mixes => Err(EngineError::Kind { expected: "mixed targets", got: "others" }),
            targets => self.loss.check_targets(shape, targets),
        }
    }

    /// The least number of rows that a micro-batch may have in training.
    #[must_use]
    pub fn min_rows(&self) -> usize {
        self.plan.min_rows.max(1)
    }

    /// Whether the backward pass reads the outputs: then the gradient of the loss cannot take their place.
    pub(crate) fn reads_outputs(&self) -> bool {
        Stage::<D>::needs(&self.chain).output
    }

    /// Values that the outputs of `rows` samples take: each row of the loss, and what lies between it and the next.
    pub(crate) fn outputs_len(&self, rows: usize) -> usize {
        self.loss_rows(rows).rows * self.pitch
    }

    /// Brings outputs as they lie to one row behind the other, in place; what is behind them is anything.
    pub(crate) fn close_ranks(&self, outputs: &mut [f32]) {
        let width = self.output.width().expect("the plan found a width");
        if self.pitch > width {
            for row in 1..outputs.len() / self.pitch {
                outputs.copy_within(row * self.pitch..row * self.pitch + width, row * width);
            }
        }
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
        move |p: &Parameter| {
            let tensor = Tensor::new(&p.name, &p.shape, section, p.offset, p.init);
            Tensor { decays: p.decays, ..tensor }
        }
    };
    let ParamLayout { parameters, stats, frozen } = Stage::<D>::layout(chain);
    let tensors = parameters.iter().map(tensor(Section::Parameters));
    let tensors = tensors.chain(stats.iter().map(tensor(Section::Stats)));
    let slice = |child: &crate::stages::Child<D>| StageSlice {
        name: child.name.clone(),
        kind: child.stage.kind(),
        parameters: child.place.params.clone(),
        stats: child.place.stats.clone(),
    };
    Layout {
        kept: Vec::new(),
        tensors: tensors.enumerate().map(|(number, tensor)| Tensor { number, ..tensor }).collect(),
        frozen: frozen.iter().map(tensor(Section::Frozen)).collect(),
        stages: chain.children().iter().map(slice).collect(),
        parameters: Stage::<D>::layout(chain).parameters_len(),
        stats: Stage::<D>::layout(chain).stats_len(),
    }
}
