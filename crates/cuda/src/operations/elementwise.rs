//! Operations that do the same to every element.
//!
//! This file does not know shapes, but for a bias.

use super::{Floats, FloatsMut, Half, Halves, HalvesMut, Values, ValuesMut, alike, same, size};
use crate::kernels::{self, Kernel};
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::{Activation, Gelu};
use dtrain_types::Key;

/// The kernels of an operation by how the numbers lie: f32, bf16, f16.
type Kinds = [&'static Kernel; 3];

/// `y = value`.
pub fn fill<'y>(queue: &impl Queue, y: impl Into<ValuesMut<'y>>, value: f32) {
    let mut y = y.into();
    let len = y.len();
    if len > 0 {
        let kernel = y.storage().of([&kernels::FILL, &kernels::FILL_BF16, &kernels::FILL_F16]);
        let arguments = [(&mut y).into(), value.into(), (len as u64).into()];
        queue.launch(&KernelLaunch::over(kernel, len, arguments));
    }
}

/// A launch of a kernel that reads one list and writes another, or changes it.
fn one_to_one(kinds: Kinds, x: Values<'_>, y: &mut ValuesMut<'_>) -> Option<KernelLaunch> {
    same("y", y.len(), x.len());
    let storage = alike(x.storage(), &[y.storage()]);
    let arguments = [x.into(), y.into(), (x.len() as u64).into()];
    (x.len() > 0).then(|| KernelLaunch::over_wide(storage.of(kinds), x.len(), storage.bytes(), arguments))
}

/// A kernel that reads one list and writes another.
fn written<'x, 'y>(queue: &impl Queue, kinds: Kinds, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    if let Some(launch) = one_to_one(kinds, x.into(), &mut y.into()) {
        queue.launch(&launch);
    }
}

/// A kernel that reads one list and changes another.
fn changed<'x, 'y>(queue: &impl Queue, kinds: Kinds, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    let (x, mut y) = (x.into(), y.into());
    if let Some(launch) = one_to_one(kinds, x, &mut y) {
        queue.launch(&launch.and_moves(x.len() * x.storage().bytes()));
    }
}

/// `y = x`.
pub fn copy<'x, 'y>(queue: &impl Queue, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    written(queue, [&kernels::COPY, &kernels::COPY_BF16, &kernels::COPY_F16], x, y);
}

/// `y = max(x, 0)`.
pub fn relu<'x, 'y>(queue: &impl Queue, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    written(queue, [&kernels::RELU, &kernels::RELU_BF16, &kernels::RELU_F16], x, y);
}

/// `d = y > 0 ? d : 0`, in place.
pub fn relu_gradient<'x, 'y>(queue: &impl Queue, y: impl Into<Values<'x>>, d: impl Into<ValuesMut<'y>>) {
    let kinds = [&kernels::RELU_GRADIENT, &kernels::RELU_GRADIENT_BF16, &kernels::RELU_GRADIENT_F16];
    changed(queue, kinds, y, d);
}

/// `y = gelu(x)` of this form.
pub fn gelu<'x, 'y>(queue: &impl Queue, form: Gelu, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    let kinds: Kinds = match form {
        Gelu::Exact => [&kernels::GELU, &kernels::GELU_BF16, &kernels::GELU_F16],
        Gelu::Tanh => [&kernels::GELU_TANH, &kernels::GELU_TANH_BF16, &kernels::GELU_TANH_F16],
    };
    written(queue, kinds, x, y);
}

/// `d = d * gelu'(x)`, in place.
pub fn gelu_gradient<'x, 'y>(
    queue: &impl Queue,
    form: Gelu,
    x: impl Into<Values<'x>>,
    d: impl Into<ValuesMut<'y>>,
) {
    let kinds: Kinds = match form {
        Gelu::Exact => [&kernels::GELU_GRADIENT, &kernels::GELU_GRADIENT_BF16, &kernels::GELU_GRADIENT_F16],
        Gelu::Tanh => [
            &kernels::GELU_TANH_GRADIENT,
            &kernels::GELU_TANH_GRADIENT_BF16,
            &kernels::GELU_TANH_GRADIENT_F16,
        ],
    };
    changed(queue, kinds, x, d);
}

