//! `[channels, places...]` to `[places, channels]`: an image or a sequence as vectors one behind the other.

use crate::describe::Description;
use crate::device::{Device, Matrices};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// Turns channels of places into places of channels. See the file's comment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    channels: usize,
    places: usize,
}

impl Turn {
    /// A turn.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<D: Device> Stage<D> for Turn {
    fn kind(&self) -> &'static str {
        "turn"
    }

    fn describe(&self) -> Description {
        Description::Turn
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let [channels, places @ ..] = dims else { return Err("its input has no dimension".into()) };
        if places.is_empty() {
            return Err(format!("it takes [channels, places...], its input is {dims:?}"));
        }
        (self.channels, self.places) = (*channels, places.iter().product());
        Ok(Shape::values(input.rows(), &[self.places, self.channels]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let shape = Matrices { matrices: pass.rows, rows: self.channels, columns: self.places };
        pass.device.transpose(shape, io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Some(dx) = io.dx else { return };
        let shape = Matrices { matrices: pass.rows, rows: self.places, columns: self.channels };
        pass.device.transpose(shape, D::read(&io.dy), dx);
    }
}
