//! Pooling over windows of an image: `[N, C, H, W]` to `[N, C, OH, OW]`, no padding. Max-pooling is in a file of its own.

use crate::describe::Description;
use crate::device::{Device, Pool2d};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// Average pooling.
#[derive(Clone, Debug)]
pub struct AvgPool {
    shape: Pool2d,
    channels: usize,
    extent: Extent,
}

/// How large a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// As large as was said.
    Given,
    /// As the image.
    Whole,
}

fn square(window: usize) -> Pool2d {
    Pool2d { planes: 0, size: [0, 0], window: [window, window], stride: [window, window], padding: [0; 2] }
}

/// Learns the input's shape; gives the channels and the output's shape.
fn fit(shape: &mut Pool2d, input: &Shape) -> Result<(usize, Shape), String> {
    let [channels, height, width] = input.image()?;
    if shape.window.contains(&0) || shape.stride.contains(&0) {
        return Err("window and stride must be at least 1".into());
    }
    if height < shape.window[0] || width < shape.window[1] {
        return Err(format!("a window of {:?} is larger than its input {height} x {width}", shape.window));
    }
    (shape.planes, shape.size) = (input.rows() * channels, [height, width]);
    let [h, w] = shape.output_size();
    Ok((channels, Shape::values(input.rows(), &[channels, h, w])))
}

impl AvgPool {
    /// Square windows side by side.
    #[must_use]
    pub fn new(window: usize) -> Self {
        Self { shape: square(window), channels: 0, extent: Extent::Given }
    }

    /// One window over the whole image, as PyTorch's `AdaptiveAvgPool2d(1)`.
    #[must_use]
    pub fn whole() -> Self {
        Self { extent: Extent::Whole, ..Self::new(1) }
    }

    /// Steps this far between windows.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.shape.stride = [stride, stride];
        self
    }

    fn of(&self, rows: usize) -> Pool2d {
        Pool2d { planes: rows * self.channels, ..self.shape }
    }
}

impl<D: Device> Stage<D> for AvgPool {
    fn kind(&self) -> &'static str {
        "avg_pool"
    }

    fn describe(&self) -> Description {
        Description::AvgPool { window: self.shape.window, stride: self.shape.stride }
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        if self.extent == Extent::Whole {
            let [_, height, width] = input.image()?;
            (self.shape.window, self.shape.stride) = ([height, width], [height, width]);
        }
        let (channels, output) = fit(&mut self.shape, input)?;
        self.channels = channels;
        Ok(output)
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        pass.device.avg_pool(&self.of(pass.rows), io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        if let Some(dx) = io.dx {
            pass.device.avg_pool_gradient(&self.of(pass.rows), D::read(&io.dy), dx);
        }
    }
}
