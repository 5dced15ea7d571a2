//! What stands around the blocks of a transformer over values: a learned vector in front and positions, and the place that is
//! taken at the end.
//!
//! This file does not know attention.

use crate::describe::{Description, Taken};
use crate::device::{Device, Leaf, Matrices, Rows};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};
use dtrain_types::Wire;

/// `[time, width]` to `[time + 1, width]`: `class_token` in front, then `pos_embedding` added to each place.
#[derive(Clone, Debug, Default)]
pub struct ClassToken {
    time: usize,
    width: usize,
    layout: ParamLayout,
}

impl ClassToken {
    /// A class token and positions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn per_row(&self) -> [usize; 2] {
        [self.time * self.width, (self.time + 1) * self.width]
    }
}

impl<D: Device> Stage<D> for ClassToken {
    fn kind(&self) -> &'static str {
        "class_token"
    }

    fn describe(&self) -> Description {
        Description::ClassToken { time: self.time + 1, width: self.width }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let [time, width] = *dims else {
            return Err(format!("it takes [time, width], its input is {dims:?}"));
        };
        (self.time, self.width) = (time, width);
        // As torchvision starts them, whose names and shapes these are.
        self.layout = ParamLayout::NOTHING.with("class_token", &[1, 1, width], Init::Constant(0.0)).with(
            "encoder.pos_embedding",
            &[1, time + 1, width],
            Init::Normal(0.02),
        );
        self.layout.parameters.iter_mut().for_each(|p| p.decays = false);
        Ok(Shape::values(input.rows(), &[time + 1, width]))
    }

    fn forward(&self, pass: &Pass<'_, D>, mut io: Forward<'_, D>) {
        let ([from, to], width) = (self.per_row(), self.width);
        let shape = Matrices { matrices: pass.rows, rows: self.time, columns: width };
        let learned = [D::part(io.params, 0..width), D::part(io.params, width..width + to)];
        let x = D::part(io.x.values(), 0..pass.rows * from);
        pass.device.class_token(shape, x, learned, D::part_mut(&mut io.y, 0..pass.rows * to));
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let ([from, to], width, dy) = (self.per_row(), self.width, D::read(&io.dy));
        let (mut token, mut places) = D::split_mut(io.grads, width);
        let leaf = Leaf { terms: pass.rows, wire: Wire::F32 };
        let shape = Rows { rows: pass.rows, width: to };
        pass.device.column_sums_of_leaves(
            shape,
            leaf,
            D::part(dy, 0..pass.rows * to),
            D::part_mut(&mut places, 0..to),
        );
        pass.device.copy(D::part(D::read(&places), 0..width), D::part_mut(&mut token, 0..width));
        let Some(dx) = io.dx else { return };
        let others = D::part(dy, width..pass.rows * to);
        pass.device.copy_rows(Rows { rows: pass.rows, width: from }, [to, from], others, dx);
    }
}

/// `[time, width]` to `[width]`: the first place, or the last.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    taken: Taken,
    time: usize,
    width: usize,
}

impl Take {
    /// The first place: what a class token came to.
    #[must_use]
    pub fn first() -> Self {
        Self { taken: Taken::First, time: 0, width: 0 }
    }

    /// The last place: what a recurrent layer says in the end.
    #[must_use]
    pub fn last() -> Self {
        Self { taken: Taken::Last, time: 0, width: 0 }
    }

    /// Where the place begins in a sample.
    fn at(&self) -> usize {
        if self.taken == Taken::First { 0 } else { (self.time - 1) * self.width }
    }
}

impl<D: Device> Stage<D> for Take {
    fn kind(&self) -> &'static str {
        "take"
    }

    fn describe(&self) -> Description {
        Description::Take(self.taken)
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let [time, width] = *dims else {
            return Err(format!("it takes [time, width], its input is {dims:?}"));
        };
        (self.time, self.width) = (time, width);
        Ok(Shape::values(input.rows(), &[width]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let (per_row, width) = (self.time * self.width, self.width);
        let x = D::part(io.x.values(), self.at()..pass.rows * per_row);
        pass.device.copy_rows(Rows { rows: pass.rows, width }, [per_row, width], x, io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Some(mut dx) = io.dx else { return };
        let (per_row, width, len) = (self.time * self.width, self.width, D::len_mut(&dx));
        pass.device.fill(D::part_mut(&mut dx, 0..len), 0.0);
        let dx = D::part_mut(&mut dx, self.at()..len);
        pass.device.copy_rows(Rows { rows: pass.rows, width }, [width, per_row], D::read(&io.dy), dx);
    }
}
