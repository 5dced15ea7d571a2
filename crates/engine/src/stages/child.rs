//! One stage in its place within a chain: which slices of the chain's tensors and memory are its own, where its input and output
//! lie, and how a pass of the chain comes to it.
//!
//! It does not know the stages around it.

use super::apart::{Apart, sums_len};
use super::lies::Parameters;
use crate::device::Device;
use crate::param_layout::{ParamLayout, Place};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};
use std::ops::Range;

/// Elements to which lengths in the arena are rounded up: one line of 64 bytes.
const LINE: usize = 16;

/// Where the input or output of a stage lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// In the chain's own input.
    Input,
    /// At this offset of the chain's saved memory.
    Inside(usize),
    /// In the chain's own output.
    Output,
}

/// One stage in its place.
pub(crate) struct Child<D: Device> {
    /// Its name; empty to show its parameters under the chain's own name.
    pub(crate) name: String,
    pub(crate) stage: Box<dyn Stage<D>>,
    /// Its slices of the chain's parameters and statistics; of one that is tied there are no parameters.
    pub(crate) place: Place,
    /// Whether it is no chain itself, and all its parameters are among those that stay as they are.
    pub(super) is_frozen: bool,
    /// The parameter that it uses in place of its own.
    pub(super) tied: Option<Tie>,
    pub(super) x: Values,
    pub(super) y: Values,
    /// Its slice of the chain's saved memory.
    pub(super) saved: Range<usize>,
    /// Elements per sample of its input and output.
    pub(super) per_row: [usize; 2],
    /// How its memory is cut if it takes one micro-batch at a time.
    pub(super) apart: Option<Apart>,
    /// Skipped in the forward pass: its output is its input.
    pub(super) skipped: bool,
    /// It takes the greatest of what a ReLU in front of it let through, and does to gradients what that one does.
    pub(super) rectified: bool,
    /// It is that ReLU, and the backward pass goes past it.
    pub(super) passed: bool,
}

/// A parameter of an earlier stage that a stage uses in place of its own.
pub(super) struct Tie {
    /// Its name in the chain.
    pub(super) name: String,
    /// Where it lies among the chain's parameters, or among those that stay as they are.
    pub(super) place: Range<usize>,
    pub(super) is_frozen: bool,
}

impl<D: Device> Child<D> {
    /// A stage in no place yet.
    pub(super) fn new(name: &str, stage: Box<dyn Stage<D>>) -> Self {
        Self {
            name: name.into(),
            stage,
            place: Place::default(),
            is_frozen: false,
            tied: None,
            x: Values::Input,
            y: Values::Output,
            saved: 0..0,
            per_row: [0, 0],
            apart: None,
            skipped: false,
            rectified: false,
            passed: false,
        }
    }

    /// Plans the stage, for one micro-batch or for all of a pass.
    pub(super) fn plan(&mut self, device: &D, input: &Shape, own: &mut ArenaPlan) -> Result<Shape, String> {
        let group = own.group;
        let next = if group == 1 || self.stage.stacks() {
            self.apart = None;
            self.stage.plan(device, input, own)?
        } else {
            own.group = 1;
            let next = self.stage.plan(device, &input.with_rows(input.rows() / group), own)?;
            let layout = self.stage.layout();
            let sums = sums_len(layout.parameters_len().max(layout.stats_len()), group);
            let per_row = [input.per_row(), next.per_row()];
            self.apart = Some(Apart { per_row, saved: round_up(own.saved), sums });
            own.scratch += sums;
            next.with_rows(next.rows() * group)
        };
        self.per_row = [input.per_row(), next.per_row()];
        Ok(next)
    }

    /// What the chain relies on: its stage, and the ReLU in front of it.
    pub(super) fn needs(&self) -> Needs {
        let needs = self.stage.needs();
        match self.rectified {
            true => Needs { output: true, gradient: GradientUse::Spoils, ..needs },
            false => needs,
        }
    }

    /// The parameters that it reads, and whose gradients it writes.
    pub(super) fn used(&self) -> Range<usize> {
        match &self.tied {
            None => self.place.params.clone(),
            Some(tie) if tie.is_frozen => 0..0,
            Some(tie) => tie.place.clone(),
        }
    }

    /// All parameters that are its own, wherever they lie.
    pub(super) fn params<'b, 'a: 'b>(
        &self,
        params: &'b mut dyn Parameters<D>,
        frozen: D::Ref<'a>,
    ) -> D::Ref<'b> {
        match &self.tied {
            Some(tie) if tie.is_frozen => D::part(frozen, tie.place.clone()),
            None if self.is_frozen => D::part(frozen, self.place.frozen.clone()),
            _ => params.part(self.used()),
        }
    }

    /// Those of stages inside of it that stay as they are.
    pub(super) fn frozen<'b, 'a: 'b>(&self, frozen: D::Ref<'a>) -> D::Ref<'b> {
        D::part(frozen, if self.is_frozen { 0..0 } else { self.place.frozen.clone() })
    }

    /// Its tensors.
    pub(super) fn layout(&self) -> ParamLayout {
        let layout = self.stage.layout().clone();
        if self.is_frozen { layout.all_frozen() } else { layout }
    }

    pub(super) fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>, plus: Option<D::Ref<'_>>) {
        match (&self.apart, plus) {
            (None, None) => self.stage.forward(pass, io),
            (None, Some(plus)) => self.stage.forward_plus(pass, io, plus),
            (Some(apart), _) => apart.forward(self.stage.as_ref(), pass, io),
        }
    }

    pub(super) fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>, outer: Option<D::Ref<'_>>) {
        match (&self.apart, outer) {
            (None, None) => self.stage.backward(pass, io),
            (None, Some(outer)) => self.stage.backward_plus(pass, io, outer),
            (Some(apart), _) => apart.backward(self.stage.as_ref(), pass, io),
        }
    }
}

pub(super) fn round_up(len: usize) -> usize {
    len.next_multiple_of(LINE)
}

/// Puts a stage's tensors behind those of the chain, under its name.
///
/// *Errors*: a parameter to tie to that is not there, or is another one than its own would be.
pub(super) fn append<D: Device>(into: &mut ParamLayout, child: &mut Child<D>) -> Result<(), String> {
    let mut from = child.layout();
    if let Some(tie) = &mut child.tied {
        let own = std::mem::take(&mut from.parameters);
        let trained = into.parameters.iter().find(|p| p.name == tie.name);
        let to = trained.or_else(|| into.frozen.iter().find(|p| p.name == tie.name));
        let to = to.ok_or_else(|| format!("there is no {} before it to be tied to", tie.name))?;
        tie.is_frozen = trained.is_none();
        match &own[..] {
            [own] if own.shape == to.shape => tie.place = to.offset..to.offset + to.elements(),
            _ => {
                let own: Vec<_> = own.iter().map(|own| &own.shape).collect();
                return Err(format!("its parameters {own:?} cannot be {} {:?}", tie.name, to.shape));
            }
        }
    }
    child.place = into.append(&child.name, from);
    Ok(())
}
