//! What descriptors describe together, and what of it is refused. Always three axes: an image is one deep.

use crate::objects::{How, Shape};
use crate::status::{BAD_PARAM, NOT_SUPPORTED, Status, demand};
use dtrain_fake_common::numbers::Numbers;

/// Sizes or a place, along three axes.
type Three = [usize; 3];

/// Which of the three is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Inputs,
    Weights,
}

#[derive(Clone, Copy)]
pub(crate) struct Problem {
    pub pass: Pass,
    pub numbers: Numbers,
    pub images: usize,
    pub channels: usize,
    pub outputs: usize,
    pub size: Three,
    pub kernel: Three,
    pub out: Three,
    padding: Three,
    stride: Three,
    dilation: Three,
    pub is_flat: bool,
}

fn volume(sizes: Three) -> usize {
    sizes.iter().product()
}

/// The places of a volume, in the order in which they lie.
pub(crate) fn places(sizes: Three) -> impl Iterator<Item = Three> {
    let [_, high, wide] = sizes;
    (0..volume(sizes)).map(move |at| [at / wide / high, at / wide % high, at % wide])
}

/// Three of two or three, the first of two being `one`.
fn three(of: &[usize], one: usize) -> Three {
    match *of {
        [a, b] => [one, a, b],
        [a, b, c] => [a, b, c],
        _ => unreachable!("four or five axes were demanded"),
    }
}

/// The sizes that an output has.
///
/// *Errors*: axes that do not fit together.
pub(crate) fn output(x: &Shape, w: &Shape, how: &How) -> Result<Vec<usize>, Status> {
    let axes = x.sizes.len();
    let alike = w.sizes.len() == axes && how.stride.len() + 2 == axes && w.sizes[1] == x.sizes[1];
    demand(alike, BAD_PARAM)?;
    let mut sizes = vec![x.sizes[0], w.sizes[0]];
    for axis in 0..how.stride.len() {
        let (padded, reach) =
            (x.sizes[axis + 2] + 2 * how.padding[axis], how.dilation[axis] * (w.sizes[axis + 2] - 1) + 1);
        demand(padded >= reach, BAD_PARAM)?;
        sizes.push((padded - reach) / how.stride[axis] + 1);
    }
    Ok(sizes)
}

impl Problem {
    /// *Errors*: what does not fit together, and what the library does not support.
    pub fn of(pass: Pass, x: &Shape, w: &Shape, how: &How, y: &Shape) -> Result<Self, Status> {
        demand(output(x, w, how)? == y.sizes, BAD_PARAM)?;
        let one = x.numbers == w.numbers && x.numbers == y.numbers;
        let plain = x.is_plain && w.is_plain && y.is_plain && !how.is_turned;
        let axes = (4..=5).contains(&x.sizes.len());
        demand(one && plain && axes && how.sums == Some(Numbers::F32), NOT_SUPPORTED)?;
        Ok(Self {
            pass,
            numbers: x.numbers.ok_or(NOT_SUPPORTED)?,
            images: x.sizes[0],
            channels: x.sizes[1],
            outputs: w.sizes[0],
            size: three(&x.sizes[2..], 1),
            kernel: three(&w.sizes[2..], 1),
            out: three(&y.sizes[2..], 1),
            padding: three(&how.padding, 0),
            stride: three(&how.stride, 1),
            dilation: three(&how.dilation, 1),
            is_flat: x.sizes.len() == 4,
        })
    }

    /// Numbers of x, w and y.
    pub fn lengths(&self) -> [usize; 3] {
        let Self { images, channels, outputs, .. } = *self;
        let kernels = outputs * channels * volume(self.kernel);
        [images * channels * volume(self.size), kernels, images * outputs * volume(self.out)]
    }

    /// Numbers of the result.
    pub fn len(&self) -> usize {
        let [x, w, y] = self.lengths();
        match self.pass {
            Pass::Forward => y,
            Pass::Inputs => x,
            Pass::Weights => w,
        }
    }

    /// Where in the input a tap of an output lies, if that is no padding.
    pub fn input_of(&self, out: Three, tap: Three) -> Option<usize> {
        let mut at = 0;
        for d in 0..3 {
            let place = (out[d] * self.stride[d] + tap[d] * self.dilation[d]).checked_sub(self.padding[d])?;
            at = at * self.size[d] + Some(place).filter(|place| *place < self.size[d])?;
        }
        Some(at)
    }

    /// Of which output a place of the input is that tap, if of any.
    pub fn output_of(&self, input: Three, tap: Three) -> Option<usize> {
        let mut at = 0;
        for d in 0..3 {
            let steps = (input[d] + self.padding[d]).checked_sub(tap[d] * self.dilation[d])?;
            let place = (steps % self.stride[d] == 0).then(|| steps / self.stride[d])?;
            at = at * self.out[d] + Some(place).filter(|place| *place < self.out[d])?;
        }
        Some(at)
    }
}
