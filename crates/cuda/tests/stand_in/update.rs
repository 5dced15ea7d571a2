//! Checks of updates: the CPU's bits.

use super::{Buffer, Extent, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{AdamW, Along, Device, Lion, Sgd};

const LENGTHS: [usize; 4] = [0, 1, 1025, 300];

pub fn adamw(q: &StandIn, extent: Extent) {
    let o = AdamW {
        scale: 0.25,
        step_size: 0.01,
        root_correction: 1.5,
        decay: 0.999,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
    };
    for &len in extent.of(1, &LENGTHS) {
        let (g, mut p, mut m) = (numbers(1, len), numbers(2, len), numbers(3, len));
        let mut v: Vec<f32> = numbers(4, len).iter().map(|v| v.abs()).collect();
        let g_ = Buffer::of(q, "g", &g);
        let [p_, m_, v_] = [("p", &p), ("m", &m), ("v", &v)].map(|(name, x)| Buffer::of(q, name, x));
        operations::adamw(q, &o, g_.read(), p_.write(), m_.write(), v_.write(), None);
        cpu().adamw(&o, &g, &mut p, &mut m, &mut v);
        for (buffer, wanted) in [(p_, p), (m_, m), (v_, v)] {
            buffer.has_bits("adamw", &wanted);
        }
    }
}

pub fn sgd(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        for (momentum, nesterov, first) in [
            (0.0, false, false),
            (0.9, false, true),
            (0.9, false, false),
            (0.9, true, false),
            (0.9, true, true),
        ] {
            let o = Sgd { scale: 0.5, lr: 0.1, weight_decay: 0.01, momentum, nesterov, first };
            let (g, mut p) = (numbers(1, len), numbers(2, len));
            let mut m = match (momentum == 0.0, first) {
                (true, _) => Vec::new(),
                // In the first step the old momentum may be anything.
                (_, true) => vec![f32::NAN; len],
                (_, false) => numbers(3, len),
            };
            let (g_, p_, m_) = (Buffer::of(q, "g", &g), Buffer::of(q, "p", &p), Buffer::of(q, "m", &m));
            operations::sgd(q, &o, g_.read(), p_.write(), m_.write(), None);
            cpu().sgd(&o, &g, &mut p, &mut m);
            p_.has_bits(&format!("{o:?}"), &p);
            m_.has_bits(&format!("{o:?}"), &m);
        }
    }
}

pub fn lion(q: &StandIn, extent: Extent) {
    let o = Lion { scale: 0.5, lr: 0.1, decay: 0.99, beta1: 0.9, beta2: 0.98 };
    for &len in extent.of(1, &LENGTHS) {
        let (mut g, mut p, mut m) = (numbers(1, len), numbers(2, len), numbers(3, len));
        // Some go nowhere.
        g.iter_mut().zip(&mut m).step_by(7).for_each(|(g, m)| (*g, *m) = (0.0, 0.0));
        let [g_, p_, m_] = [("g", &g), ("p", &p), ("m", &m)].map(|(name, x)| Buffer::of(q, name, x));
        operations::lion(q, &o, g_.read(), p_.write(), m_.write(), None);
        cpu().lion(&o, &g, &mut p, &mut m);
        p_.has_bits("lion", &p);
        m_.has_bits("lion's momentum", &m);
    }
}

pub fn along(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        let o = Along { scale: 0.5, decay: 0.99, step: 0.3 };
        let (way, mut p) = (numbers(1, len), numbers(2, len));
        let (way_, p_) = (Buffer::of(q, "way", &way), Buffer::of(q, "p", &p));
        operations::along(q, &o, way_.read(), p_.write(), None);
        cpu().along(&o, &way, &mut p);
        p_.has_bits("along", &p);
    }
}

pub fn blend(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        let (sums, mut running) = (numbers(1, len), numbers(2, len));
        let (sums_, running_) = (Buffer::of(q, "sums", &sums), Buffer::of(q, "running", &running));
        operations::blend(q, 0.1, 0.25, sums_.read(), running_.write(), None);
        cpu().blend(0.1, 0.25, &sums, &mut running);
        running_.has_bits("blend", &running);
    }
}
