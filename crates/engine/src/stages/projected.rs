//! `y = f(x) + g(x)`, with two chains of stages: a residual block whose other branch brings `x` into the shape of `f(x)`.
//!
//! Neither chain knows of the other. Where the first overwrites the gradient it is given, the second gets a copy; where one needs its
//! own output again, this stage keeps it. What both may use is scratch, and the branch that is added waits there.

use super::Chain;
use crate::describe::Description;
use crate::device::Device;
use crate::param_layout::{ParamLayout, Place, prefix};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};

/// A block of two branches. See the file's comment.
pub struct Projected<D: Device> {
    branch: Chain<D>,
    shortcut: Chain<D>,
    name: String,
    layout: ParamLayout,
    /// Elements per sample of input and output.
    per_row: [usize; 2],
    /// What each chain saves, and its own output behind that, where it needs it again.
    saved: [usize; 2],
    kept: [usize; 2],
    /// What the hungrier of both uses of scratch. Behind that lies what waits to be added, and behind it a copy of the gradient.
    scratch: usize,
    beside: usize,
}

impl<D: Device> Projected<D> {
    /// `y = branch(x) + shortcut(x)`; tensors of the shortcut have `name` in front of theirs.
    #[must_use]
    pub fn new(branch: Chain<D>, name: &str, shortcut: Chain<D>) -> Self {
        let layout = ParamLayout::NOTHING;
        let (per_row, saved, kept) = ([0; 2], [0; 2], [0; 2]);
        Self { branch, shortcut, name: name.into(), layout, per_row, saved, kept, scratch: 0, beside: 0 }
    }

    fn chains(&self) -> [&Chain<D>; 2] {
        [&self.branch, &self.shortcut]
    }

    /// Where the tensors of one of the chains lie.
    fn part(&self, place: usize) -> Place {
        let (first, all) = (Stage::<D>::layout(&self.branch), &self.layout);
        let cut = |at: usize, to: usize| if place == 0 { 0..at } else { at..to };
        Place {
            params: cut(first.parameters_len(), all.parameters_len()),
            stats: cut(first.stats_len(), all.stats_len()),
            frozen: cut(first.frozen_len(), all.frozen_len()),
        }
    }

    /// Brings the tensors of both chains together.
    fn lay_out(&mut self) {
        self.layout = Stage::<D>::layout(&self.branch).clone();
        self.layout.append(&self.name, Stage::<D>::layout(&self.shortcut).clone());
    }
}