/// `y = 1 / (1 + e^-x)`.
pub fn sigmoid<'x, 'y>(queue: &impl Queue, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    written(queue, [&kernels::SIGMOID, &kernels::SIGMOID_BF16, &kernels::SIGMOID_F16], x, y);
}

/// `d = d y (1 - y)`, in place.
pub fn sigmoid_gradient<'x, 'y>(queue: &impl Queue, y: impl Into<Values<'x>>, d: impl Into<ValuesMut<'y>>) {
    let kinds = [&kernels::SIGMOID_GRADIENT, &kernels::SIGMOID_GRADIENT_BF16, &kernels::SIGMOID_GRADIENT_F16];
    changed(queue, kinds, y, d);
}

/// `y += x`.
pub fn add_to<'x, 'y>(queue: &impl Queue, x: impl Into<Values<'x>>, y: impl Into<ValuesMut<'y>>) {
    changed(queue, [&kernels::ADD_TO, &kernels::ADD_TO_BF16, &kernels::ADD_TO_F16], x, y);
}

/// `y = a + b`.
pub fn add<'x, 'y>(
    queue: &impl Queue,
    a: impl Into<Values<'x>>,
    b: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (a, b, mut y) = (a.into(), b.into(), y.into());
    same("a", a.len(), y.len());
    same("b", b.len(), y.len());
    if a.len() > 0 {
        let storage = alike(a.storage(), &[b.storage(), y.storage()]);
        let kernel = storage.of([&kernels::ADD, &kernels::ADD_BF16, &kernels::ADD_F16]);
        let arguments = [a.into(), b.into(), (&mut y).into(), (a.len() as u64).into()];
        queue.launch(&KernelLaunch::over_wide(kernel, a.len(), storage.bytes(), arguments));
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
pub fn bias_activation<'y>(
    queue: &impl Queue,
    bias: Option<Floats<'_>>,
    area: usize,
    activation: Activation,
    y: impl Into<ValuesMut<'y>>,
) {
    let mut y = y.into();
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
        let storage = y.storage();
        let kernel = storage.of([
            &kernels::BIAS_ACTIVATION,
            &kernels::BIAS_ACTIVATION_BF16,
            &kernels::BIAS_ACTIVATION_F16,
        ]);
        let launch = KernelLaunch::over_wide(kernel, len, storage.bytes(), arguments);
        queue.launch(&launch.and_moves(storage.bytes() * len));
    }
}

/// `y = x * keep / (1 - rate)`, element `i` dropped when number `i` of `key` is below `rate`.
///
/// *Panics* on a rate that is not in `[0, 1)`.
pub fn dropout<'x, 'y>(
    queue: &impl Queue,
    key: Key,
    rate: f32,
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (x, mut y) = (x.into(), y.into());
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
        let storage = alike(x.storage(), &[y.storage()]);
        let kernel = storage.of([&kernels::DROPOUT, &kernels::DROPOUT_BF16, &kernels::DROPOUT_F16]);
        queue.launch(&KernelLaunch::over_wide(kernel, x.len(), storage.bytes(), arguments));
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
        queue.launch(&KernelLaunch::over_wide(kernel, x.len(), size_of::<u16>(), arguments));
    }
}

/// `y = x`, exactly.
pub fn from_half(queue: &impl Queue, half: Half, x: Halves<'_>, mut y: FloatsMut<'_>) {
    same("y", y.len(), x.len());
    if x.len() > 0 {
        let arguments = [x.into(), (&mut y).into(), (x.len() as u64).into()];
        let [_, kernel] = rounding(half);
        queue.launch(&KernelLaunch::over_wide(kernel, x.len(), size_of::<u16>(), arguments));
    }
}
