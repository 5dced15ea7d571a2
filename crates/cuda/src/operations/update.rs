//! Optimizer updates, and running statistics.
//!
//! This file does not know schedules.

use super::{Floats, FloatsMut, same};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::{AdamW, Sgd};

/// AdamW in place over flat slices.
pub fn adamw(
    queue: &impl Queue,
    o: &AdamW,
    g: Floats<'_>,
    mut p: FloatsMut<'_>,
    mut m: FloatsMut<'_>,
    mut v: FloatsMut<'_>,
) {
    for (what, len) in [("p", p.len()), ("m", m.len()), ("v", v.len())] {
        same(what, len, g.len());
    }
    if g.len() > 0 {
        let arguments = [
            g.into(),
            (&mut p).into(),
            (&mut m).into(),
            (&mut v).into(),
            (g.len() as u64).into(),
            o.scale.into(),
            o.step_size.into(),
            o.root_correction.into(),
            o.decay.into(),
            o.beta1.into(),
            o.beta2.into(),
            o.epsilon.into(),
        ];
        queue.launch(&KernelLaunch::over(&kernels::ADAMW, g.len(), arguments));
    }
}

/// SGD in place over flat slices; `m` is empty without momentum.
pub fn sgd(queue: &impl Queue, o: &Sgd, g: Floats<'_>, mut p: FloatsMut<'_>, mut m: FloatsMut<'_>) {
    same("p", p.len(), g.len());
    if g.len() == 0 {
        return;
    }
    let [scale, lr, decay] = [o.scale, o.lr, o.weight_decay].map(Into::into);
    let len = (g.len() as u64).into();
    if o.momentum == 0.0 {
        let arguments = [g.into(), (&mut p).into(), len, scale, lr, decay];
        return queue.launch(&KernelLaunch::over(&kernels::SGD, g.len(), arguments));
    }
    same("m", m.len(), g.len());
    let arguments = [
        g.into(),
        (&mut p).into(),
        (&mut m).into(),
        len,
        scale,
        lr,
        decay,
        o.momentum.into(),
        u32::from(o.nesterov).into(),
        u32::from(o.first).into(),
    ];
    queue.launch(&KernelLaunch::over(&kernels::SGD_MOMENTUM, g.len(), arguments));
}

/// `running = (1 - momentum) * running + momentum * (sums * scale)`.
pub fn blend(queue: &impl Queue, momentum: f32, scale: f32, sums: Floats<'_>, mut running: FloatsMut<'_>) {
    same("running", running.len(), sums.len());
    if sums.len() > 0 {
        let arguments =
            [sums.into(), (&mut running).into(), (sums.len() as u64).into(), momentum.into(), scale.into()];
        queue.launch(&KernelLaunch::over(&kernels::BLEND, sums.len(), arguments));
    }
}
