//! Optimizer updates, and running statistics.
//!
//! This file does not know schedules.

use super::{Floats, FloatsMut, Half, HalvesMut, Scalar, Storage, Values, ValuesMut, same};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::values::nowhere;
use dtrain_engine::device::{AdamW, Along, Lion, Sgd};

/// Parameters, their copy in halves where there is one, and which kernels write it.
fn parameters(p: ValuesMut<'_>, half: Option<Half>) -> (Storage, FloatsMut<'_>, Option<HalvesMut<'_>>) {
    let (p, copy) = p.with_their_copy();
    let storage = match (&copy, half) {
        (None, _) => Storage::F32,
        (Some(_), Some(half)) => Storage::Half(half),
        (Some(_), None) => panic!("a copy in halves of no kind"),
    };
    (storage, p, copy)
}

/// Where the copy goes, if there is one.
fn written(storage: Storage, copy: &mut Option<HalvesMut<'_>>) -> Argument {
    if copy.is_some() { copy.into() } else { nowhere(storage) }
}

/// AdamW in place over flat slices; a copy of the parameters in halves, of the kind `half`, is written with them.
pub fn adamw<'p, 's>(
    queue: &impl Queue,
    o: &AdamW<impl Into<Scalar<'s>> + Copy>,
    g: Floats<'_>,
    p: impl Into<ValuesMut<'p>>,
    mut m: FloatsMut<'_>,
    mut v: FloatsMut<'_>,
    half: Option<Half>,
) {
    let (storage, mut p, mut copy) = parameters(p.into(), half);
    for (what, len) in [("p", p.len()), ("m", m.len()), ("v", v.len())] {
        same(what, len, g.len());
    }
    if g.len() > 0 {
        let [scale, found] = o.scale.into().arguments();
        let arguments = [
            g.into(),
            (&mut p).into(),
            (&mut m).into(),
            (&mut v).into(),
            written(storage, &mut copy),
            (g.len() as u64).into(),
            scale,
            o.step_size.into(),
            o.root_correction.into(),
            o.decay.into(),
            o.beta1.into(),
            o.beta2.into(),
            o.epsilon.into(),
            found,
        ];
        let kernel = storage.of([&kernels::ADAMW, &kernels::ADAMW_BF16, &kernels::ADAMW_F16]);
        queue.launch(&KernelLaunch::over(kernel, g.len(), arguments).and_moves(12 * g.len()));
    }
}

/// SGD in place over flat slices; `m` is empty without momentum.
pub fn sgd<'p, 's>(
    queue: &impl Queue,
    o: &Sgd<impl Into<Scalar<'s>> + Copy>,
    g: Floats<'_>,
    p: impl Into<ValuesMut<'p>>,
    mut m: FloatsMut<'_>,
    half: Option<Half>,
) {
    let (storage, mut p, mut copy) = parameters(p.into(), half);
    same("p", p.len(), g.len());
    if g.len() == 0 {
        return;
    }
    let [scale, found] = o.scale.into().arguments();
    let [lr, decay] = [o.lr, o.weight_decay].map(Into::into);
    let len = (g.len() as u64).into();
    if o.momentum == 0.0 {
        let arguments =
            [g.into(), (&mut p).into(), written(storage, &mut copy), len, scale, lr, decay, found];
        let kernel = storage.of([&kernels::SGD, &kernels::SGD_BF16, &kernels::SGD_F16]);
        return queue.launch(&KernelLaunch::over(kernel, g.len(), arguments).and_moves(4 * g.len()));
    }
    same("m", m.len(), g.len());
    let arguments = [
        g.into(),
        (&mut p).into(),
        (&mut m).into(),
        written(storage, &mut copy),
        len,
        scale,
        lr,
        decay,
        o.momentum.into(),
        u32::from(o.nesterov).into(),
        u32::from(o.first).into(),
        found,
    ];
    let kernel =
        storage.of([&kernels::SGD_MOMENTUM, &kernels::SGD_MOMENTUM_BF16, &kernels::SGD_MOMENTUM_F16]);
    queue.launch(&KernelLaunch::over(kernel, g.len(), arguments).and_moves(8 * g.len()));
}

/// A step along a way: `p = decay p - step way`; a copy of the parameters in halves, of the kind `half`, is written with them.
pub fn along<'w, 'p, 's>(
    queue: &impl Queue,
    o: &Along<impl Into<Scalar<'s>> + Copy>,
    way: impl Into<Values<'w>>,
    p: impl Into<ValuesMut<'p>>,
    half: Option<Half>,
) {
    let way = way.into();
    let (of_copy, mut p, mut copy) = parameters(p.into(), half);
    same("p", p.len(), way.len());
    if way.len() > 0 {
        let storage = way.storage();
        assert!(copy.is_none() || of_copy == storage, "a way in {storage:?}, a copy in {of_copy:?}");
        let [scale, found] = o.scale.into().arguments();
        let arguments = [
            way.into(),
            (&mut p).into(),
            written(storage, &mut copy),
            (way.len() as u64).into(),
            scale,
            o.decay.into(),
            o.step.into(),
            found,
        ];
        let kernel = storage.of([&kernels::ALONG, &kernels::ALONG_BF16, &kernels::ALONG_F16]);
        queue.launch(&KernelLaunch::over(kernel, way.len(), arguments).and_moves(4 * way.len()));
    }
}

/// Lion in place over flat slices; a copy of the parameters in halves, of the kind `half`, is written with them.
pub fn lion<'p, 's>(
    queue: &impl Queue,
    o: &Lion<impl Into<Scalar<'s>> + Copy>,
    g: Floats<'_>,
    p: impl Into<ValuesMut<'p>>,
    mut m: FloatsMut<'_>,
    half: Option<Half>,
) {
    let (storage, mut p, mut copy) = parameters(p.into(), half);
    same("p", p.len(), g.len());
    same("m", m.len(), g.len());
    if g.len() > 0 {
        let [scale, found] = o.scale.into().arguments();
        let arguments = [
            g.into(),
            (&mut p).into(),
            (&mut m).into(),
            written(storage, &mut copy),
            (g.len() as u64).into(),
            scale,
            o.lr.into(),
            o.decay.into(),
            o.beta1.into(),
            o.beta2.into(),
            found,
        ];
        let kernel = storage.of([&kernels::LION, &kernels::LION_BF16, &kernels::LION_F16]);
        queue.launch(&KernelLaunch::over(kernel, g.len(), arguments).and_moves(8 * g.len()));
    }
}

/// `running = (1 - momentum) * running + momentum * (sums * scale)`; a copy of it in halves, of the kind `half`, is written with it.
pub fn blend<'r, 's>(
    queue: &impl Queue,
    momentum: f32,
    scale: impl Into<Scalar<'s>>,
    sums: Floats<'_>,
    running: impl Into<ValuesMut<'r>>,
    half: Option<Half>,
) {
    let (storage, mut running, mut copy) = parameters(running.into(), half);
    same("running", running.len(), sums.len());
    if sums.len() > 0 {
        let len = (sums.len() as u64).into();
        let to = written(storage, &mut copy);
        let [scale, found] = scale.into().arguments();
        let arguments = [sums.into(), (&mut running).into(), to, len, momentum.into(), scale, found];
        let kernel = storage.of([&kernels::BLEND, &kernels::BLEND_BF16, &kernels::BLEND_F16]);
        queue.launch(&KernelLaunch::over(kernel, sums.len(), arguments).and_moves(4 * sums.len()));
    }
}
