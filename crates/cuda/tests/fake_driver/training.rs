//! A small model trained by stages on memory of a device: the same code for every device.

use crate::rig::Rig;
use crate::stand_in::{ids, numbers};
use dtrain_engine::device::{AdamW, CrossEntropy, Device, Outputs, Rows};
use dtrain_engine::models::{CnnOptions, cnn};
use dtrain_engine::stage::{ArenaPlan, Backward, Forward, Input, Mode, Pass, Shape, Stage};
use dtrain_engine::stages::Chain;
use dtrain_types::{MicroBatch, Seed, Step, Wire};

const ROWS: usize = 4;
const STEPS: u64 = 3;

/// Trains a small CNN with batch norm and dropout; gives the losses, and the parameters in the end.
pub fn train<R: Rig>(rig: &R, mut after: impl FnMut(u64)) -> (Vec<f64>, Vec<f32>) {
    let device = rig.device();
    let options =
        CnnOptions { channels: vec![4, 6], hidden: vec![16], dropout: 0.2, ..CnnOptions::default() };
    let mut chain: Chain<R::D> = cnn(&options, 10).expect("the options make sense");
    let mut space = ArenaPlan::default();
    let output = chain.plan(device, &Shape::values(ROWS, &[1, 8, 8]), &mut space).expect("it fits");
    let (len, stats_len) = (Stage::layout(&chain).parameters_len(), Stage::layout(&chain).stats_len());
    let start: Vec<f32> = numbers(1, len).iter().map(|v| v * 0.2).collect();
    let (mut params, stats) = (rig.put_parameters(&start), rig.put(&vec![0.5; stats_len]));
    let [mut m, mut v, mut grads] = [0.0, 0.0, f32::NAN].map(|value| rig.put(&vec![value; len]));
    let mut sums = rig.empty(stats_len);
    let [mut y, mut dy] = [(); 2].map(|()| rig.empty_activations(ROWS * 10));
    let (mut saved, mut scratch) = (rig.empty(space.saved), rig.empty(space.scratch));
    let batches: Vec<_> = (0..STEPS as u32)
        .map(|step| (rig.put_activations(&numbers(10 + step, ROWS * 64)), rig.ids(&ids(20 + step, ROWS, 10))))
        .collect();
    let shape = Rows { rows: ROWS, width: output.per_row() };
    let loss =
        CrossEntropy { label_smoothing: 0.0, class_weights: &[], ignore_index: None, scale: 1.0f32.into() };
    let mut losses = Vec::new();
    for (step, (images, targets)) in (1..).zip(&batches) {
        let (seed, step_, micro_batch) = (Seed(3), Step(step), MicroBatch(0));
        let pass = Pass {
            device,
            mode: Mode::Train,
            seed,
            step: step_,
            micro_batch,
            rows: ROWS,
            each: ROWS,
            wire: Wire::F32,
            newest: None,
        };
        chain.forward(
            &pass,
            Forward {
                params: rig.r(&params),
                frozen: R::D::part(rig.r(&params), 0..0),
                stats: rig.r(&stats),
                stat_sums: Some(rig.w(&mut sums)),
                x: Input::Values(rig.ra(images, ROWS * 64)),
                y: rig.wa(&mut y, ROWS * 10),
                saved: rig.w(&mut saved),
                scratch: rig.w(&mut scratch),
            },
        );
        device.copy(rig.ra(&y, ROWS * 10), rig.wa(&mut dy, ROWS * 10));
        let logits = Outputs::Replaced(rig.wa(&mut dy, ROWS * 10));
        let found = device.sums(device.cross_entropy(shape, &loss, logits, rig.i(targets)));
        losses.push(found.loss);
        chain.backward(
            &pass,
            Backward {
                params: rig.r(&params),
                frozen: R::D::part(rig.r(&params), 0..0),
                x: Input::Values(rig.ra(images, ROWS * 64)),
                y: rig.ra(&y, ROWS * 10),
                saved: rig.w(&mut saved),
                dy: rig.wa(&mut dy, ROWS * 10),
                dx: None,
                grads: rig.w(&mut grads),
                scratch: rig.w(&mut scratch),
            },
        );
        assert!(device.sum_of_squares(rig.r(&grads), 1.0).is_finite() && device.all_finite(rig.r(&sums)));
        let adamw = AdamW {
            scale: 0.25f32.into(),
            step_size: 0.01,
            root_correction: 1.0,
            decay: 0.999,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-3,
        };
        device.adamw(&adamw, rig.r(&grads), rig.w(&mut params), rig.w(&mut m), rig.w(&mut v));
        after(step);
    }
    device.wait();
    (losses, rig.get(&params))
}
