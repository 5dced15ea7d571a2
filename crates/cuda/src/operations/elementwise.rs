//! Operations that do the same to every element.
//!
//! This file does not know shapes, but for a bias.

use super::{Floats, FloatsMut, Half, Halves, HalvesMut, same, size};
use crate::kernels::{self, Kernel};
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::{Activation, Gelu};
use dtrain_types::Key;

/// `y = value`.
pub fn fill(queue: &impl Queue, mut y: FloatsMut<'_>, value: f32) {
    if y.len() > 0 {
        let len = y.len();
        queue.launch(&KernelLaunch::over(
            &kernels::FILL,
            len,
            [(&mut y).into(), value.into(), (len as u64).into()],
        ));
    }
}

/// A kernel that reads one list and writes another.
fn one_to_one(queue: &impl Queue, kernel: &'static Kernel, x: Floats<'_>, mut y: FloatsMut<'_>) {
    same("y", y.len(), x.len());
    if x.len() > 0 {
        let arguments = [x.into(), (&mut y).into(), (x.len() as u64).into()];
        queue.launch(&KernelLaunch::over(kernel, x.len(), arguments));
    }
}

/// `y = x`.
pub fn copy(queue: &impl Queue, x: Floats<'_>, y: FloatsMut<'_>) {
    one_to_one(queue, &kernels::COPY, x, y);
}

/// `y = max(x, 0)`.
pub fn relu(queue: &impl Queue, x: Floats<'_>, y: FloatsMut<'_>) {
    one_to_one(queue, &kernels::RELU, x, y);
}

/// `d = y > 0 ? d : 0`, in place.
pub fn relu_gradient(queue: &impl Queue, y: Floats<'_>, d: FloatsMut<'_>) {
    one_to_one(queue, &kernels::RELU_GRADIENT, y, d);
}

/// `y = gelu(x)` of this form.
pub fn gelu(queue: &impl Queue, form: Gelu, x: Floats<'_>, y: FloatsMut<'_>) {
    let kernel = match form {
        Gelu::Exact => &kernels::GELU,
        Gelu::Tanh => &kernels::GELU_TANH,
    };
    one_to_one(queue, kernel, x, y);
}

/// `d = d * gelu'(x)`, in place.
pub fn gelu_gradient(queue: &impl Queue, form: Gelu, x: Floats<'_>, d: FloatsMut<'_>) {
    let kernel = match form {
        Gelu::Exact => &kernels::GELU_GRADIENT,
        Gelu::Tanh => &kernels::GELU_TANH_GRADIENT,
    };
    one_to_one(queue, kernel, x, d);
}

/// `y += x`.
pub fn add_to(queue: &impl Queue, x: Floats<'_>, y: FloatsMut<'_>) {
    one_to_one(queue, &kernels::ADD_TO, x, y);
}

/// `y = a + b`.
pub fn add(queue: &impl Queue, a: Floats<'_>, b: Floats<'_>, mut y: FloatsMut<'_>) {
    same("a", a.len(), y.len());
    same("b", b.len(), y.len());
    if a.len() > 0 {
        let arguments = [a.into(), b.into(), (&mut y).into(), (a.len() as u64).into()];
        queue.launch(&KernelLaunch::over(&kernels::ADD, a.len(), arguments));
    }
}

/// What `bias_activation.cu` calls it.
pub(super) fn code(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Relu => 1,
    }
}

/// `y = act(y + bias)`, in place: channels of `area` elements each, again and again.
///
/// *Panics* unless `y` is made of whole channels.
pub fn bias_activation(
    queue: &impl Queue,
    bias: Option<Floats<'_>>,
    area: usize,
    activation: Activation,
    mut y: FloatsMut<'_>,
) {
    let channels = bias.map_or(1, |bias| bias.len());
    assert!(
        channels > 0 && area > 0 && y.len().is_multiple_of(channels * area),
        "{} elements in {channels} channels of {area}",
        y.len()
    );
    let len = y.len();
    if len > 0 {
        let shape = [(len as u64).into(), size(channels).into(), size(area).into(), code(activation).into()];
        let [all, channels, area, activation] = shape;
        let arguments = [bias.into(), (&mut y).into(), all, channels, area, activation];
        queue.launch(&KernelLaunch::over(&kernels::BIAS_ACTIVATION, len, arguments));
    }
}

/// `y = x * keep / (1 - rate)`, element `i` dropped when number `i` of `key` is below `rate`.
///
/// *Panics* on a rate that is not in `[0, 1)`.
pub fn dropout(queue: &impl Queue, key: Key, rate: f32, x: Floats<'_>, mut y: FloatsMut<'_>) {
    same("y", y.len(), x.len());
    assert!((0.0..1.0).contains(&rate), "a dropout rate of {rate}");
    let ([key0, key1], [place0, place1, place2]) = key.words();
    // A word w gives the number (w >> 8) / 2^24: below the rate when (w >> 8) is below rate * 2^24, rounded up.
    let bar = (f64::from(rate) * f64::from(1u32 << 24)).ceil() as u32;
    let keep = 1.0 / (1.0 - rate);
    if x.len() > 0 {
        let arguments = [
            x.into(),
            (&mut y).into(),
            (x.len() as u64).into(),
            key0.into(),
            key1.into(),
            place0.into(),
            place1.into(),
            place2.into(),
            bar.into(),
            keep.into(),
        ];
        queue.launch(&KernelLaunch::over(&kernels::DROPOUT, x.len().div_ceil(4), arguments));
    }
}

/// The kernels to halves and from them.
fn rounding(half: Half) -> [&'static Kernel; 2] {
    match half {
        Half::Bf16 => [&kernels::TO_BF16, &kernels::FROM_BF16],
        Half::F16 => [&kernels::TO_F16, &kernels::FROM_F16],
    }
}

/// `y = x`, rounded.
pub fn to_half(queue: &impl Queue, half: Half, x: Floats<'_>, mut y: HalvesMut<'_>) {
    same("y", y.len(), x.len());
    if x.len() > 0 {
        let arguments = [x.into(), (&mut y).into(), (x.len() as u64).into()];
        let [kernel, _] = rounding(half);
        queue.launch(&KernelLaunch::over(kernel, x.len(), arguments));
    }
}

/// `y = x`, exactly.
pub fn from_half(queue: &impl Queue, half: Half, x: Halves<'_>, mut y: FloatsMut<'_>) {
    same("y", y.len(), x.len());
    if x.len() > 0 {
        let arguments = [x.into(), (&mut y).into(), (x.len() as u64).into()];
        let [_, kernel] = rounding(half);
        queue.launch(&KernelLaunch::over(kernel, x.len(), arguments));
    }
}
