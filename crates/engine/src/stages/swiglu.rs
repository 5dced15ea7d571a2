//! Half of the inputs, let through by the other half.

use crate::describe::Description;
use crate::device::{Device, Rows};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// `a sigmoid(a) b` of the last dimension's first half `a` and its second half `b`: behind a linear layer a feed-forward layer of Llama.
///
/// *Source*: Shazeer, "GLU variants improve transformer", 2020.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwiGlu {
    /// Of its output.
    width: usize,
}

impl SwiGlu {
    /// One of any width.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn of(self, elements: usize) -> Rows {
        Rows { rows: elements / (2 * self.width), width: self.width }
    }
}

impl<D: Device> Stage<D> for SwiGlu {
    fn kind(&self) -> &'static str {
        "swiglu"
    }

    fn describe(&self) -> Description {
        Description::SwiGlu { width: self.width }
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        let mut dims = input.dims()?.to_vec();
        let width = input.width()?;
        if width % 2 != 0 {
            return Err(format!("its input of {width} elements has no halves"));
        }
        self.width = width / 2;
        *dims.last_mut().expect("a width was found") = self.width;
        Ok(Shape::Values { rows: input.rows(), dims })
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let x = io.x.values();
        pass.device.swiglu(self.of(D::len(x)), x, io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        if let Some(dx) = io.dx {
            let x = io.x.values();
            pass.device.swiglu_gradient(self.of(D::len(x)), x, D::read(&io.dy), dx);
        }
    }
}