impl<D: Device> Stage<D> for Projected<D> {
    fn kind(&self) -> &'static str {
        "projected"
    }

    fn describe(&self) -> Description {
        Description::Projected {
            branch: Box::new(self.branch.describe()),
            name: self.name.clone(),
            shortcut: Box::new(self.shortcut.describe()),
        }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        self.chains().iter().all(|chain| chain.stacks())
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let mut scratch = 0;
        let mut outputs = Vec::new();
        for (place, chain) in [&mut self.branch, &mut self.shortcut].into_iter().enumerate() {
            let mut own = space.inner();
            let output = chain.plan(device, input, &mut own)?;
            space.absorb(&own);
            let whole = device.activation_len(output.rows() * output.per_row());
            self.saved[place] = own.saved;
            self.kept[place] = if chain.needs().output { whole } else { 0 };
            space.saved += own.saved + self.kept[place];
            scratch = scratch.max(own.scratch);
            outputs.push(output);
        }
        if outputs[0] != outputs[1] {
            let dims = |shape: &Shape| shape.dims().map_or(Vec::new(), <[usize]>::to_vec);
            return Err(format!(
                "its branches make {:?} and {:?}, but both are added",
                dims(&outputs[0]),
                dims(&outputs[1])
            ));
        }
        let output = outputs.swap_remove(0);
        self.per_row = [input.per_row(), output.per_row()];
        let [x, y] = self.per_row.map(|n| device.activation_len(input.rows() * n));
        (self.scratch, self.beside) = (scratch, x.max(y));
        space.scratch += scratch + self.beside + y;
        self.lay_out();
        Ok(output)
    }

    fn freeze(&mut self, before: &str, named: &dyn Fn(&str) -> bool) {
        self.branch.freeze(before, named);
        self.shortcut.freeze(&format!("{before}{}", prefix(&self.name)), named);
        self.lay_out();
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, frozen, stats, mut stat_sums, x, mut y, saved, scratch } = io;
        let (device, len) = (pass.device, self.per_row[1] * pass.rows);
        let (mut scratch, mut beside) = D::split_mut(scratch, self.scratch);
        let (first, second) = D::split_mut(saved, self.saved[0] + self.kept[0]);
        for (place, (chain, saved)) in self.chains().into_iter().zip([first, second]).enumerate() {
            let (mut saved, mut own) = D::split_mut(saved, self.saved[place]);
            let of = self.part(place);
            let mut target = match (self.kept[place] > 0, place) {
                (true, _) => Some(device.activations_mut(&mut own, len)),
                (false, 0) => None,
                (false, _) => Some(device.activations_mut(&mut beside, len)),
            };
            let io = Forward {
                params: D::part(params, of.params),
                frozen: D::part(frozen, of.frozen),
                stats: D::part(stats, of.stats.clone()),
                stat_sums: stat_sums.as_mut().map(|sums| D::part_mut(sums, of.stats)),
                x: x.shorter(),
                y: match &mut target {
                    Some(target) => D::part_mut(target, 0..len),
                    None => D::part_mut(&mut y, 0..len),
                },
                saved: D::part_mut(&mut saved, 0..self.saved[place]),
                scratch: D::part_mut(&mut scratch, 0..self.scratch),
            };
            chain.forward(pass, io);
            match (&target, place) {
                (None, _) => {}
                (Some(target), 0) => device.copy(D::read(target), D::part_mut(&mut y, 0..len)),
                (Some(target), _) => device.add_to(D::read(target), D::part_mut(&mut y, 0..len)),
            }
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, frozen, x, y: _, saved, mut dy, mut dx, mut grads, scratch } = io;
        let device = pass.device;
        let [x_len, y_len] = self.per_row.map(|n| n * pass.rows);
        let (mut scratch, beside) = D::split_mut(scratch, self.scratch);
        let (mut beside, mut copy) = D::split_mut(beside, self.beside);
        let spoils = self.branch.needs().gradient != GradientUse::Reads;
        let mut copy = spoils.then(|| {
            let mut copy = device.activations_mut(&mut copy, y_len);
            device.copy(D::read(&dy), D::part_mut(&mut copy, 0..y_len));
            copy
        });
        let (first, second) = D::split_mut(saved, self.saved[0] + self.kept[0]);
        for (place, (chain, saved)) in self.chains().into_iter().zip([first, second]).enumerate() {
            let (mut saved, own) = D::split_mut(saved, self.saved[place]);
            let of = self.part(place);
            let mut other = (place > 0 && dx.is_some()).then(|| device.activations_mut(&mut beside, x_len));
            let io = Backward {
                params: D::part(params, of.params.clone()),
                frozen: D::part(frozen, of.frozen),
                x: x.shorter(),
                y: match self.kept[place] > 0 {
                    true => device.activations(D::read(&own), y_len),
                    false => D::part(D::read(&own), 0..0),
                },
                saved: D::part_mut(&mut saved, 0..self.saved[place]),
                dy: match (place, &mut copy) {
                    (1, Some(copy)) => D::part_mut(copy, 0..y_len),
                    _ => D::part_mut(&mut dy, 0..y_len),
                },
                dx: match &mut other {
                    Some(other) => Some(D::part_mut(other, 0..x_len)),
                    None => dx.as_mut().map(|dx| D::part_mut(dx, 0..x_len)),
                },
                grads: D::part_mut(&mut grads, of.params),
                scratch: D::part_mut(&mut scratch, 0..self.scratch),
            };
            chain.backward(pass, io);
            if let (Some(other), Some(dx)) = (&other, &mut dx) {
                device.add_to(D::read(other), D::part_mut(dx, 0..x_len));
            }
        }
    }
}
