//! Max-pooling over one, two or three dimensions: `[N, C, sides...]` to `[N, C, windows...]`.
//!
//! A device pools planes. Windows of three dimensions are pooled twice: the rows and columns of each slice, then the
//! slices. Since the greatest of the greatest is the greatest, and the first of equals stays the first, that is exact.
//!
//! This file does not know averages.

use super::by;
use crate::describe::Description;
use crate::device::{Device, Pool2d};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// Max-pooling over `N` dimensions; of equal values the first is the greatest.
#[derive(Clone, Debug)]
pub struct MaxPoolOver<const N: usize> {
    window: usize,
    stride: usize,
    padding: usize,
    /// Of one sample: its planes, and the windows over each.
    planes: Pool2d,
    /// Of one sample with slices: its channels, and windows across the slices; a plane has one row for each slice.
    slices: Option<Pool2d>,
}

/// Max-pooling of sequences `[channels, length]`.
pub type MaxPool1d = MaxPoolOver<1>;
/// Max-pooling of images `[channels, height, width]`.
pub type MaxPool = MaxPoolOver<2>;
/// Max-pooling of volumes `[channels, depth, height, width]`.
pub type MaxPool3d = MaxPoolOver<3>;

/// Elements of the results of a pooling.
fn results(shape: &Pool2d) -> usize {
    shape.planes * shape.output_size().iter().product::<usize>()
}

impl<const N: usize> MaxPoolOver<N> {
    /// Windows of equal sides, side by side.
    #[must_use]
    pub fn new(window: usize) -> Self {
        const { assert!(0 < N && N < 4, "images have one to three dimensions") };
        let planes =
            Pool2d { planes: 0, size: [0; 2], window: [window; 2], stride: [window; 2], padding: [0; 2] };
        Self { window, stride: window, padding: 0, planes, slices: None }
    }

    /// Lets windows reach this far out of the image, where there is nothing to be the greatest; at most half of one.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> Self {
        self.padding = padding;
        self
    }

    /// Steps this far between windows.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.stride = stride;
        self
    }

    /// The poolings of some samples.
    fn of(&self, rows: usize) -> (Pool2d, Option<Pool2d>) {
        let of = |shape: &Pool2d| Pool2d { planes: rows * shape.planes, ..*shape };
        (of(&self.planes), self.slices.as_ref().map(of))
    }
}

impl<D: Device, const N: usize> Stage<D> for MaxPoolOver<N> {
    fn kind(&self) -> &'static str {
        ["max_pool1d", "max_pool", "max_pool3d"][N - 1]
    }

    fn describe(&self) -> Description {
        let Self { window, stride, padding, .. } = *self;
        Description::MaxPool { dimensions: N, window, stride, padding }
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn takes_greatest(&self) -> bool {
        true
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let (channels, [depth, height, width]) = input.image_of(N)?;
        let (window, stride, padding) = (self.window, self.stride, self.padding);
        if 2 * padding > window {
            return Err(format!("a padding of {padding} is more than half of a window of {window}"));
        }
        if window == 0 || stride == 0 {
            return Err("window and stride must be at least 1".into());
        }
        let sides = &[depth, height, width][3 - N..];
        if sides.iter().any(|side| *side + 2 * padding < window) {
            return Err(format!("a window of {:?} is larger than its input {}", vec![window; N], by(sides)));
        }
        let high = |along: usize, alone: usize| if N == 1 { alone } else { along };
        self.planes = Pool2d {
            planes: channels * depth,
            size: [height, width],
            window: [high(window, 1), window],
            stride: [high(stride, 1), stride],
            padding: [high(padding, 0), padding],
        };
        let [h, w] = self.planes.output_size();
        self.slices = (N == 3).then_some(Pool2d {
            planes: channels,
            size: [depth, h * w],
            window: [window, 1],
            stride: [stride, 1],
            padding: [padding, 0],
        });
        let (planes, slices) = self.of(input.rows());
        let d = slices.map_or(1, |slices| slices.output_size()[0]);
        space.saved += results(&planes) + slices.as_ref().map_or(0, results);
        space.scratch += slices.map_or(0, |_| device.activation_len(results(&planes)));
        let output = [vec![channels], [d, h, w][3 - N..].to_vec()].concat();
        Ok(Shape::values(input.rows(), &output))
    }

    fn forward(&self, pass: &Pass<'_, D>, mut io: Forward<'_, D>) {
        let (planes, slices) = self.of(pass.rows);
        let (x, device, between) = (io.x.values(), pass.device, results(&planes));
        let Some(slices) = slices else {
            return device.max_pool(&planes, x, io.y, D::part_mut(&mut io.saved, 0..between));
        };
        let (mut places, mut across) = D::split_mut(io.saved, between);
        let mut pooled = device.activations_mut(&mut io.scratch, between);
        let len = results(&slices);
        device.max_pool(
            &planes,
            x,
            D::part_mut(&mut pooled, 0..between),
            D::part_mut(&mut places, 0..between),
        );
        device.max_pool(&slices, D::read(&pooled), io.y, D::part_mut(&mut across, 0..len));
    }

    fn backward(&self, pass: &Pass<'_, D>, mut io: Backward<'_, D>) {
        let (planes, slices) = self.of(pass.rows);
        let (device, between) = (pass.device, results(&planes));
        let Some(dx) = io.dx else { return };
        let (saved, dy) = (D::read(&io.saved), D::read(&io.dy));
        let places = D::part(saved, 0..between);
        let Some(slices) = slices else {
            return device.max_pool_gradient(&planes, places, dy, dx);
        };
        let across = D::part(saved, between..between + results(&slices));
        let mut pooled = device.activations_mut(&mut io.scratch, between);
        device.max_pool_gradient(&slices, across, dy, D::part_mut(&mut pooled, 0..between));
        device.max_pool_gradient(&planes, places, D::read(&pooled), dx);
    }
}
